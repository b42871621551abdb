//! SIMD video instructions against loops over bytes and half-words.

use super::{agrees, bits, refused, run};

fn elements(x: u64, width: u32, signed: bool) -> Vec<i64> {
    let element = |n: u32| {
        let value = (x >> (n * width) & ((1 << width) - 1)) as i64;
        if signed && value >= 1 << (width - 1) { value - (1 << width) } else { value }
    };
    (0..32 / width).map(element).collect()
}

#[test]
fn bytes_and_half_words_are_computed_apart() {
    let operands = |random: &mut fastrand::Rng| {
        let mixed = |random: &mut fastrand::Rng| bits(random, 32) ^ random.u64(..) & 0x80ff_0180;
        [mixed(random), mixed(random), bits(random, 32)]
    };
    type Operator = fn(i64, i64) -> i64;
    let operators: [(&str, Operator); 6] = [
        ("vadd", |a, b| a + b),
        ("vsub", |a, b| a - b),
        ("vavrg", |a, b| (a + b + i64::from(a + b >= 0)).div_euclid(2)),
        ("vabsdiff", |a, b| a.abs_diff(b) as i64),
        ("vmin", std::cmp::min),
        ("vmax", std::cmp::max),
    ];
    let types = [("u32", false), ("s32", true)];
    for (name, operator) in operators {
        for (count, width) in [(2, 16), (4, 8)] {
            for ((d, d_signed), (a, a_signed), (b, b_signed)) in
                types.iter().flat_map(|d| types.iter().map(move |a| (d, a, a)))
            {
                let results = move |x: u64, y: u64| -> Vec<i64> {
                    let both = elements(x, width, *a_signed)
                        .into_iter()
                        .zip(elements(y, width, *b_signed));
                    both.map(|(x, y)| operator(x, y)).collect()
                };
                let pack = move |results: Vec<i64>| {
                    results
                        .iter()
                        .rev()
                        .fold(0, |all, x| all << width | *x as u64 & ((1 << width) - 1))
                };
                agrees(&format!("{name}{count}.{d}.{a}.{b}"), operands, |[x, y, _]| {
                    pack(results(x, y))
                });
                agrees(&format!("{name}{count}.{d}.{a}.{b}.sat"), operands, |[x, y, _]| {
                    let (least, most) = if *d_signed {
                        (-1 << (width - 1), (1 << (width - 1)) - 1)
                    } else {
                        (0, (1 << width) - 1)
                    };
                    pack(results(x, y).into_iter().map(|x| x.clamp(least, most)).collect())
                });
                agrees(&format!("{name}{count}.{d}.{a}.{b}.add"), operands, |[x, y, z]| {
                    (z as i64 + results(x, y).iter().sum::<i64>()) as u64 & 0xffff_ffff
                });
            }
        }
    }
}

#[test]
fn vset_compares_and_scalars_are_refused() {
    assert_eq!(run("vset4.u32.u32.eq", [0x0102_0304, 0x0100_0304, 0]), 0x0100_0101);
    assert_eq!(run("vset4.s32.s32.lt", [0xff00_0080, 0x0000_007f, 0]), 0x0100_0001);
    assert_eq!(run("vset2.u32.u32.ge.add", [0x0002_0001, 0x0001_0001, 5]), 7);
    for opcode in [
        "vadd.u32.u32.u32",
        "vset4.u32.u32",
        "vadd4.u32.u32",
        "vadd4.u32.u32.u32.sat.add",
        "vset2.u32.u32.equ",
    ] {
        assert!(!refused(opcode).is_empty());
    }
}
