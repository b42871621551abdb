//! Logic, shifts and permutations against definitions by single bits and bytes.

use super::{agrees, bits, refused, run, run_all};

fn two(width: u32) -> impl Fn(&mut fastrand::Rng) -> [u64; 2] {
    move |random| [bits(random, width), bits(random, width)]
}

#[test]
fn logic_of_all_widths() {
    for (ty, width) in [("pred", 1), ("b16", 16), ("b32", 32), ("b64", 64)] {
        agrees(&format!("and.{ty}"), two(width.max(2)), |[a, b]| a & b);
        agrees(&format!("or.{ty}"), two(width.max(2)), |[a, b]| a | b);
        agrees(&format!("xor.{ty}"), two(width.max(2)), |[a, b]| a ^ b);
        let mask = u64::MAX >> (64 - width);
        agrees(&format!("not.{ty}"), |random| [random.u64(..) & mask], |[a]| a ^ mask);
        if width > 1 {
            agrees(&format!("cnot.{ty}"), two(width), |[a, _]| u64::from(a == 0));
            agrees(&format!("mov.{ty}"), two(width), |[a, _]| a);
        }
    }
}

#[test]
fn shifts_by_the_width_or_more_leave_nothing_or_the_sign() {
    for width in [16u32, 32, 64] {
        let operands = move |random: &mut fastrand::Rng| {
            [bits(random, width), if random.bool() { random.u64(..70) } else { bits(random, 32) }]
        };
        agrees(&format!("shl.b{width}"), operands, |[a, n]| {
            if n >= u64::from(width) {
                0
            } else {
                ((u128::from(a) << n) as u64) & (u64::MAX >> (64 - width))
            }
        });
        for ty in ['b', 'u'] {
            agrees(&format!("shr.{ty}{width}"), operands, |[a, n]| {
                if n >= u64::from(width) { 0 } else { a >> n }
            });
        }
        agrees(&format!("shr.s{width}"), operands, |[a, n]| {
            let sign = a >> (width - 1) != 0;
            let bit =
                |place: u64| if place >= u64::from(width) { sign } else { a >> place & 1 != 0 };
            (0..u64::from(width))
                .fold(0, |all, place| all | u64::from(bit(place.saturating_add(n))) << place)
        });
    }
}

#[test]
fn funnel_shifts() {
    let operands = |random: &mut fastrand::Rng| {
        [
            bits(random, 32),
            bits(random, 32),
            if random.bool() { random.u64(..70) } else { bits(random, 32) },
        ]
    };
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        let amount = |n: u64| if clamp { n.min(32) } else { n % 32 };
        // The low half of a, b, zeros below; the high half of it; shifted as a number of 96 bits.
        agrees(&format!("shf.l.{mode}.b32"), operands, |[a, b, c]| {
            (((u128::from(b) << 32 | u128::from(a)) << amount(c)) >> 32) as u64 & 0xffff_ffff
        });
        agrees(&format!("shf.r.{mode}.b32"), operands, |[a, b, c]| {
            ((u128::from(b) << 32 | u128::from(a)) >> amount(c)) as u64 & 0xffff_ffff
        });
    }
}

#[test]
fn lop3_is_its_table() {
    let operands = |random: &mut fastrand::Rng| {
        [bits(random, 32), bits(random, 32), bits(random, 32), random.u64(..256), random.u64(..2)]
    };
    let reference = |[a, b, c, table, _]: [u64; 5]| {
        (0..32).fold(0, |all, n| {
            let index = (a >> n & 1) << 2 | (b >> n & 1) << 1 | c >> n & 1;
            all | (table >> index & 1) << n
        })
    };
    agrees("lop3.b32", operands, reference);
    agrees("lop3.or.b32", operands, reference);
    let cases = [[1, 0, 0, 0xf0, 0], [0, 0, 0, 0xf0, 1], [1, 0, 0, 0xf0, 1], [0, 0, 0, 0xf0, 0]];
    let second = |opcode| run_all(opcode, &cases).iter().map(|both| both[1]).collect::<Vec<_>>();
    assert_eq!(second("lop3.or.b32"), [1, 1, 1, 0]);
    assert_eq!(second("lop3.and.b32"), [0, 0, 1, 0]);
    assert_eq!(second("lop3.xor.b32"), [1, 1, 0, 0]);
}

#[test]
fn bytes_are_permuted_in_every_mode() {
    let operands = |random: &mut fastrand::Rng| {
        [bits(random, 32), bits(random, 32), random.u64(..) & 0xffff_ffff]
    };
    let bytes = |a: u64, b: u64, places: [u64; 4]| {
        let all = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
        places.iter().rev().fold(0, |word, place| word << 8 | u64::from(all[*place as usize]))
    };
    agrees("prmt.b32", operands, |[a, b, selector]| {
        let all = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
        (0..4).fold(0, |word, n| {
            let nibble = selector >> (4 * n) & 0xf;
            let byte = all[nibble as usize & 7];
            let byte = if nibble < 8 {
                byte
            } else if byte >= 0x80 {
                0xff
            } else {
                0
            };
            word | u64::from(byte) << (8 * n)
        })
    });
    // Places of the bytes, the lowest first.
    agrees("prmt.b32.f4e", operands, |[a, b, s]| bytes(a, b, [0, 1, 2, 3].map(|n| n + (s & 3))));
    agrees("prmt.b32.b4e", operands, |[a, b, s]| {
        bytes(a, b, [8, 7, 6, 5].map(|n| (n + (s & 3)) % 8))
    });
    agrees("prmt.b32.rc8", operands, |[a, b, s]| bytes(a, b, [s & 3; 4]));
    agrees("prmt.b32.ecl", operands, |[a, b, s]| {
        bytes(a, b, [0, 1, 2, 3].map(|n: u64| n.max(s & 3)))
    });
    agrees("prmt.b32.ecr", operands, |[a, b, s]| {
        bytes(a, b, [0, 1, 2, 3].map(|n: u64| n.min(s & 3)))
    });
    agrees("prmt.b32.rc16", operands, |[a, b, s]| {
        bytes(a, b, [0, 1, 0, 1].map(|n| n + 2 * (s & 1)))
    });
}

#[test]
fn selp_selects_by_a_predicate() {
    assert_eq!(run("selp.f32", [5, 6, 1]), 5);
    assert_eq!(run("selp.b64", [5, 6, 0]), 6);
    assert!(refused("selp.pred").contains("selp"));
}
