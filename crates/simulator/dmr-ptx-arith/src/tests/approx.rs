//! Approximations: their special values, as the tables of the PTX ISA give them, and their bounds.

use super::reference::Reference;
use super::{CASES, refused, run, run_all};
use rustc_apfloat::ieee::{Half, Single};

const INF: u64 = 0x7f80_0000;
const NAN: u64 = 0x7fff_ffff;
const SIGN: u64 = 0x8000_0000;
const ONE: u64 = 0x3f80_0000;

fn float(bits: u64) -> f64 {
    f64::from(f32::from_bits(bits as u32))
}

#[test]
fn special_values() {
    // Of -inf, -1, -0, +0, +inf, NaN.
    let inputs = [SIGN | INF, SIGN | ONE, SIGN, 0, INF, NAN];
    let minus_one = SIGN | ONE;
    for (name, expected) in [
        ("rcp", [SIGN, minus_one, SIGN | INF, INF, 0, NAN]),
        ("sqrt", [NAN, NAN, SIGN, 0, INF, NAN]),
        ("rsqrt", [NAN, NAN, SIGN | INF, INF, 0, NAN]),
        ("lg2", [NAN, NAN, SIGN | INF, SIGN | INF, INF, NAN]),
        ("ex2", [0, 0x3f00_0000, ONE, ONE, INF, NAN]),
    ] {
        for ftz in ["", ".ftz"] {
            let results = inputs.map(|input| run(&format!("{name}.approx{ftz}.f32"), [input]));
            assert_eq!(results, expected, "{name}{ftz}");
        }
    }
    for name in ["sin", "cos"] {
        for input in [SIGN | INF, INF, NAN] {
            assert_eq!(run(&format!("{name}.approx.f32"), [input]), NAN);
        }
    }
    assert_eq!(run("sin.approx.f32", [SIGN]), SIGN);
    assert_eq!(run("cos.approx.f32", [SIGN]), ONE);
    let tanh = [SIGN | INF, SIGN, 0, INF, NAN].map(|input| run("tanh.approx.f32", [input]));
    assert_eq!(tanh, [minus_one, SIGN, 0, ONE, NAN]);
}

#[test]
fn subnormal_operands_and_results_are_flushed_only_with_ftz() {
    assert_eq!(run("rcp.approx.ftz.f32", [SIGN | 0x0040_0000]), SIGN | INF);
    assert_eq!(run("rcp.approx.f32", [0x0040_0000]), 0x7f00_0000);
    assert_eq!(run("rcp.approx.ftz.f32", [0x7f00_0000]), 0);
    assert_eq!(run("rcp.approx.f32", [0x7f00_0000]), 0x0040_0000);
    assert_eq!(run("ex2.approx.f32", [0xc300_0000]), 0x0020_0000);
    assert_eq!(run("ex2.approx.ftz.f32", [0xc300_0000]), 0);
    assert_eq!(run("lg2.approx.f32", [0x0000_0001]), 0xc315_0000);
    assert_eq!(run("lg2.approx.ftz.f32", [0x0000_0001]), SIGN | INF);
    assert_eq!(run("sqrt.approx.ftz.f32", [0x0000_0001]), 0);
    assert_eq!(run("sin.approx.ftz.f32", [SIGN | 1]), SIGN);
    // The angle in turns is flushed all the same.
    assert_eq!(run("sin.approx.f32", [SIGN | 1]), SIGN);
}

#[test]
fn a_division_by_a_large_value_is_zero_or_nan() {
    let large = 0x7e80_0001;
    assert_eq!(run("div.approx.f32", [ONE, large]), 0);
    assert_eq!(run("div.approx.f32", [SIGN | ONE, large]), SIGN);
    assert_eq!(run("div.approx.f32", [INF, large]), NAN);
    assert_eq!(run("div.approx.f32", [ONE, 0x7e80_0000]), 0x0080_0000);
    assert_eq!(run("div.full.f32", [0x7e80_0001, large]), ONE);
    assert_eq!(run("div.approx.f32", [ONE, INF]), 0);
    assert_eq!(run("div.approx.ftz.f32", [ONE, 1]), INF);
}

