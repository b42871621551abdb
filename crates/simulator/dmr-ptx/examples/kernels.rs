//! Lists the kernels of PTX files: those that can run, and why each other one cannot.

#![allow(clippy::print_stdout, reason = "a program that prints a list")]

use dmr_ptx::Program;

fn main() {
    let mut good = 0;
    let mut all = 0;
    let mut registers = 0;
    for path in std::env::args().skip(1) {
        let program = match std::fs::read_to_string(&path) {
            Ok(text) => Program::load(&text),
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let program = match program {
            Ok(program) => program,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        for kernel in program.kernels() {
            all += 1;
            match &kernel.refusal {
                None => {
                    good += 1;
                    registers = registers.max(kernel.registers);
                }
                Some(refusal) => println!("{path}: {}: {refusal}", kernel.name),
            }
        }
    }
    println!("{good} of {all} kernels can run; the largest has {registers} registers");
}
