//! `mma.sync` of every shape and type against a naive product, with the layouts of `formulas`.

use super::formulas::{self as of, Formula, Shape, quad};
use super::{ALL, Random, eval};
use crate::Lanes;

/// A type of elements: how small integers are encoded, and between which.
#[derive(Clone, Copy)]
struct Kind {
    bits: usize,
    low: i64,
    high: i64,
    encode: fn(i64) -> u64,
}

fn float(value: i64, exponent_bits: u32, mantissa_bits: u32) -> u64 {
    if value == 0 {
        return 0;
    }
    let bits = (value as f32).to_bits();
    let exponent = (bits >> 23 & 255) + (1 << (exponent_bits - 1)) - 128;
    let mantissa = (bits & 0x7f_ffff) >> (23 - mantissa_bits);
    u64::from(
        (bits >> 31 << (exponent_bits + mantissa_bits)) | exponent << mantissa_bits | mantissa,
    )
}

const F16: Kind = Kind { bits: 16, low: -9, high: 9, encode: |value| float(value, 5, 10) };
const BF16: Kind = Kind { bits: 16, low: -9, high: 9, encode: |value| float(value, 8, 7) };
const E4M3: Kind = Kind { bits: 8, low: -8, high: 8, encode: |value| float(value, 4, 3) };
const E5M2: Kind = Kind { bits: 8, low: -4, high: 4, encode: |value| float(value, 5, 2) };
/// The low 13 bits are ignored: they are set here.
const TF32: Kind =
    Kind { bits: 32, low: -9, high: 9, encode: |value| (value as f32).to_bits() as u64 | 0x1fff };
const F32: Kind =
    Kind { bits: 32, low: -99, high: 99, encode: |value| u64::from((value as f32).to_bits()) };
const F64: Kind = Kind { bits: 64, low: -9, high: 9, encode: |value| (value as f64).to_bits() };
const S8: Kind = Kind { bits: 8, low: -128, high: 127, encode: |value| value as u64 & 0xff };
const U8: Kind = Kind { bits: 8, low: 0, high: 255, encode: |value| value as u64 };
const S4: Kind = Kind { bits: 4, low: -8, high: 7, encode: |value| value as u64 & 0xf };
const U4: Kind = Kind { bits: 4, low: 0, high: 15, encode: |value| value as u64 };
const B1: Kind = Kind { bits: 1, low: 0, high: 1, encode: |value| value as u64 };
const S32: Kind = Kind {
    bits: 32,
    low: -1 << 31,
    high: (1 << 31) - 1,
    encode: |value| value as u64 & 0xffff_ffff,
};

/// A matrix of small integers, row after row.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    columns: usize,
    values: Vec<i64>,
}

impl Table {
    fn random(rows: usize, columns: usize, kind: Kind, random: &mut Random) -> Self {
        Self {
            columns,
            values: (0..rows * columns).map(|_| random.between(kind.low, kind.high)).collect(),
        }
    }

    fn at(&self, (row, column): (usize, usize)) -> i64 {
        self.values[row * self.columns + column]
    }

    /// Writes it into the registers of `lanes`: element `i` of a lane is the value at
    /// `formula(lane, i)`.
    fn spread(&self, kind: Kind, formula: Formula, lanes: &[usize], registers: &mut Vec<Lanes>) {
        let elements = self.values.len() / lanes.len();
        let width = kind.bits.max(32);
        registers.resize((elements * kind.bits).div_ceil(width), [0; 32]);
        for &lane in lanes {
            for i in 0..elements {
                let bit = i * kind.bits;
                registers[bit / width][lane] |=
                    (kind.encode)(self.at(formula(lane, i))) << (bit % width);
            }
        }
    }
}

const WARP: [usize; 32] = {
    let mut lanes = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        lanes[lane] = lane;
        lane += 1;
    }
    lanes
};

/// Returns A times B plus C with `term` in place of the product, each sum mapped by `finish`.
fn product(
    a: &Table,
    b: &Table,
    c: &Table,
    term: fn(i64, i64) -> i64,
    finish: fn(i64) -> i64,
) -> Table {
    let columns = c.columns;
    let depth = a.columns;
    let value = |position: usize| {
        let row = position / columns;
        let column = position % columns;
        finish(
            (0..depth).map(|k| term(a.at((row, k)), b.at((k, column)))).sum::<i64>()
                + c.values[position],
        )
    };
    Table { columns, values: (0..c.values.len()).map(value).collect() }
}