/// Compares with a function of `f64`, within a relative bound or an absolute one.
fn within(
    opcode: &str,
    operand: impl Fn(&mut fastrand::Rng) -> u64,
    exact: fn(f64) -> f64,
    relative: f64,
    absolute: f64,
) {
    let mut random = fastrand::Rng::with_seed(4);
    let cases: Vec<[u64; 1]> = (0..CASES).map(|_| [operand(&mut random)]).collect();
    for (case, result) in cases.iter().zip(run_all(opcode, &cases)) {
        let exact = exact(float(case[0]));
        let result = float(result[0]);
        let close = (result - exact).abs() <= (exact.abs() * relative).max(absolute);
        assert!(close, "{opcode} {case:x?}: {result} instead of {exact}");
    }
}

#[test]
fn results_keep_the_bounds_of_the_isa() {
    let positive = |random: &mut fastrand::Rng| random.u64(0x0080_0000..INF);
    let moderate =
        |random: &mut fastrand::Rng| random.u64(..2) << 31 | random.u64(0x3000_0000..0x42c0_0000);
    let turn = |random: &mut fastrand::Rng| random.u64(..2) << 31 | random.u64(..0x40c9_0fdb);
    let power = |exponent: f64| exponent.exp2();
    within("rsqrt.approx.f32", positive, |x| x.sqrt().recip(), power(-22.9), 0.0);
    within("sqrt.approx.f32", positive, f64::sqrt, power(-23.0), 0.0);
    within(
        "lg2.approx.f32",
        positive,
        |x| x.ln() / std::f64::consts::LN_2,
        power(-22.0),
        power(-22.0),
    );
    within("ex2.approx.f32", moderate, |x| (x * std::f64::consts::LN_2).exp(), power(-22.5), 0.0);
    within("sin.approx.f32", turn, f64::sin, 0.0, power(-20.5));
    within("cos.approx.f32", turn, f64::cos, 0.0, power(-20.5));
    within(
        "tanh.approx.f32",
        moderate,
        |x| 1.0 - 2.0 / ((2.0 * x).exp() + 1.0),
        power(-11.0),
        power(-23.0),
    );
}

#[test]
fn halves() {
    assert_eq!(run("ex2.approx.f16", [0x3c00]), 0x4000);
    assert_eq!(run("ex2.approx.f16x2", [0xbc00_0000]), 0x3800_3c00);
    assert_eq!(run("ex2.approx.ftz.bf16", [0x4000]), 0x4080);
    assert_eq!(run("tanh.approx.f16", [0xfc00]), 0xbc00);
    assert_eq!(run("tanh.approx.bf16x2", [0x7f80_8000]), 0x3f80_8000);
    // Every operand; the functions of f64 are exact enough to be rounded once.
    for a in 0..=0xffffu64 {
        let value = f64::from(f32::from_bits(Half::of(a).to_f32_bits()));
        if value.is_nan() {
            assert_eq!(run("tanh.approx.f16", [a]), 0x7fff);
            continue;
        }
        let tanh = f64::from(f32::from_bits(Half::of(run("tanh.approx.f16", [a])).to_f32_bits()));
        assert!((tanh - value.tanh()).abs() <= (-10.987f64).exp2(), "{a:x}");
    }
}

#[test]
fn f64_approximations_have_a_high_half_only() {
    assert_eq!(run("rcp.approx.ftz.f64", [3f64.to_bits()]), 0x3fd5_5555_0000_0000);
    assert_eq!(run("rsqrt.approx.ftz.f64", [4f64.to_bits() | 0xffff]), 0x3fe0_0000_0000_0000);
    assert_eq!(run("rsqrt.approx.f64", [4f64.to_bits()]), 0.5f64.to_bits());
    assert_eq!(run("rcp.approx.ftz.f64", [0xffff]), f64::INFINITY.to_bits());
    assert_eq!(run("rcp.approx.ftz.f64", [f64::NEG_INFINITY.to_bits()]), 1 << 63);
    for opcode in
        ["rcp.approx.f64", "sin.approx.f64", "tanh.approx.ftz.bf16", "ex2.approx.bf16", "sin.f32"]
    {
        assert!(!refused(opcode).is_empty());
    }
}

/// Values of halves in `f32`.
trait ToSingle {
    fn to_f32_bits(self) -> u32;
}

impl ToSingle for Half {
    fn to_f32_bits(self) -> u32 {
        use rustc_apfloat::{Float, FloatConvert, Round};
        let single: Single = self.convert_r(Round::TowardZero, &mut false).value;
        single.to_bits() as u32
    }
}
