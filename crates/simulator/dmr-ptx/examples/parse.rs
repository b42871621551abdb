//! Parses PTX files and prints what they hold:
//! `cargo run -p dmr-ptx --example parse -- kernels.ptx`.
#![allow(clippy::print_stdout, reason = "a program that prints its result")]

use std::time::Instant;

use dmr_ptx::{Program, syntax};

fn main() -> std::process::ExitCode {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) => {
                println!("{path}: {error}");
                failed = true;
                continue;
            }
        };
        let start = Instant::now();
        match syntax::parse(&text) {
            Ok(module) => {
                let kernels = module.functions.iter().filter(|function| function.is_entry).count();
                let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
                let instructions: usize = bodies.map(|body| body.instructions.len()).sum();
                let time = start.elapsed();
                println!(
                    "{path}: {} bytes, {kernels} kernels, {instructions} instructions, {time:?}",
                    text.len()
                );
                if let Ok(text) = std::str::from_utf8(&text) {
                    let start = Instant::now();
                    let program = Program::load(text);
                    let refusals = program
                        .iter()
                        .flat_map(|it| it.kernels())
                        .filter_map(|it| it.refusal.as_ref());
                    refusals.for_each(|refusal| println!("  {refusal}"));
                    println!("  decoded too in {:?}", start.elapsed());
                }
            }
            Err(error) => {
                println!("{path}: {error}");
                failed = true;
            }
        }
    }
    u8::from(failed).into()
}
