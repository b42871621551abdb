//! `cargo xtask ci`: runs every gate, cheap ones first, also after one has failed.
//!
//! A gate is one of these if it needs no GPU. What is left of this program, almost half, is
//! run by hand: `sanitize`, `mutants`, `bench` and `bundle`.

use std::time::Instant;

use crate::failure::Failure;
use crate::package::{self, Changes};
use crate::{
    alone, clippy, cuda, deny, direct, docs, fmt, graph, loom, page, tidy, valgrind, wheel,
};

type Gate<'a> = &'a dyn Fn() -> Result<(), Failure>;

/// Runs all gates and lists those that failed.
pub(crate) fn run(changes: Changes) -> Result<(), Failure> {
    let package = || package::run(changes);
    let pages = || page::run(&page::Options::parse(&[])?);
    let gates: [(&str, Gate<'_>); 14] = [
        ("fmt", &fmt::run),
        ("tidy", &tidy::run),
        ("graph", &graph::run),
        ("deny", &deny::run),
        ("clippy", &clippy::run),
        ("alone", &alone::run),
        ("cuda", &cuda::run),
        ("direct", &direct::run),
        ("docs", &docs::run),
        ("valgrind", &valgrind::run),
        ("wheel", &wheel::run),
        ("page", &pages),
        ("loom", &loom::run),
        ("package", &package),
    ];
    let mut red = Vec::new();
    for (name, gate) in gates {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = gate();
        let seconds = start.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => println!("== {name}: ok, {seconds:.1} s"),
            Err(failure) => {
                println!("{failure}\n== {name}: FAILED, {seconds:.1} s");
                red.push(name);
            }
        }
    }
    if red.is_empty() {
        println!("\nall {} gates are green", gates.len());
        return Ok(());
    }
    Err(Failure::Setup(format!("\nred: {}", red.join(", "))))
}