/// Runs `name` on random matrices of `shape` and compares every register of D.
fn check(
    name: &str,
    shape: &Shape,
    [d_kind, a_kind, b_kind, c_kind]: [Kind; 4],
    term: fn(i64, i64) -> i64,
    finish: fn(i64) -> i64,
) {
    let mut random = Random(name.len() as u64);
    for round in 0..4 {
        let a = Table::random(shape.m, shape.k, a_kind, &mut random);
        let b = Table::random(shape.k, shape.n, b_kind, &mut random);
        let c = Table::random(shape.m, shape.n, c_kind, &mut random);
        let mut sources = Vec::new();
        let mut expected = Vec::new();
        for (table, kind, formula) in
            [(&a, a_kind, shape.a), (&b, b_kind, shape.b), (&c, c_kind, shape.c)]
        {
            let mut registers = Vec::new();
            table.spread(kind, formula, &WARP, &mut registers);
            sources.extend(registers);
        }
        product(&a, &b, &c, term, finish).spread(d_kind, shape.c, &WARP, &mut expected);
        let (out, result) = eval(&format!("mma.sync.aligned.{name}"), &sources, ALL, ALL);
        assert_eq!((result, out), (Ok(()), expected), "{name} {round}");
    }
}

fn check_floats(name: &str, shape: &Shape, kinds: [Kind; 4]) {
    check(name, shape, kinds, |a, b| a * b, |sum| sum);
}

#[test]
fn halves_are_multiplied_in_the_layouts_of_the_isa() {
    for (shape, text) in [(of::F16_16X8X8, "m16n8k8"), (of::F16_16X8X16, "m16n8k16")] {
        check_floats(&format!("{text}.row.col.f32.f16.f16.f32"), &shape, [F32, F16, F16, F32]);
        check_floats(&format!("{text}.row.col.f16.f16.f16.f16"), &shape, [F16, F16, F16, F16]);
        check_floats(&format!("{text}.row.col.f32.f16.f16.f16"), &shape, [F32, F16, F16, F16]);
        check_floats(&format!("{text}.row.col.f32.bf16.bf16.f32"), &shape, [F32, BF16, BF16, F32]);
    }
}

#[test]
fn tf32_and_bytes_of_floats_are_multiplied_in_the_layouts_of_the_isa() {
    check_floats(
        "m16n8k4.row.col.f32.tf32.tf32.f32",
        &of::TF32_16X8X4,
        [F32, TF32_EXACT, TF32_EXACT, F32],
    );
    check_floats("m16n8k8.row.col.f32.tf32.tf32.f32", &of::TF32_16X8X8, [F32, TF32, TF32, F32]);
    check_floats("m16n8k32.row.col.f32.e4m3.e5m2.f32", &of::S8_16X8X32, [F32, E4M3, E5M2, F32]);
    check_floats(
        "m16n8k32.row.col.kind::f8f6f4.f16.e5m2.e4m3.f16",
        &of::S8_16X8X32,
        [F16, E5M2, E4M3, F16],
    );
    check_floats("m16n8k16.row.col.f32.e4m3.e4m3.f32", &of::S8_16X8X16, [F32, E4M3, E4M3, F32]);
}

const TF32_EXACT: Kind = Kind { encode: |value| u64::from((value as f32).to_bits()), ..TF32 };

#[test]
fn doubles_are_multiplied_in_the_layouts_of_the_isa() {
    check_floats("m8n8k4.row.col.f64.f64.f64.f64", &of::F64_8X8X4, [F64; 4]);
    check_floats("m16n8k4.row.col.f64.f64.f64.f64", &Shape { ..of::TF32_16X8X4 }, [F64; 4]);
    check_floats("m16n8k8.row.col.f64.f64.f64.f64", &Shape { ..of::TF32_16X8X8 }, [F64; 4]);
    check_floats("m16n8k16.row.col.rn.f64.f64.f64.f64", &of::F64_16X8X16, [F64; 4]);
}

#[test]
fn integers_are_multiplied_in_the_layouts_of_the_isa_and_the_sum_wraps() {
    let bytes =
        [(of::S8_8X8X16, "m8n8k16"), (of::S8_16X8X16, "m16n8k16"), (of::S8_16X8X32, "m16n8k32")];
    let nibbles =
        [(of::S4_8X8X32, "m8n8k32"), (of::S4_16X8X32, "m16n8k32"), (of::S4_16X8X64, "m16n8k64")];
    for (shapes, kinds) in [(bytes, [(S8, "s8"), (U8, "u8")]), (nibbles, [(S4, "s4"), (U4, "u4")])]
    {
        for (shape, text) in shapes {
            for (a, a_name) in kinds {
                for (b, b_name) in kinds {
                    let name = format!("{text}.row.col.s32.{a_name}.{b_name}.s32");
                    check(
                        &name,
                        &shape,
                        [S32, a, b, S32],
                        |a, b| a * b,
                        |sum| i64::from(sum as i32),
                    );
                }
            }
        }
    }
}

#[test]
fn a_saturating_sum_stops_at_the_ends_of_the_range() {
    let saturate = |sum: i64| sum.clamp(i32::MIN.into(), i32::MAX.into());
    let near_the_end = Kind { low: i64::from(i32::MAX) - 9, ..S32 };
    let near_the_start = Kind { high: i64::from(i32::MIN) + 9, ..S32 };
    for c in [near_the_end, near_the_start] {
        let name = "m16n8k32.row.col.satfinite.s32.s8.s8.s32";
        check(name, &of::S8_16X8X32, [S32, S8, S8, c], |a, b| a * b, saturate);
    }
}

