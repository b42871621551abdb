//! Bit instructions against loops over single bits, as the PTX ISA defines them.

use super::{agrees, bits, run};

fn operand(width: u32) -> impl Fn(&mut fastrand::Rng) -> [u64; 4] {
    move |random| {
        let small = |random: &mut fastrand::Rng| {
            if random.bool() { random.u64(..70) } else { bits(random, 32) }
        };
        [bits(random, width), bits(random, width), small(random), small(random)]
    }
}

fn bit(x: u64, n: u32) -> bool {
    n < 64 && x >> n & 1 != 0
}

/// Collects the bits that a function gives.
fn collect(width: u32, f: impl Fn(u32) -> bool) -> u64 {
    (0..width).filter(|n| f(*n)).fold(0, |all, n| all | 1 << n)
}

#[test]
fn counts_and_searches() {
    for width in [32, 64] {
        agrees(&format!("popc.b{width}"), operand(width), |[a, ..]| {
            (0..width).filter(|n| bit(a, *n)).count() as u64
        });
        agrees(&format!("clz.b{width}"), operand(width), |[a, ..]| {
            (0..width).rev().take_while(|n| !bit(a, *n)).count() as u64
        });
        agrees(&format!("brev.b{width}"), operand(width), |[a, ..]| {
            collect(width, |n| bit(a, width - 1 - n))
        });
        for signed in [false, true] {
            let ty = if signed { 's' } else { 'u' };
            let find = |a: u64| {
                let a = if signed && bit(a, width - 1) { !a } else { a };
                (0..width).rev().find(|n| bit(a, *n))
            };
            agrees(&format!("bfind.{ty}{width}"), operand(width), |[a, ..]| {
                find(a).map_or(0xffff_ffff, u64::from)
            });
            agrees(&format!("bfind.shiftamt.{ty}{width}"), operand(width), |[a, ..]| {
                find(a).map_or(0xffff_ffff, |n| u64::from(width - 1 - n))
            });
        }
    }
}

/// Returns a position or length: its low 8 bits count in 32 bits, all of them in 64.
fn amount(x: u64, width: u32) -> u32 {
    if width == 32 { x as u32 & 0xff } else { (x as u32).min(255) }
}

#[test]
fn fields() {
    for width in [32, 64] {
        for signed in [false, true] {
            let ty = if signed { 's' } else { 'u' };
            let operands = |random: &mut fastrand::Rng| {
                let [a, _, c, d] = operand(width)(random);
                [a, c, d]
            };
            agrees(&format!("bfe.{ty}{width}"), operands, |[a, position, length]| {
                let position = amount(position, width);
                let length = amount(length, width);
                let sign = signed && length != 0 && bit(a, (position + length - 1).min(width - 1));
                collect(width, |n| {
                    if n < length && position + n < width { bit(a, position + n) } else { sign }
                })
            });
        }
        agrees(&format!("bfi.b{width}"), operand(width), |[a, b, position, length]| {
            let position = amount(position, width);
            let length = amount(length, width);
            collect(width, |n| {
                if n >= position && n - position < length {
                    bit(a, n - position)
                } else {
                    bit(b, n)
                }
            })
        });
    }
}

#[test]
fn masks() {
    let two = |random: &mut fastrand::Rng| {
        let [.., c, d] = operand(32)(random);
        [c, d]
    };
    agrees("bmsk.clamp.b32", two, |[position, length]| {
        collect(32, |n| u64::from(n) >= position && u64::from(n) - position < length)
    });
    agrees("bmsk.wrap.b32", two, |[position, length]| {
        let position = position as u32 & 31;
        let length = length as u32 & 31;
        collect(32, |n| n >= position && n - position < length)
    });
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        for (ty, signed) in [("u32", false), ("s32", true)] {
            let operands = |random: &mut fastrand::Rng| {
                let [a, _, _, d] = operand(32)(random);
                [a, d]
            };
            agrees(&format!("szext.{mode}.{ty}"), operands, |[a, length]| {
                if clamp && length >= 32 {
                    return a;
                }
                let length = length as u32 & 31;
                let sign = signed && length != 0 && bit(a, length - 1);
                collect(32, |n| if n < length { bit(a, n) } else { sign })
            });
        }
    }
}

/// The pseudocode of the ISA, with its variables.
fn find_nth_set(mask: u64, base: u64, offset: i32) -> u64 {
    if offset == 0 {
        return if bit(mask, base as u32) { base } else { 0xffff_ffff };
    }
    let mut position = base as i64;
    let mut count = i64::from(offset).abs() - 1;
    let step = if offset > 0 { 1 } else { -1 };
    while (0..32).contains(&position) {
        if bit(mask, position as u32) {
            if count == 0 {
                return position as u64;
            }
            count -= 1;
        }
        position += step;
    }
    0xffff_ffff
}

#[test]
fn the_nth_set_bit() {
    let operands = |random: &mut fastrand::Rng| {
        let offset = if random.u32(..8) == 0 {
            random.u64(..) & 0xffff_ffff
        } else {
            random.u64(..12).wrapping_sub(6)
        };
        [bits(random, 32), random.u64(..32), offset & 0xffff_ffff]
    };
    agrees("fns.b32", operands, |[mask, base, offset]| {
        find_nth_set(mask, base, offset as u32 as i32)
    });
}

#[test]
fn dot_products() {
    let operands =
        |random: &mut fastrand::Rng| [bits(random, 32), bits(random, 32), bits(random, 32)];
    let byte = |x: u64, n: usize, signed: bool| {
        let byte = (x as u32).to_le_bytes()[n];
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    let half = |x: u64, n: u32, signed: bool| {
        let half = (x >> (16 * n)) as u16;
        if signed { i64::from(half as i16) } else { i64::from(half) }
    };
    for (first, a_signed) in [("u32", false), ("s32", true)] {
        for (second, b_signed) in [("u32", false), ("s32", true)] {
            agrees(&format!("dp4a.{first}.{second}"), operands, |[a, b, c]| {
                let sum: i64 = (0..4).map(|n| byte(a, n, a_signed) * byte(b, n, b_signed)).sum();
                u64::from((sum + c as i64) as u32)
            });
            for (part, from) in [("lo", 0), ("hi", 2)] {
                agrees(&format!("dp2a.{part}.{first}.{second}"), operands, |[a, b, c]| {
                    let sum = half(a, 0, a_signed) * byte(b, from, b_signed)
                        + half(a, 1, a_signed) * byte(b, from + 1, b_signed);
                    u64::from((sum + c as i64) as u32)
                });
            }
        }
    }
}

#[test]
fn examples_of_special_values() {
    assert_eq!(run("clz.b32", [0]), 32);
    assert_eq!(run("clz.b64", [0]), 64);
    assert_eq!(run("bfind.s32", [0xffff_ffff]), 0xffff_ffff);
    assert_eq!(run("bfe.s32", [0x8000_0000, 40, 1]), 0xffff_ffff);
    assert_eq!(run("bfe.u32", [0x8000_0000, 31, 8]), 1);
    assert_eq!(run("bmsk.clamp.b32", [0, 32]), 0xffff_ffff);
    assert_eq!(run("bmsk.wrap.b32", [0, 32]), 0);
}
