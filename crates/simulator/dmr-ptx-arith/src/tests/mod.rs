//! Each instruction against an independent reference: tables of special values, and random
//! operands.

mod any;
mod approx;
mod bits;
mod compare;
mod convert;
mod decoding;
mod float;
mod half;
mod integer;
mod logic;
mod reference;
mod sign;
mod video;

use super::{Arith, decode};
use crate::{Lanes, Mask, WARP};

/// The number of random cases of each test: more where the code is optimised for a release.
const CASES: usize = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };

/// Decodes an opcode as PTX writes it.
fn decoded(opcode: &str) -> Arith {
    let mut words = opcode.split('.');
    let name = words.next().unwrap_or_default();
    let modifiers: Vec<&str> = words.collect();
    match decode(name, &modifiers) {
        Some(Ok(arith)) => arith,
        other => panic!("{opcode}: {other:?}"),
    }
}

/// Returns the error that decoding gives.
fn refused(opcode: &str) -> String {
    let mut words = opcode.split('.');
    let name = words.next().unwrap_or_default();
    let modifiers: Vec<&str> = words.collect();
    match decode(name, &modifiers) {
        Some(Err(error)) => error,
        other => panic!("{opcode}: {other:?}"),
    }
}

/// Runs an opcode on one set of operands in each lane, and returns both results of each.
fn run_all<const N: usize>(opcode: &str, cases: &[[u64; N]]) -> Vec<[u64; 2]> {
    let arith = decoded(opcode);
    let mut results = Vec::new();
    for warp in cases.chunks(WARP) {
        let mut sources = [[0; WARP]; N];
        for (lane, case) in warp.iter().enumerate() {
            for (source, value) in sources.iter_mut().zip(case) {
                source[lane] = *value;
            }
        }
        let mut first: Lanes = [0; WARP];
        let mut second: Lanes = [0; WARP];
        arith.eval(&sources.each_ref(), &mut first, &mut second, Mask::MAX, &mut 0);
        results.extend(first.into_iter().zip(second).map(|(a, b)| [a, b]).take(warp.len()));
    }
    results
}

/// Runs an opcode on one set of operands.
fn run<const N: usize>(opcode: &str, operands: [u64; N]) -> u64 {
    run_all(opcode, &[operands])[0][0]
}

/// Returns whether bits are a NaN of the type of an opcode's result.
fn nan_of(opcode: &str) -> fn(u64) -> bool {
    match opcode
        .split('.')
        .find(|word| word.starts_with(['f', 'b']) && word.ends_with(['2', '4', '6']))
    {
        Some("f64") => |bits| f64::from_bits(bits).is_nan(),
        Some("f32") => |bits| f32::from_bits(bits as u32).is_nan(),
        Some("f16") => |bits| bits & 0x7fff > 0x7c00,
        Some("bf16") => |bits| bits & 0x7fff > 0x7f80,
        _ => |_| false,
    }
}

/// Compares an opcode with a reference on random operands. The payload of a NaN in or from `f64` is
/// not compared: the results of a GPU show it.
#[track_caller]
fn agrees<const N: usize>(
    opcode: &str,
    mut operands: impl FnMut(&mut fastrand::Rng) -> [u64; N],
    reference: impl Fn([u64; N]) -> u64,
) {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let cases: Vec<[u64; N]> = (0..CASES).map(|_| operands(&mut random)).collect();
    let nan = nan_of(opcode);
    for (case, result) in cases.iter().zip(run_all(opcode, &cases)) {
        let expected = reference(*case);
        if opcode.contains("f64") && nan(expected) && nan(result[0]) {
            continue;
        }
        assert_eq!(
            result[0], expected,
            "{opcode} {case:x?}: {:x} instead of {expected:x}",
            result[0]
        );
    }
}

/// Returns special bits (zeros, ones, extremes, and neighbours of these) or random ones.
fn bits(random: &mut fastrand::Rng, width: u32) -> u64 {
    let value = match random.u32(..8) {
        0 => random.u64(..4),
        1 => u64::MAX - random.u64(..4),
        2 => (1 << (width - 1)) - 2 + random.u64(..4),
        3 => 1 << random.u32(..width),
        4 => (1 << random.u32(..width)) - 1,
        _ => random.u64(..) >> random.u32(..width),
    };
    value & (u64::MAX >> (64 - width))
}
