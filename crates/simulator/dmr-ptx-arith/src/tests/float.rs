//! `f32` and `f64` arithmetic against software floating point, in every rounding mode.

use super::reference::{MODES, Reference, basic, flushing};
use super::{agrees, run};
use rustc_apfloat::ieee::{Double, Quad, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

fn operands<F: Reference>(random: &mut fastrand::Rng) -> [u64; 3] {
    [F::random(random), F::random(random), F::random(random)]
}

fn all_modes<F: Reference>(ty: &str, names: &[&str]) {
    for name in names {
        for (mode, round) in MODES {
            agrees(&format!("{name}.{mode}.{ty}"), operands::<F>, |case| {
                basic(name, case.map(F::of), round).canonical()
            });
        }
    }
}

#[test]
fn f32_operations_are_rounded_once_in_every_mode() {
    all_modes::<Single>("f32", &["add", "sub", "mul", "div", "rcp", "fma", "mad"]);
}

#[test]
fn f64_operations_are_rounded_once_in_every_mode() {
    all_modes::<Double>("f64", &["add", "sub", "mul", "div", "rcp", "fma", "mad"]);
}

#[test]
fn ftz_flushes_operands_and_results() {
    for name in ["add", "sub", "mul", "div", "rcp", "fma"] {
        for (mode, round) in MODES {
            agrees(&format!("{name}.{mode}.ftz.f32"), operands::<Single>, |case| {
                let operands = case.map(|bits| Single::of(bits).flushed());
                flushing(name, operands, round).canonical()
            });
        }
    }
}

#[test]
fn sat_clamps_to_zero_and_one() {
    for name in ["add", "sub", "mul", "fma"] {
        for (mode, round) in MODES {
            agrees(&format!("{name}.{mode}.sat.f32"), operands::<Single>, |case| {
                basic(name, case.map(Single::of), round).saturated().canonical()
            });
            agrees(&format!("{name}.{mode}.ftz.sat.f32"), operands::<Single>, |case| {
                let operands = case.map(|bits| Single::of(bits).flushed());
                flushing(name, operands, round).saturated().canonical()
            });
        }
    }
}

#[test]
fn without_a_mode_the_result_is_rounded_to_nearest() {
    agrees("mad.f32", operands::<Single>, |case| {
        basic("mad", case.map(Single::of), Round::NearestTiesToEven).canonical()
    });
    agrees("add.f32", operands::<Single>, |case| {
        basic("add", case.map(Single::of), Round::NearestTiesToEven).canonical()
    });
    agrees("mul.f64", operands::<Double>, |case| {
        basic("mul", case.map(Double::of), Round::NearestTiesToEven).canonical()
    });
}

#[test]
fn f32x2_is_two_f32() {
    for (mode, round) in MODES {
        for name in ["add", "sub", "mul", "fma"] {
            let pairs = |random: &mut fastrand::Rng| {
                let low = operands::<Single>(random);
                let high = operands::<Single>(random);
                [0, 1, 2].map(|n| low[n] | high[n] << 32)
            };
            agrees(&format!("{name}.{mode}.f32x2"), pairs, |case| {
                let half = |shift: u32| {
                    let operands = case.map(|bits| Single::of(bits >> shift & 0xffff_ffff));
                    basic(name, operands, round).canonical()
                };
                half(0) | half(32) << 32
            });
        }
    }
}

/// Returns the square root: the greatest value whose square is at most `x`, and its neighbours by
/// comparing squares of 108 bits, which the 113 bits of `Quad` hold.
fn square_root<F: Reference + FloatConvert<Quad>>(x: F, round: Round) -> F {
    let quad = |value: F| value.convert_r(Round::TowardZero, &mut false).value;
    if x.is_nan() || x.is_negative() && !x.is_zero() {
        return F::NAN;
    } else if x.is_zero() || x.is_infinite() {
        return x;
    }
    // By bisection on the bits, which are ordered as the values.
    let mut low = 0;
    let mut high = F::INFINITY.to_bits() as u64;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let root: Quad = quad(F::of(middle));
        if (root * root).value <= quad(x) { low = middle } else { high = middle }
    }
    let root = quad(F::of(low));
    let exact = (root * root).value == quad(x);
    let half = (root + quad(F::of(high))).value.scalbn(-1);
    let square: Quad = (half * half).value;
    let up = match round {
        Round::TowardPositive => !exact,
        Round::NearestTiesToEven => square < quad(x) || square == quad(x) && low & 1 != 0,
        _ => false,
    };
    F::of(if up { high } else { low })
}

#[test]
fn square_roots_are_rounded_once_in_every_mode() {
    for (mode, round) in MODES {
        agrees(
            &format!("sqrt.{mode}.f32"),
            |random| [Single::random(random)],
            |[a]| square_root(Single::of(a), round).canonical(),
        );
        agrees(
            &format!("sqrt.{mode}.ftz.f32"),
            |random| [Single::random(random)],
            |[a]| square_root(Single::of(a).flushed(), round).canonical(),
        );
        agrees(
            &format!("sqrt.{mode}.f64"),
            |random| [Double::random(random)],
            |[a]| square_root(Double::of(a), round).canonical(),
        );
    }
}

#[test]
fn special_values_give_what_the_isa_says() {
    let inf = 0x7f80_0000;
    let nan = 0x7fff_ffff;
    let one = 0x3f80_0000;
    let minus_zero = 0x8000_0000;
    assert_eq!(run("sub.rn.f32", [inf, inf]), nan);
    assert_eq!(run("mul.rn.f32", [inf, 0]), nan);
    assert_eq!(run("add.rn.f32", [0xffc0_1234, one]), nan, "payloads are not kept");
    assert_eq!(run("div.rn.f32", [one, minus_zero]), 0xff80_0000);
    assert_eq!(
        run("add.rm.f32", [one, 0xbf80_0000]),
        minus_zero,
        "an exact zero is negative downwards"
    );
    assert_eq!(run("add.rp.f32", [one, 0xbf80_0000]), 0);
    assert_eq!(run("sqrt.rn.f32", [minus_zero]), minus_zero);
    assert_eq!(run("add.rn.sat.f32", [nan, one]), 0);
    assert_eq!(run("mul.rn.ftz.f32", [1, one]), 0);
    assert_eq!(run("mul.rn.f32", [1, one]), 1);
    assert_eq!(run("mul.rz.f32", [0x7f7f_ffff, 0x7f7f_ffff]), 0x7f7f_ffff);
    assert_eq!(
        run("add.rn.f64", [f64::INFINITY.to_bits(), f64::NEG_INFINITY.to_bits()]),
        0xfff8_0000_0000_0000
    );
}
