//! The planted faults, by name: each commits one fault that one tool must report.
//!
//! Faults in memory go through blocks of the library's own resources, and only the last step (a
//! kernel with a wrong address, a second free) is made by hand.

#[cfg(feature = "nvtx")]
mod announced;
#[cfg(feature = "all")]
mod ordered;
mod replayed;
mod scene;
mod shared;
mod whole;

use crate::machine::Machine;
use crate::tool::Tool;
use crate::{Outcome, lines};

use scene::Scene;

/// The prefix of the names of the controls' kernels.
pub const PREFIX: &str = "dmr_control";

/// One planted fault.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// The argument of `control`.
    pub name: &'static str,
    /// The tool that must report it.
    pub tool: Tool,
    /// The name of the stack that its memory comes from.
    pub stack: &'static str,
    /// The class of the fault, for the runner.
    pub class: &'static str,
    commit: fn(&Scene) -> Outcome,
}

/// Every control of this build.
pub const CONTROLS: &[Control] = &[
    whole::OVERRUN,
    whole::UNDERRUN,
    whole::USE_AFTER_FREE,
    whole::UNINITIALIZED,
    whole::LEAK,
    whole::DOUBLE_FREE,
    #[cfg(feature = "all")]
    ordered::OVERRUN,
    #[cfg(feature = "all")]
    ordered::USE_AFTER_FREE,
    #[cfg(feature = "all")]
    ordered::FREE_WHILE_USED,
    #[cfg(feature = "all")]
    ordered::USE_BEFORE_ALLOC,
    #[cfg(feature = "all")]
    ordered::UNINITIALIZED,
    #[cfg(feature = "all")]
    ordered::DOUBLE_FREE,
    #[cfg(feature = "nvtx")]
    announced::OVERRUN,
    #[cfg(feature = "nvtx")]
    announced::USE_AFTER_FREE,
    #[cfg(feature = "nvtx")]
    announced::UNINITIALIZED,
    #[cfg(feature = "nvtx")]
    announced::NOT_WRITABLE,
    #[cfg(feature = "nvtx")]
    announced::UNDECLARED,
    replayed::AFTER_FREE,
    #[cfg(feature = "all")]
    replayed::BEFORE_ALLOC,
    shared::RACE,
    shared::DIVERGENT_BARRIER,
];

impl Control {
    /// Returns the control with this name.
    ///
    /// # Errors
    ///
    /// This build has no such control; the message lists those that it has.
    pub fn find(name: &str) -> Outcome<Self> {
        let found = CONTROLS.iter().find(|control| control.name == name);
        Ok(*found.ok_or_else(|| {
            let names: Vec<_> = CONTROLS.iter().map(|control| control.name).collect();
            format!("this build has no control {name:?}: it has {}", names.join(", "))
        })?)
    }

    /// Commits the fault. On the simulated driver, prints the kind of each finding.
    ///
    /// # Errors
    ///
    /// The fault could not be committed. Errors after the fault are ignored.
    pub fn run(&self) -> Outcome {
        let machine = Machine::select()?;
        let scene = Scene::new(&machine)?;
        (self.commit)(&scene)?;
        scene.end();
        if let Some(universe) = machine.universe() {
            for report in &universe.finish().reports {
                lines::simulator(report);
            }
        }
        Ok(())
    }
}
