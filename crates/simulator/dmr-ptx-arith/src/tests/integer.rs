//! Integer arithmetic and the carry flag against 128-bit integers.

use super::{CASES, agrees, bits, decoded, run};
use crate::{Mask, WARP};

/// An integer type: its name, width, and whether it is signed.
const TYPES: [(&str, u32, bool); 6] = [
    ("u16", 16, false),
    ("u32", 32, false),
    ("u64", 64, false),
    ("s16", 16, true),
    ("s32", 32, true),
    ("s64", 64, true),
];

/// Returns the value of the bits.
fn value(bits: u64, width: u32, signed: bool) -> i128 {
    let value = i128::from(bits) % (1i128 << width);
    if signed && value >= 1i128 << (width - 1) { value - (1i128 << width) } else { value }
}

/// Returns the bits of a value that wraps around.
fn wrapped(value: i128, width: u32) -> u64 {
    value.rem_euclid(1i128 << width) as u64
}

fn three(width: u32) -> impl Fn(&mut fastrand::Rng) -> [u64; 3] {
    move |random| [bits(random, width), bits(random, width), bits(random, width)]
}

#[test]
fn sums_differences_and_products_wrap() {
    for (ty, width, signed) in TYPES {
        let check =
            |name: &str, reference: fn(i128, i128, i128, u32) -> i128, width_of_result: u32| {
                let operands = move |random: &mut fastrand::Rng| {
                    [bits(random, width), bits(random, width), bits(random, width_of_result)]
                };
                agrees(&format!("{name}.{ty}"), operands, |[a, b, c]| {
                    let of = |x| value(x, width, signed);
                    wrapped(
                        reference(of(a), of(b), value(c, width_of_result, signed), width),
                        width_of_result,
                    )
                });
            };
        check("add", |a, b, _, _| a + b, width);
        check("sub", |a, b, _, _| a - b, width);
        check("mul.lo", |a, b, _, _| a.wrapping_mul(b), width);
        check("mad.lo", |a, b, c, _| a.wrapping_mul(b).wrapping_add(c), width);
        check("sad", |a, b, c, _| c + (a - b).abs(), width);
        check("min", |a, b, _, _| a.min(b), width);
        check("max", |a, b, _, _| a.max(b), width);
        if width < 64 {
            check("mul.wide", |a, b, _, _| a * b, 2 * width);
            check("mad.wide", |a, b, c, _| a * b + c, 2 * width);
        }
        if (width, signed) != (64, false) {
            check("mul.hi", |a, b, _, width| (a * b) >> width, width);
            check("mad.hi", |a, b, c, width| ((a * b) >> width) + c, width);
        }
        if signed {
            check("abs", |a, _, _, _| a.abs(), width);
            check("neg", |a, _, _, _| -a, width);
        }
        // By zero: all ones.
        check("div", |a, b, _, _| if b == 0 { -1 } else { a / b }, width);
        check("rem", |a, b, _, _| if b == 0 { -1 } else { a % b }, width);
    }
}

