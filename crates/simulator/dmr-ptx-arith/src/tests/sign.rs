//! `min`, `max`, `abs`, `neg`, `copysign`, `testp` against comparisons of values.

use super::reference::Reference;
use super::{agrees, run};
use rustc_apfloat::Float;
use rustc_apfloat::ieee::{BFloat, Double, Half, Single};

/// Returns the lesser value or the greater, as the ISA says for NaN and zeros.
fn select<F: Reference>(a: F, b: F, greater: bool, propagates: bool) -> F {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => F::NAN,
        (true, false) => {
            if propagates {
                F::NAN
            } else {
                b
            }
        }
        (false, true) => {
            if propagates {
                F::NAN
            } else {
                a
            }
        }
        _ if a.is_zero() && b.is_zero() => {
            if a.is_negative() == greater {
                b
            } else {
                a
            }
        }
        _ => {
            if (a < b) == greater {
                b
            } else {
                a
            }
        }
    }
}

fn operands<F: Reference>(random: &mut fastrand::Rng) -> [u64; 3] {
    let a = if random.u32(..16) == 0 { 0 } else { F::random(random) };
    let b = match random.u32(..8) {
        0 => a,
        1 => a ^ 1 << (F::WIDTH - 1),
        _ => F::random(random),
    };
    [a, b, F::random(random)]
}

fn min_and_max<F: Reference>(ty: &str, flags: bool) {
    for (name, greater) in [("min", false), ("max", true)] {
        let two = |random: &mut fastrand::Rng| {
            let [a, b, _] = operands::<F>(random);
            [a, b]
        };
        agrees(&format!("{name}.{ty}"), two, |case| {
            let [a, b] = case.map(F::of);
            select(a, b, greater, false).canonical()
        });
        if flags {
            agrees(&format!("{name}.NaN.{ty}"), two, |case| {
                let [a, b] = case.map(F::of);
                select(a, b, greater, true).canonical()
            });
            agrees(&format!("{name}.xorsign.abs.{ty}"), two, |case| {
                let [a, b] = case.map(F::of);
                let result = select(a.abs(), b.abs(), greater, false);
                let negative = a.is_negative() != b.is_negative();
                (if negative && !result.is_nan() { -result } else { result }).canonical()
            });
        }
    }
}

#[test]
fn min_and_max_prefer_a_number_to_nan_and_order_zeros() {
    min_and_max::<Single>("f32", true);
    min_and_max::<Double>("f64", false);
    min_and_max::<Half>("f16", true);
    min_and_max::<BFloat>("bf16", true);
}

#[test]
fn ftz_flushes_the_operands_of_min_and_max() {
    agrees("max.ftz.f32", operands::<Single>, |case| {
        let [a, b, c] = case.map(|bits| Single::of(bits).flushed());
        select(select(a, b, true, false), c, true, false).canonical()
    });
    agrees(
        "min.ftz.NaN.f16",
        |random| {
            let [a, b, _] = operands::<Half>(random);
            [a, b]
        },
        |case| {
            let [a, b] = case.map(|bits| Half::of(bits).flushed());
            select(a, b, false, true).canonical()
        },
    );
}

#[test]
fn three_operands() {
    agrees("min.f32", operands::<Single>, |case| {
        let [a, b, c] = case.map(Single::of);
        select(select(a, b, false, false), c, false, false).canonical()
    });
    agrees("max.xorsign.abs.f32", operands::<Single>, |case| {
        let [a, b, c] = case.map(Single::of);
        let result = select(select(a.abs(), b.abs(), true, false), c.abs(), true, false);
        let negative = a.is_negative() ^ b.is_negative() ^ c.is_negative();
        (if negative && !result.is_nan() { -result } else { result }).canonical()
    });
}

#[test]
fn pairs_are_two_values() {
    let pairs = |random: &mut fastrand::Rng| {
        [0; 2].map(|_| Half::random(random) | Half::random(random) << 16)
    };
    agrees("max.f16x2", pairs, |[a, b]| {
        let half = |shift: u32| {
            select(Half::of(a >> shift & 0xffff), Half::of(b >> shift & 0xffff), true, false)
                .canonical()
        };
        half(0) | half(16) << 16
    });
    assert_eq!(run("neg.bf16x2", [0x3f80_bf80]), 0xbf80_3f80);
    assert_eq!(run("abs.f16x2", [0xbc00_3c00]), 0x3c00_3c00);
}

#[test]
fn signs() {
    assert_eq!(run("abs.f32", [0xbf80_0000]), 0x3f80_0000);
    assert_eq!(run("abs.ftz.f32", [0x8000_0001]), 0);
    assert_eq!(run("neg.ftz.f32", [0x0000_0001]), 0x8000_0000);
    assert_eq!(run("neg.f32", [0x0000_0001]), 0x8000_0001);
    assert_eq!(run("neg.f64", [0]), 1 << 63);
    // The sign of the first operand, the magnitude of the second.
    assert_eq!(run("copysign.f32", [0x8000_0000, 0x3f80_0000]), 0xbf80_0000);
    assert_eq!(run("copysign.f64", [0, 0xbff0_0000_0000_0000]), 0x3ff0_0000_0000_0000);
}

#[test]
fn testp_tests_each_property() {
    // Zero, subnormal, normal, infinite, NaN.
    let values = [0x8000_0000, 0x8000_0001, 0x0080_0000, 0xff80_0000, 0x7f80_0001];
    for (property, expected) in [
        ("finite", [1, 1, 1, 0, 0]),
        ("infinite", [0, 0, 0, 1, 0]),
        ("number", [1, 1, 1, 1, 0]),
        ("notanumber", [0, 0, 0, 0, 1]),
        ("normal", [1, 0, 1, 0, 0]),
        ("subnormal", [0, 1, 0, 0, 0]),
    ] {
        let single = values.map(|value| run(&format!("testp.{property}.f32"), [value]));
        assert_eq!(single, expected, "{property}");
        let double = [1 << 63, 1, 1 << 52, 0x7ff << 52, (0x7ff << 52) + 1];
        assert_eq!(
            double.map(|value| run(&format!("testp.{property}.f64"), [value])),
            expected,
            "{property}"
        );
    }
}
