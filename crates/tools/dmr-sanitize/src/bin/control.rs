//! Commits one planted fault, which a tool of Compute Sanitizer must report.
//!
//! `control --list` prints a line for each control of this build: its name, the tool, the stack and
//! the class of the fault, separated by tabs. `control NAME` commits one, and ends with status 0.

#![allow(clippy::print_stdout, reason = "the runner reads the list")]

use std::env;

use dmr_sanitize::controls::{CONTROLS, Control};
use dmr_sanitize::{Outcome, lines};

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &*arguments {
        [flag] if flag == "--list" => {
            for Control { name, tool, stack, class, .. } in CONTROLS {
                println!("{name}\t{tool}\t{stack}\t{class}");
            }
            Ok(())
        }
        [name] => {
            let control = Control::find(name)?;
            lines::backends();
            control.run()
        }
        _ => Err("usage: control NAME, or control --list".into()),
    }
}
