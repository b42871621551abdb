//! `cvt` against software floating point and 128-bit integers.

use super::reference::{MODES, Reference};
use super::{agrees, bits, decoded, refused, run};
use rustc_apfloat::ieee::{BFloat, Double, Float8E4M3FN, Float8E5M2, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

/// The integer types: name, width, signed.
const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("u16", 16, false),
    ("u32", 32, false),
    ("u64", 64, false),
    ("s8", 8, true),
    ("s16", 16, true),
    ("s32", 32, true),
    ("s64", 64, true),
];

fn value(bits: u64, width: u32, signed: bool) -> i128 {
    let value = i128::from(bits) % (1i128 << width);
    if signed && value >= 1i128 << (width - 1) { value - (1i128 << width) } else { value }
}

fn clamped(value: i128, width: u32, signed: bool) -> u64 {
    let (least, most) = if signed {
        (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
    } else {
        (0, (1i128 << width) - 1)
    };
    value.clamp(least, most) as u64
}

#[test]
fn integers_are_extended_truncated_or_clamped() {
    for (from, width, signed) in INTEGERS {
        for (to, to_width, to_signed) in INTEGERS {
            // The register is wider than the source type: what is above is not read.
            agrees(
                &format!("cvt.{to}.{from}"),
                |random| [bits(random, 64)],
                |[a]| value(value(a, width, signed) as u64, to_width, to_signed) as u64,
            );
            agrees(
                &format!("cvt.sat.{to}.{from}"),
                |random| [bits(random, 64)],
                |[a]| clamped(value(a, width, signed), to_width, to_signed),
            );
        }
    }
}

/// Returns bits of a floating-point value near the range of an integer type, or of any.
fn near_integers<F: Reference>(random: &mut fastrand::Rng) -> [u64; 1] {
    if random.bool() {
        return [F::random(random)];
    }
    let value = i128::from(random.u64(..)) >> random.u32(..64);
    let value = if random.bool() { -value } else { value };
    // In halves and quarters.
    let near = F::from_i128(value).value.scalbn(-random.i32(..3));
    [near.to_bits() as u64 & (u64::MAX >> (64 - F::WIDTH))]
}

fn to_integers<F: Reference>(from: &str) {
    let modes = [
        ("rni", Round::NearestTiesToEven),
        ("rzi", Round::TowardZero),
        ("rmi", Round::TowardNegative),
        ("rpi", Round::TowardPositive),
    ];
    for (to, width, signed) in INTEGERS {
        for (mode, round) in modes {
            for ftz in ["", ".ftz"] {
                if ftz == ".ftz" && from != "f32" {
                    continue;
                }
                agrees(&format!("cvt.{mode}{ftz}.{to}.{from}"), near_integers::<F>, |[a]| {
                    let a = if ftz.is_empty() { F::of(a) } else { F::of(a).flushed() };
                    if a.is_nan() {
                        let zero = from != "f64" && width != 64;
                        return if zero {
                            0
                        } else {
                            value(1 << (width - 1), width, signed) as u64
                        };
                    }
                    let integer = a.to_i128_r(128, round, &mut false).value;
                    clamped(integer, width, signed)
                });
            }
        }
    }
}

#[test]
fn values_are_rounded_to_integers_and_clamped() {
    to_integers::<Single>("f32");
    to_integers::<Double>("f64");
    to_integers::<Half>("f16");
    to_integers::<BFloat>("bf16");
}

#[test]
fn nan_becomes_zero_or_the_highest_bit() {
    let nan = u64::from(f32::NAN.to_bits());
    assert_eq!(run("cvt.rzi.s32.f32", [nan]), 0);
    assert_eq!(run("cvt.rzi.s64.f32", [nan]), 1 << 63);
    assert_eq!(run("cvt.rzi.u64.f32", [nan]), 1 << 63);
    assert_eq!(run("cvt.rzi.u32.f64", [f64::NAN.to_bits()]), 0x8000_0000);
    assert_eq!(run("cvt.rzi.s32.f64", [f64::NAN.to_bits()]), 0xffff_ffff_8000_0000);
}

fn from_integers<F: Reference>(to: &str) {
    for (from, width, signed) in INTEGERS {
        for (mode, round) in MODES {
            agrees(
                &format!("cvt.{mode}.{to}.{from}"),
                |random| [bits(random, width)],
                |[a]| F::from_i128_r(value(a, width, signed), round).value.canonical(),
            );
        }
        agrees(
            &format!("cvt.rn.sat.{to}.{from}"),
            |random| [bits(random, width)],
            |[a]| {
                F::from_i128_r(value(a, width, signed), Round::NearestTiesToEven)
                    .value
                    .saturated()
                    .canonical()
            },
        );
    }
}

#[test]
fn integers_are_rounded_once_to_floating_point() {
    from_integers::<Single>("f32");
    from_integers::<Double>("f64");
    from_integers::<Half>("f16");
    from_integers::<BFloat>("bf16");
}

/// Returns operands whose values in the narrower format are near halfway cases, overflows and
/// subnormals.
fn near_format<F: Reference, T: Reference + FloatConvert<F>>(
    random: &mut fastrand::Rng,
) -> [u64; 1] {
    if random.u32(..4) == 0 {
        return [F::random(random)];
    }
    let near: F = T::of(T::random(random)).convert_r(Round::TowardZero, &mut false).value;
    let bits = near.to_bits() as u64;
    let extra = F::FRACTION.saturating_sub(T::FRACTION);
    let half = if extra > 0 { random.u64(..4) << (extra - 1).saturating_sub(1) } else { 0 };
    [bits.wrapping_add(half).wrapping_add(random.u64(..3)).wrapping_sub(1)
        & (u64::MAX >> (64 - F::WIDTH))]
}

fn between<F: Reference + FloatConvert<T>, T: Reference + FloatConvert<F>>(
    to: &str,
    from: &str,
    rounds: bool,
) {
    for (mode, round) in MODES {
        let mode = if rounds { format!("{mode}.") } else { String::new() };
        let convert = |value: F| -> T { value.convert_r(round, &mut false).value };
        agrees(&format!("cvt.{mode}{to}.{from}"), near_format::<F, T>, |[a]| {
            let is_moved = F::of(a).is_nan() && (from, to) == ("bf16", "f32");
            if is_moved { a << 16 } else { convert(F::of(a)).canonical() }
        });
        agrees(&format!("cvt.{mode}sat.{to}.{from}"), near_format::<F, T>, |[a]| {
            convert(F::of(a)).saturated().canonical()
        });
        if to == "f32" || from == "f32" {
            agrees(&format!("cvt.{mode}ftz.{to}.{from}"), near_format::<F, T>, |[a]| {
                let flushes = from == "f32" && to != "f16";
                let a = if flushes { F::of(a).flushed() } else { F::of(a) };
                let result = convert(a);
                // It is below the least normal value if it is so in a range without subnormal
                // values.
                let is_tiny = convert(a.scalbn(8)).abs() < T::smallest_normalized().scalbn(8);
                let zero = if result.is_negative() { -T::ZERO } else { T::ZERO };
                let result = if to == "f32" && is_tiny { zero } else { result };
                result.canonical()
            });
        }
        if !rounds {
            break;
        }
    }
}

#[test]
fn values_are_rounded_once_to_a_narrower_format() {
    between::<Double, Single>("f32", "f64", true);
    between::<Double, Half>("f16", "f64", true);
    between::<Double, BFloat>("bf16", "f64", true);
    between::<Single, Half>("f16", "f32", true);
    between::<Single, BFloat>("bf16", "f32", true);
    between::<Half, BFloat>("bf16", "f16", true);
    between::<BFloat, Half>("f16", "bf16", true);
}

#[test]
fn values_are_kept_by_a_wider_format() {
    between::<Half, Single>("f32", "f16", false);
    between::<BFloat, Single>("f32", "bf16", false);
    between::<Half, Double>("f64", "f16", false);
    between::<BFloat, Double>("f64", "bf16", false);
    between::<Single, Double>("f64", "f32", false);
}

#[test]
fn a_format_rounds_to_its_own_integral_values() {
    fn integral<F: Reference>(ty: &str) {
        for (mode, round) in [
            ("rni", Round::NearestTiesToEven),
            ("rzi", Round::TowardZero),
            ("rmi", Round::TowardNegative),
            ("rpi", Round::TowardPositive),
        ] {
            agrees(&format!("cvt.{mode}.{ty}.{ty}"), near_integers::<F>, |[a]| {
                F::of(a).round_to_integral(round).value.canonical()
            });
        }
    }
    integral::<Single>("f32");
    integral::<Double>("f64");
    integral::<Half>("f16");
    assert_eq!(run("cvt.ftz.f32.f32", [0x8000_0001]), 0x8000_0000);
    assert_eq!(run("cvt.sat.f32.f32", [0x4000_0000]), 0x3f80_0000);
}

#[test]
fn tf32_keeps_ten_bits_of_fraction() {
    let operand = |random: &mut fastrand::Rng| {
        let near = Single::random(random) & !0x1fff
            | [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff][random.usize(..6)];
        [near]
    };
    // On the bits of a magnitude, which a carry makes the next exponent, or infinity.
    let check = |opcode: &str, rounded: fn(u64) -> u64| {
        agrees(opcode, operand, |[a]| {
            let magnitude = a & 0x7fff_ffff;
            if magnitude > 0x7f80_0000 {
                // The rounding that PTX has longest is compiled to integer instructions.
                return if opcode.contains("rna") { a & !0x1fff } else { 0x7fff_e000 };
            }
            a & 0x8000_0000 | rounded(magnitude) & !0x1fff
        });
    };
    check("cvt.rna.tf32.f32", |a| if a == 0x7f80_0000 { a } else { a + 0x1000 });
    check("cvt.rn.tf32.f32", |a| a + 0xfff + (a >> 13 & 1));
    check("cvt.rz.tf32.f32", |a| a);
}

#[test]
fn two_f32_are_joined_to_a_pair_with_the_first_above() {
    let two = |random: &mut fastrand::Rng| {
        [near_format::<Single, Half>(random)[0], near_format::<Single, BFloat>(random)[0]]
    };
    let half = |a: u64, relu: bool, finite: bool| {
        let value: Half = Single::of(a).convert_r(Round::NearestTiesToEven, &mut false).value;
        let value =
            if finite && value.is_infinite() { Half::largest().copy_sign(value) } else { value };
        if relu && value.is_negative() && !value.is_nan() { 0 } else { value.canonical() }
    };
    for (words, relu, finite) in [
        ("", false, false),
        (".relu", true, false),
        (".satfinite", false, true),
        (".relu.satfinite", true, true),
    ] {
        agrees(&format!("cvt.rn{words}.f16x2.f32"), two, |[a, b]| {
            half(a, relu, finite) << 16 | half(b, relu, finite)
        });
        agrees(&format!("cvt.rn{words}.f16.f32"), two, |[a, _]| half(a, relu, finite));
    }
    agrees("cvt.rz.bf16x2.f32", two, |[a, b]| {
        let bfloat = |a| -> BFloat { Single::of(a).convert_r(Round::TowardZero, &mut false).value };
        bfloat(a).canonical() << 16 | bfloat(b).canonical()
    });
}

#[test]
fn eight_bit_pairs() {
    fn eight<F: Reference + FloatConvert<T>, T: Float>(a: u64, nan: u64) -> u64 {
        let value = F::of(a);
        let result: T = value.convert_r(Round::NearestTiesToEven, &mut false).value;
        if value.is_nan() {
            nan
        } else if result.is_nan() || result.is_infinite() {
            T::largest().to_bits() as u64 | u64::from(value.is_negative()) << 7
        } else {
            result.to_bits() as u64
        }
    }
    let operand = |random: &mut fastrand::Rng| {
        // Exponents from far below the least subnormal to beyond the greatest value.
        let sign = random.u64(..2) << 31;
        let exponent = random.u64(100..150) << 23;
        let fraction = (random.u64(..128) << 16) + [0, 1, 0x7fff][random.usize(..3)];
        if random.u32(..16) == 0 { Single::random(random) } else { sign | exponent | fraction }
    };
    let two = |random: &mut fastrand::Rng| [operand(random), operand(random)];
    agrees("cvt.rn.satfinite.e4m3x2.f32", two, |[a, b]| {
        eight::<Single, Float8E4M3FN>(a, 0x7f) << 8 | eight::<Single, Float8E4M3FN>(b, 0x7f)
    });
    agrees("cvt.rn.satfinite.e5m2x2.f32", two, |[a, b]| {
        eight::<Single, Float8E5M2>(a, 0x7f) << 8 | eight::<Single, Float8E5M2>(b, 0x7f)
    });
    let pair = |random: &mut fastrand::Rng| [Half::random(random) << 16 | Half::random(random)];
    agrees("cvt.rn.satfinite.e4m3x2.f16x2", pair, |[a]| {
        eight::<Half, Float8E4M3FN>(a >> 16, 0x7f) << 8
            | eight::<Half, Float8E4M3FN>(a & 0xffff, 0x7f)
    });
    agrees("cvt.rn.satfinite.e5m2x2.f16x2", pair, |[a]| {
        eight::<Half, Float8E5M2>(a >> 16, 0x7f) << 8 | eight::<Half, Float8E5M2>(a & 0xffff, 0x7f)
    });
    for a in 0..=0xffu64 {
        let e4m3: Half =
            Float8E4M3FN::from_bits(a.into()).convert_r(Round::TowardZero, &mut false).value;
        let e5m2: Half =
            Float8E5M2::from_bits(a.into()).convert_r(Round::TowardZero, &mut false).value;
        assert_eq!(run("cvt.rn.f16x2.e4m3x2", [a << 8]), e4m3.canonical() << 16, "{a:x}");
        assert_eq!(run("cvt.rn.f16x2.e5m2x2", [a]), e5m2.canonical(), "{a:x}");
    }
}

#[test]
fn integers_are_packed() {
    let operands =
        |random: &mut fastrand::Rng| [bits(random, 32), bits(random, 32), bits(random, 32)];
    let narrow = |x: u64, width: u32, signed: bool| {
        clamped(value(x, 32, true), width, signed) & ((1 << width) - 1)
    };
    for (ty, width, signed) in [("u16", 16, false), ("s16", 16, true)] {
        agrees(
            &format!("cvt.pack.sat.{ty}.s32"),
            |random| {
                let [a, b, _] = operands(random);
                [a, b]
            },
            |[a, b]| narrow(a, width, signed) << 16 | narrow(b, width, signed),
        );
    }
    for (ty, width, signed) in [("u8", 8, false), ("s8", 8, true)] {
        agrees(&format!("cvt.pack.sat.{ty}.s32.b32"), operands, |[a, b, c]| {
            (c << 16 | narrow(a, width, signed) << 8 | narrow(b, width, signed)) & 0xffff_ffff
        });
    }
}

#[test]
fn rounding_modes_are_where_the_isa_has_them() {
    for opcode in [
        "cvt.f32.s32",
        "cvt.s32.f32",
        "cvt.rn.s32.f32",
        "cvt.rni.f32.s32",
        "cvt.f16.f32",
        "cvt.rn.f64.f32",
        "cvt.rn.u32.s32",
        "cvt.rn.e4m3x2.f32",
        "cvt.rna.f16.f32",
        "cvt.ftz.f64.f16",
        "cvt.u32.pred",
        "cvt.rs.f16x2.f32",
    ] {
        assert!(refused(opcode).contains("cvt"), "{opcode}");
    }
    assert!(decoded("cvt.rzi.s8.f32").operands().extends);
    assert!(!decoded("cvt.rn.f32.s32").operands().extends);
}
