//! `f16` and `bf16` arithmetic, single and in pairs, against software floating point.

use super::agrees;
use super::reference::{Reference, basic, flushing};
use rustc_apfloat::Round::NearestTiesToEven;
use rustc_apfloat::ieee::{BFloat, Half};

const NAMES: [&str; 4] = ["add", "sub", "mul", "fma"];

fn opcode(name: &str, flags: &str, ty: &str) -> String {
    let mode = if name == "fma" { ".rn" } else { "" };
    format!("{name}{mode}{flags}.{ty}")
}

/// Compares an operation on single values and on pairs.
fn compare<F: Reference>(name: &str, flags: &str, ty: &str, reference: impl Fn([u64; 3]) -> u64) {
    let single =
        |random: &mut fastrand::Rng| [F::random(random), F::random(random), F::random(random)];
    agrees(&opcode(name, flags, ty), single, &reference);
    let pairs = |random: &mut fastrand::Rng| {
        let low = single(random);
        let high = single(random);
        [0, 1, 2].map(|n| low[n] | high[n] << 16)
    };
    agrees(&opcode(name, flags, &format!("{ty}x2")), pairs, |case| {
        reference(case.map(|bits| bits & 0xffff)) | reference(case.map(|bits| bits >> 16)) << 16
    });
}

#[test]
fn f16_operations_are_rounded_once() {
    for name in NAMES {
        compare::<Half>(name, "", "f16", |case| {
            basic(name, case.map(Half::of), NearestTiesToEven).canonical()
        });
    }
}

#[test]
fn bf16_operations_are_rounded_once() {
    for name in NAMES {
        compare::<BFloat>(name, "", "bf16", |case| {
            basic(name, case.map(BFloat::of), NearestTiesToEven).canonical()
        });
    }
}

#[test]
fn f16_operations_flush_and_saturate() {
    for name in NAMES {
        compare::<Half>(name, ".ftz", "f16", |case| {
            let operands = case.map(|bits| Half::of(bits).flushed());
            flushing(name, operands, NearestTiesToEven).canonical()
        });
        compare::<Half>(name, ".sat", "f16", |case| {
            basic(name, case.map(Half::of), NearestTiesToEven).saturated().canonical()
        });
    }
}

fn relu<F: Reference>(value: F) -> u64 {
    if value.is_negative() && !value.is_nan() { 0 } else { value.canonical() }
}

#[test]
fn relu_makes_negative_results_zero() {
    compare::<Half>("fma", ".relu", "f16", |case| {
        relu(basic("fma", case.map(Half::of), NearestTiesToEven))
    });
    compare::<BFloat>("fma", ".relu", "bf16", |case| {
        relu(basic("fma", case.map(BFloat::of), NearestTiesToEven))
    });
}
