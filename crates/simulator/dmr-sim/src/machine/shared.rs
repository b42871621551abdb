//! A machine, shared by the driver's functions behind one lock.

use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::host::{
    Faults, Frames,
    sync::{ignore_poison, lock},
};
use crate::machine::Machine;

/// A universe, shared by the driver's functions.
pub(crate) struct Shared {
    /// The id of the universe in handles.
    pub(crate) id: u32,
    /// The CUDA ordinals of its devices.
    pub(crate) ordinals: Vec<usize>,
    pub(crate) faults: Faults,
    pub(crate) ended: AtomicBool,
    /// The frames that reports show.
    pub(crate) frames: Frames,
    /// Locked directly only where a kernel may run: other users of it need the memory that the
    /// kernel has.
    pub(crate) machine: Mutex<Machine>,
    /// Notified when a host callback has returned, and when a kernel has ended.
    pub(crate) changed: Condvar,
}

impl Shared {
    pub(crate) fn new(id: u32, ordinals: Vec<usize>, machine: Machine) -> Self {
        Self {
            id,
            ordinals,
            faults: Faults::default(),
            ended: AtomicBool::new(false),
            frames: machine.config.frames,
            machine: Mutex::new(machine),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.wait_for_kernel(lock(&self.machine))
    }

    /// Unlocks the machine until no kernel runs.
    pub(crate) fn wait_for_kernel<'a>(
        &'a self,
        mut machine: MutexGuard<'a, Machine>,
    ) -> MutexGuard<'a, Machine> {
        while machine.scheduler.runs_kernel {
            machine.scheduler.held_up += 1;
            machine = ignore_poison(self.changed.wait(machine));
            machine.scheduler.held_up -= 1;
        }
        machine
    }
}
