//! Tests of the instructions between lanes.

mod formulas;
mod matrices;
mod memory;
mod names;
mod numbers;
mod registers;
mod sums;

use super::{Defect, Exchange, Instruction, Operands, Transfer, Work, decode};
use crate::{Lanes, Mask};

const ALL: Mask = Mask::MAX;

/// Decodes a dotted name that must be supported.
fn instruction(name: &str) -> Instruction {
    let parts: Vec<&str> = name.split('.').collect();
    decode(parts[0], &parts[1..]).expect("a name of this module").expect(name)
}

fn exchange(name: &str) -> Exchange {
    match instruction(name) {
        Instruction::Exchange(exchange) => exchange,
        Instruction::Transfer(_) => panic!("{name} is a transfer"),
    }
}

fn transfer(name: &str) -> Transfer {
    match instruction(name) {
        Instruction::Transfer(transfer) => transfer,
        Instruction::Exchange(_) => panic!("{name} is an exchange"),
    }
}

/// Returns the number of registers of all destinations.
fn registers(operands: &Operands) -> usize {
    operands.destinations.iter().map(|operand| operand.registers).sum()
}

/// Runs an exchange on registers that hold `0xdead` in each destination before.
fn eval(
    name: &str,
    sources: &[Lanes],
    members: Mask,
    executing: Mask,
) -> (Vec<Lanes>, Result<(), Defect>) {
    let exchange = exchange(name);
    let mut out = vec![[0xdead; 32]; registers(&exchange.operands())];
    let sources: Vec<&Lanes> = sources.iter().collect();
    let result = exchange.eval(&sources, members, executing, &mut Work::default(), &mut out);
    (out, result)
}

/// Returns a register with the value of each lane.
fn lanes(value: impl FnMut(usize) -> u64) -> Lanes {
    std::array::from_fn(value)
}

/// A generator of test numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number from `low` to `high`, both included.
    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }
}