#[test]
fn single_bits_are_counted_where_they_differ_or_are_both_set() {
    let shapes = [
        (of::B1_8X8X128, "m8n8k128"),
        (of::B1_16X8X128, "m16n8k128"),
        (of::B1_16X8X256, "m16n8k256"),
    ];
    for (shape, text) in shapes {
        let wrap = |sum: i64| i64::from(sum as i32);
        let kinds = [S32, B1, B1, S32];
        check(&format!("{text}.row.col.s32.b1.b1.s32.xor.popc"), &shape, kinds, |a, b| a ^ b, wrap);
        check(&format!("{text}.row.col.s32.b1.b1.s32.and.popc"), &shape, kinds, |a, b| a & b, wrap);
    }
}

#[test]
fn four_products_of_halves_are_held_by_two_groups_of_four_lanes_each() {
    let mut random = Random(4);
    let layouts_a = [("row", quad::A_BY_ROWS), ("col", quad::A_BY_COLUMNS)];
    let layouts_b = [("row", quad::B_BY_ROWS), ("col", quad::B_BY_COLUMNS)];
    let sums = [("f16", F16, quad::C_F16), ("f32", F32, quad::C_F32)];
    for (a_name, a_formula) in layouts_a {
        for (b_name, b_formula) in layouts_b {
            for (c_name, c_kind, c_formula) in sums {
                for (d_name, d_kind, d_formula) in sums {
                    let mut a_registers = Vec::new();
                    let mut b_registers = Vec::new();
                    let mut c_registers = Vec::new();
                    let mut expected = Vec::new();
                    for lanes in &quad::LANES {
                        let a = Table::random(8, 4, F16, &mut random);
                        let b = Table::random(4, 8, F16, &mut random);
                        let c = Table::random(8, 8, c_kind, &mut random);
                        a.spread(F16, a_formula, lanes, &mut a_registers);
                        b.spread(F16, b_formula, lanes, &mut b_registers);
                        c.spread(c_kind, c_formula, lanes, &mut c_registers);
                        let d = product(&a, &b, &c, |a, b| a * b, |sum| sum);
                        d.spread(d_kind, d_formula, lanes, &mut expected);
                    }
                    let sources = [a_registers, b_registers, c_registers].concat();
                    let name = format!(
                        "mma.sync.aligned.m8n8k4.{a_name}.{b_name}.{d_name}.f16.f16.{c_name}"
                    );
                    let (out, result) = eval(&name, &sources, ALL, ALL);
                    assert_eq!((result, out), (Ok(()), expected), "{name}");
                }
            }
        }
    }
}

/// Runs a product of 16 times 8 times 16 halves whose first row is `row`, with a column of ones,
/// and returns the first element of D.
fn first_sum(name: &str, row: [u64; 16], c: u64) -> u64 {
    let mut sources = vec![[0; 32]; 6];
    for (k, bits) in row.into_iter().enumerate() {
        let lane = k % 8 / 2;
        sources[k / 8 * 2][lane] |= bits << (k % 2 * 16);
        sources[4 + k / 8][lane] |= 0x3c00 << (k % 2 * 16);
    }
    let registers = if name.ends_with("f16") { 2 } else { 4 };
    let mut sums = vec![[0; 32]; registers];
    sums[0][0] = c;
    sources.extend(sums);
    let (out, _) = eval(&format!("mma.sync.aligned.m16n8k16.row.col.{name}"), &sources, ALL, ALL);
    out[0][0] & if registers == 2 { 0xffff } else { u64::MAX }
}

#[test]
fn a_sum_of_floats_is_rounded_once_to_the_nearest() {
    // 2^24 and sixteen ones: a sum that is rounded after each addition stays at 2^24.
    let large = u64::from(16_777_216_f32.to_bits());
    assert_eq!(
        first_sum("f32.f16.f16.f32", [0x3c00; 16], large),
        u64::from(16_777_232_f32.to_bits())
    );
    // 2048 and three ones are half way between the halves 2050 and 2052.
    let mut row = [0; 16];
    row[..3].fill(0x3c00);
    assert_eq!(first_sum("f16.f16.f16.f16", row, 0x6800), 0x6802);
    row[3] = 1;
    assert_eq!(first_sum("f16.f16.f16.f16", row, 0x6800), 0x6802);
    row[..3].fill(0);
    assert_eq!(first_sum("f16.f16.f16.f16", row, 0), 1, "a subnormal half is a number");
    assert_eq!(
        first_sum("f16.f16.f16.f16", [0x7bff; 16], 0),
        0x7c00,
        "too large a sum is infinite"
    );
}

#[test]
fn a_sum_of_opposite_infinities_is_the_canonical_nan() {
    let mut row = [0; 16];
    row[0] = 0x7c00;
    row[9] = 0xfc00;
    assert_eq!(first_sum("f32.f16.f16.f32", row, 0), 0x7fff_ffff);
    assert_eq!(first_sum("f16.f16.f16.f16", row, 0), 0x7fff);
    row[9] = 0;
    assert_eq!(first_sum("f32.f16.f16.f32", row, 0), 0x7f80_0000);
}