#[test]
fn the_high_half_of_an_unsigned_product_of_64_bits() {
    agrees("mul.hi.u64", three(64), |[a, b, _]| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    agrees("mad.hi.u64", three(64), |[a, b, c]| {
        (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
    });
}

#[test]
fn sat_clamps_to_the_range_of_the_type() {
    let clamped = |x: i128| wrapped(x.clamp(i32::MIN.into(), i32::MAX.into()), 32);
    let of = |x| value(x, 32, true);
    agrees("add.sat.s32", three(32), |[a, b, _]| clamped(of(a) + of(b)));
    agrees("sub.sat.s32", three(32), |[a, b, _]| clamped(of(a) - of(b)));
    agrees("mad.hi.sat.s32", three(32), |[a, b, c]| clamped(((of(a) * of(b)) >> 32) + of(c)));
    agrees("mad24.hi.sat.s32", three(32), |[a, b, c]| {
        clamped(((value(a, 24, true) * value(b, 24, true)) >> 16) + of(c))
    });
}

#[test]
fn products_of_24_bits() {
    for (ty, signed) in [("u32", false), ("s32", true)] {
        let product = |a, b| value(a, 24, signed) * value(b, 24, signed);
        agrees(&format!("mul24.lo.{ty}"), three(32), |[a, b, _]| wrapped(product(a, b), 32));
        agrees(&format!("mul24.hi.{ty}"), three(32), |[a, b, _]| wrapped(product(a, b) >> 16, 32));
        agrees(&format!("mad24.lo.{ty}"), three(32), |[a, b, c]| {
            wrapped(product(a, b) + i128::from(c), 32)
        });
        agrees(&format!("mad24.hi.{ty}"), three(32), |[a, b, c]| {
            wrapped((product(a, b) >> 16) + i128::from(c), 32)
        });
    }
}

#[test]
fn packed_halves_are_independent() {
    for (ty, signed) in [("u16x2", false), ("s16x2", true)] {
        let check = |name: &str, reference: fn(i128, i128) -> i128, clamps: bool| {
            agrees(&format!("{name}.{ty}"), three(32), |[a, b, _]| {
                let half = |shift: u32| {
                    let result =
                        reference(value(a >> shift, 16, signed), value(b >> shift, 16, signed));
                    let (least, most) = if signed { (-0x8000, 0x7fff) } else { (0, 0xffff) };
                    wrapped(if clamps { result.clamp(least, most) } else { result }, 16)
                };
                half(0) | half(16) << 16
            });
        };
        check("add", |a, b| a + b, false);
        check("sub", |a, b| a - b, false);
        check("add.sat", |a, b| a + b, true);
        check("sub.sat", |a, b| a - b, true);
        check("min", i128::min, false);
        check("max", i128::max, false);
        if signed {
            check("min.relu", |a, b| a.min(b).max(0), false);
            check("max.relu", |a, b| a.max(b).max(0), false);
        }
    }
    agrees("min.relu.s32", three(32), |[a, b, _]| {
        wrapped(value(a, 32, true).min(value(b, 32, true)).max(0), 32)
    });
    agrees("max.relu.s32", three(32), |[a, b, _]| {
        wrapped(value(a, 32, true).max(value(b, 32, true)).max(0), 32)
    });
}

#[test]
fn the_least_value_divided_by_minus_one_wraps() {
    assert_eq!(run("div.s32", [0x8000_0000, 0xffff_ffff]), 0x8000_0000);
    assert_eq!(run("rem.s32", [0x8000_0000, 0xffff_ffff]), 0);
    assert_eq!(run("div.s64", [1 << 63, u64::MAX]), 1 << 63);
    assert_eq!(run("div.s16", [0x8000, 0xffff]), 0x8000);
    assert_eq!(run("abs.s32", [0x8000_0000]), 0x8000_0000);
    assert_eq!(run("rem.s32", [0xffff_fff9, 4]), 0xffff_fffd, "the sign is the dividend's");
}

/// Adds two numbers of 128 bits, each lane with a flag of its own.
#[test]
fn a_chain_with_carry_computes_on_wide_numbers() {
    let mut random = fastrand::Rng::with_seed(1);
    for (first, rest, ty, width) in [
        ("add.cc", "addc.cc", "u32", 32),
        ("sub.cc", "subc.cc", "u32", 32),
        ("add.cc", "addc.cc", "s64", 64),
        ("sub.cc", "subc.cc", "u64", 64),
    ] {
        let first = decoded(&format!("{first}.{ty}"));
        let rest = decoded(&format!("{rest}.{ty}"));
        let adds = first == decoded(&format!("add.cc.{ty}"));
        for _ in 0..CASES / WARP {
            let words: [[[u64; WARP]; 2]; 2] = std::array::from_fn(|_| {
                std::array::from_fn(|_| std::array::from_fn(|_| bits(&mut random, width)))
            });
            let mut results = [[0; WARP]; 2];
            let mut carry: Mask = random.u32(..);
            let before = carry;
            let [low, high] = &mut results;
            first.eval(&[&words[0][0], &words[1][0]], low, &mut [0; WARP], Mask::MAX, &mut carry);
            rest.eval(&[&words[0][1], &words[1][1]], high, &mut [0; WARP], Mask::MAX, &mut carry);
            let _ = before;
            for lane in 0..WARP {
                let [a, b] = [0, 1].map(|n| {
                    u128::from(words[n][0][lane]) | u128::from(words[n][1][lane]) << width
                });
                let (sum, over) = if adds { a.overflowing_add(b) } else { a.overflowing_sub(b) };
                let over = if width == 64 { over } else { sum >> (2 * width) & 1 != 0 };
                // A subtraction clears the flag if it borrows.
                let carries = over == adds;
                let result = u128::from(results[0][lane]) | u128::from(results[1][lane]) << width;
                let expected = if width == 64 { sum } else { sum & u128::from(u64::MAX) };
                assert_eq!(result, expected, "{ty} {a:x} {b:x}");
                assert_eq!(carry >> lane & 1 != 0, carries, "{ty} {a:x} {b:x}");
            }
        }
    }
}

#[test]
fn mad_with_carry_multiplies_wide_numbers() {
    let mut random = fastrand::Rng::with_seed(2);
    for (ty, width, signed) in [("u32", 32, false), ("s32", 32, true), ("u64", 64, false)] {
        let low = decoded(&format!("mad.lo.cc.{ty}"));
        let high = decoded(&format!("madc.hi.{ty}"));
        for _ in 0..CASES {
            let [a, b, c, d] = [0; 4].map(|_| bits(&mut random, width));
            let mut carry = random.u32(..);
            let mut results = [[0; WARP]; 2];
            let before = carry;
            let [first, second] = &mut results;
            low.eval(&[&[a; WARP], &[b; WARP], &[c; WARP]], first, &mut [0; WARP], 1, &mut carry);
            high.eval(&[&[a; WARP], &[b; WARP], &[d; WARP]], second, &mut [0; WARP], 1, &mut carry);
            let product = if width == 64 {
                u128::from(a) * u128::from(b)
            } else {
                (value(a, width, signed) * value(b, width, signed)) as u128
            };
            let sum = product.wrapping_add(u128::from(c) | u128::from(d) << width);
            assert_eq!(
                results[0][0],
                sum as u64 & (u64::MAX >> (64 - width)),
                "{ty} {a:x} {b:x} {c:x} {d:x}"
            );
            assert_eq!(
                results[1][0],
                (sum >> width) as u64 & (u64::MAX >> (64 - width)),
                "{ty} {a:x} {b:x} {c:x} {d:x}"
            );
            assert_eq!(carry >> 1, before >> 1, "flags of other lanes");
        }
    }
}

#[test]
fn a_lane_that_is_not_in_the_mask_keeps_its_result() {
    for mask in [0, 1, 0x8000_0001, 0x7fff_ffff] {
        let mut result = [7; WARP];
        decoded("add.u32").eval(
            &[&[1; WARP], &[2; WARP]],
            &mut result,
            &mut [0; WARP],
            mask,
            &mut 0,
        );
        for (lane, value) in result.into_iter().enumerate() {
            assert_eq!(value, if mask >> lane & 1 != 0 { 3 } else { 7 });
        }
    }
}

#[test]
fn without_cc_the_flag_stays() {
    let mut carry: Mask = 1;
    let mut result = [0; WARP];
    let max = [u64::from(u32::MAX); WARP];
    decoded("addc.u32").eval(&[&max, &max], &mut result, &mut [0; WARP], Mask::MAX, &mut carry);
    assert_eq!((result[0], result[1], carry), (0xffff_ffff, 0xffff_fffe, 1));
    decoded("add.u32").eval(&[&max, &max], &mut result, &mut [0; WARP], Mask::MAX, &mut carry);
    assert_eq!((result[0], carry), (0xffff_fffe, 1));
}
