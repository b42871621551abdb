//! Matrices between memory and registers: which addresses, and where the bytes go.

use super::{ALL, Random, eval, lanes, registers, transfer};
use crate::Lanes;
use crate::lanes::{Defect, Role, Window, Work};

/// Loads from `memory` by the pieces of a transfer. Panics at an access outside of it.
fn load(name: &str, memory: &[u8], addresses: &Lanes, stride: Option<u64>) -> Vec<Lanes> {
    let transfer = transfer(name);
    let stride = stride.map(|stride| [stride; 32]);
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    transfer.pieces(addresses, stride.as_ref(), ALL, &mut pieces).unwrap();
    for piece in pieces {
        bytes.extend_from_slice(&memory[piece.address as usize..][..piece.bytes as usize]);
    }
    let mut out = vec![[0xdead; 32]; registers(&transfer.operands())];
    transfer.unpack(&bytes, ALL, &mut Work::default(), &mut out);
    out
}

/// Stores into `memory` by the pieces of a transfer. Panics at an access outside of it.
fn store(name: &str, memory: &mut [u8], addresses: &Lanes, stride: Option<u64>, value: &[Lanes]) {
    let transfer = transfer(name);
    let stride = stride.map(|stride| [stride; 32]);
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    transfer.pieces(addresses, stride.as_ref(), ALL, &mut pieces).unwrap();
    transfer.pack(&value.iter().collect::<Vec<_>>(), ALL, &mut Work::default(), &mut bytes);
    let mut rest = &bytes[..];
    for piece in pieces {
        let (now, later) = rest.split_at(piece.bytes as usize);
        memory[piece.address as usize..][..now.len()].copy_from_slice(now);
        rest = later;
    }
    assert!(rest.is_empty());
}

/// Returns memory of 32 rows of 16 bytes and the address of a row for each lane, in no order.
fn scattered_rows() -> (Vec<u8>, Lanes) {
    let mut random = Random(16);
    let memory = (0..512).map(|_| random.next() as u8).collect();
    (memory, lanes(|lane| (lane as u64 * 13 + 5) % 32 * 16))
}

fn half(memory: &[u8], address: u64, index: usize) -> u64 {
    let at = address as usize + 2 * index;
    u64::from(u16::from_le_bytes([memory[at], memory[at + 1]]))
}

#[test]
fn ldmatrix_gives_each_lane_two_elements_of_a_row_or_of_a_column() {
    let (memory, addresses) = scattered_rows();
    for count in [1, 2, 4] {
        let out = load(
            &format!("ldmatrix.sync.aligned.m8n8.x{count}.shared.b16"),
            &memory,
            &addresses,
            None,
        );
        assert_eq!(out.len(), count);
        for (matrix, out) in out.iter().enumerate() {
            let expected = lanes(|lane| {
                let row = addresses[8 * matrix + lane / 4];
                half(&memory, row, 2 * (lane % 4)) | half(&memory, row, 2 * (lane % 4) + 1) << 16
            });
            assert_eq!(*out, expected, "x{count}, matrix {matrix}");
        }
        let out = load(
            &format!("ldmatrix.sync.aligned.m8n8.x{count}.trans.shared.b16"),
            &memory,
            &addresses,
            None,
        );
        for (matrix, out) in out.iter().enumerate() {
            let expected = lanes(|lane| {
                let row = |place| addresses[8 * matrix + 2 * (lane % 4) + place];
                half(&memory, row(0), lane / 4) | half(&memory, row(1), lane / 4) << 16
            });
            assert_eq!(*out, expected, "x{count}, matrix {matrix}, transposed");
        }
    }
}

#[test]
fn stmatrix_writes_what_ldmatrix_reads() {
    let (memory, addresses) = scattered_rows();
    for trans in ["", ".trans"] {
        let name = format!("ldmatrix.sync.aligned.m8n8.x4{trans}.shared::cta.b16");
        let loaded = load(&name, &memory, &addresses, None);
        let mut written = vec![0; 512];
        let name = format!("stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16");
        store(&name, &mut written, &addresses, None, &loaded);
        assert!(written == memory, "{name}");
    }
}

#[test]
fn each_lane_of_ldmatrix_reads_one_row_of_sixteen_bytes() {
    let (_, addresses) = scattered_rows();
    let transfer = transfer("ldmatrix.sync.aligned.m8n8.x2.shared.b16");
    let mut pieces = Vec::new();
    assert_eq!(
        transfer.pieces(&addresses, None, 0xffff, &mut pieces),
        Err(Defect::Missing(0xffff_0000))
    );
    assert_eq!((transfer.is_store, transfer.window, pieces.len()), (false, Window::Shared, 16));
    for (lane, piece) in pieces.iter().enumerate() {
        assert_eq!((piece.lane as usize, piece.address), (lane, addresses[lane]));
        assert_eq!((piece.bytes, piece.align), (16, 16));
    }
}

#[test]
fn movmatrix_transposes() {
    let element = |row: usize, column: usize| (row * 8 + column) as u64;
    let held =
        lanes(|lane| element(lane / 4, lane % 4 * 2) | element(lane / 4, lane % 4 * 2 + 1) << 16);
    let transposed =
        lanes(|lane| element(lane % 4 * 2, lane / 4) | element(lane % 4 * 2 + 1, lane / 4) << 16);
    assert_eq!(eval("movmatrix.sync.aligned.m8n8.trans.b16", &[held], ALL, ALL).0, [transposed]);
}

#[test]
fn a_wmma_load_whose_lanes_disagree_is_a_defect() {
    let transfer = transfer("wmma.load.a.sync.aligned.row.m16n16k16.global.f16");
    assert_eq!(transfer.window, Window::Global);
    assert_eq!(transfer.operands().sources.last().map(|source| source.role), Some(Role::Stride));
    let address = lanes(|lane| if lane == 9 { 64 } else { 32 });
    let mut pieces = Vec::new();
    assert_eq!(transfer.pieces(&address, None, ALL, &mut pieces), Err(Defect::Differs { lane: 9 }));
    let stride = lanes(|lane| if lane < 3 { 16 } else { 24 });
    assert_eq!(
        transfer.pieces(&[32; 32], Some(&stride), ALL, &mut pieces),
        Err(Defect::Differs { lane: 3 })
    );
    pieces.clear();
    assert_eq!(transfer.pieces(&[32; 32], Some(&[24; 32]), ALL, &mut pieces), Ok(()));
    assert_eq!(
        (pieces.len(), pieces[1].address, pieces[1].bytes, pieces[1].align),
        (16, 32 + 48, 32, 16)
    );
}

/// A type in memory: its size, and the bits of a small integer.
type Kind = (&'static str, usize, fn(i64) -> u64);

const F16: Kind = ("f16", 16, |value| [0, 0x3c00, 0x4000, 0x4200][value as usize]);
const BF16: Kind = ("bf16", 16, |value| u64::from((value as f32).to_bits() >> 16));
const TF32: Kind = ("tf32", 32, |value| u64::from((value as f32).to_bits()));
const F32: Kind = ("f32", 32, |value| u64::from((value as f32).to_bits()));
const F64: Kind = ("f64", 64, |value| (value as f64).to_bits());
const S8: Kind = ("s8", 8, |value| value as u64);
const U8: Kind = ("u8", 8, |value| value as u64);
const S4: Kind = ("s4", 4, |value| value as u64);
const B1: Kind = ("b1", 1, |value| value as u64 & 1);
const S32: Kind = ("s32", 32, |value| value as u64);

/// A matrix of `wmma` in memory.
struct InMemory {
    kind: Kind,
    by_columns: bool,
    stride: usize,
    memory: Vec<u8>,
}

impl InMemory {
    /// Makes a matrix with `value` as elements and `0xee` between its rows or columns.
    fn of(
        kind: Kind,
        [rows, columns]: [usize; 2],
        by_columns: bool,
        value: impl Fn(usize, usize) -> i64,
    ) -> Self {
        let (count, length) = if by_columns { (columns, rows) } else { (rows, columns) };
        let stride = length + 128 / kind.1;
        let mut matrix = Self { kind, by_columns, stride, memory: Vec::new() };
        // Not a byte behind the last element.
        matrix.memory.resize(((count - 1) * stride + length) * kind.1 / 8, 0xee);
        for row in 0..rows {
            for column in 0..columns {
                matrix.set(row, column, value(row, column));
            }
        }
        matrix
    }

    fn set(&mut self, row: usize, column: usize, value: i64) {
        let (line, place) = if self.by_columns { (column, row) } else { (row, column) };
        for bit in 0..self.kind.1 {
            let at = (line * self.stride + place) * self.kind.1 + bit;
            let value = ((self.kind.2)(value) >> bit & 1) as u8;
            self.memory[at / 8] = self.memory[at / 8] & !(1 << (at % 8)) | value << (at % 8);
        }
    }

    fn layout(&self) -> &'static str {
        if self.by_columns { "col" } else { "row" }
    }

    fn load(&self, operand: &str, shape: &str) -> Vec<Lanes> {
        let name = format!(
            "wmma.load.{operand}.sync.aligned.{}.{shape}.global.{}",
            self.layout(),
            self.kind.0
        );
        load(&name, &self.memory, &[0; 32], Some(self.stride as u64))
    }
}

/// Multiplies matrices in memory and compares D in memory, in each layout that the type allows.
fn check_wmma(
    [m, n, k]: [usize; 3],
    a: Kind,
    c: Kind,
    d: Kind,
    operation: &str,
    term: fn(i64, i64) -> i64,
) {
    let shape = format!("m{m}n{n}k{k}");
    let mut random = Random(m as u64);
    let mut table = |size: usize| {
        (0..size).map(|_| random.between(0, if a.1 == 1 { 1 } else { 3 })).collect::<Vec<_>>()
    };
    let a_values = table(m * k);
    let b_values = table(k * n);
    let c_values = table(m * n);
    let sum = |row: usize, column: usize| {
        let terms = (0..k).map(|i| term(a_values[row * k + i], b_values[i * n + column]));
        terms.sum::<i64>() + c_values[row * n + column]
    };
    for layouts in 0..16 {
        let [a_by_columns, b_by_columns, c_by_columns, d_by_columns] =
            [1, 2, 4, 8].map(|bit| layouts & bit != 0);
        if a.1 < 8 && (a_by_columns || !b_by_columns) {
            continue;
        }
        let a_matrix =
            InMemory::of(a, [m, k], a_by_columns, |row, column| a_values[row * k + column]);
        let b_matrix =
            InMemory::of(a, [k, n], b_by_columns, |row, column| b_values[row * n + column]);
        let c_matrix =
            InMemory::of(c, [m, n], c_by_columns, |row, column| c_values[row * n + column]);
        let mut expected = InMemory::of(d, [m, n], d_by_columns, |_, _| 0);
        let mut found = expected.memory.clone();
        for row in 0..m {
            for column in 0..n {
                let sum = sum(row, column);
                let small_half = d.0 == "f16";
                assert!(!small_half || sum < 2048);
                let kind = if small_half { HALF_SUM } else { d };
                expected.kind = kind;
                expected.set(row, column, sum);
            }
        }
        let sources =
            [a_matrix.load("a", &shape), b_matrix.load("b", &shape), c_matrix.load("c", &shape)]
                .concat();
        let types = if a.0 == "f16" {
            format!("{}.{}", d.0, c.0)
        } else {
            format!("{}.{}.{}.{}", d.0, a.0, a.0, c.0)
        };
        let a_layout = a_matrix.layout();
        let b_layout = b_matrix.layout();
        let name =
            format!("wmma.mma{operation}.sync.aligned.{a_layout}.{b_layout}.{shape}.{types}");
        let (out, result) = eval(&name, &sources, ALL, ALL);
        assert_eq!(result, Ok(()));
        let store_name =
            format!("wmma.store.d.sync.aligned.{}.{shape}.global.{}", expected.layout(), d.0);
        store(&store_name, &mut found, &[0; 32], Some(expected.stride as u64), &out);
        assert!(found == expected.memory, "{name} then {store_name}");
    }
}

/// The halves of integers below 2048.
const HALF_SUM: Kind = ("f16", 16, |value| {
    let bits = (value as f32).to_bits();
    if value == 0 { 0 } else { u64::from(((bits >> 23) - 112) << 10 | (bits & 0x7f_ffff) >> 13) }
});

#[test]
fn wmma_multiplies_matrices_of_memory_in_every_shape_type_and_layout() {
    for shape in [[16, 16, 16], [32, 8, 16], [8, 32, 16]] {
        for (c, d) in [(F16, F16), (F16, F32), (F32, F16), (F32, F32)] {
            check_wmma(shape, F16, c, d, "", |a, b| a * b);
        }
        check_wmma(shape, BF16, F32, F32, "", |a, b| a * b);
        check_wmma(shape, S8, S32, S32, "", |a, b| a * b);
        check_wmma(shape, U8, S32, S32, "", |a, b| a * b);
    }
    check_wmma([16, 16, 8], TF32, F32, F32, "", |a, b| a * b);
    check_wmma([8, 8, 4], F64, F64, F64, "", |a, b| a * b);
    check_wmma([8, 8, 32], S4, S32, S32, "", |a, b| a * b);
    check_wmma([8, 8, 128], B1, S32, S32, ".xor.popc", |a, b| a ^ b);
    check_wmma([8, 8, 128], B1, S32, S32, ".and.popc", |a, b| a & b);
}

#[test]
fn without_a_stride_the_rows_of_a_matrix_follow_each_other() {
    let memory: Vec<u8> = (0..16 * 16 * 4).map(|at| at as u8).collect();
    let name = "wmma.load.c.sync.aligned.row.m16n16k16.global.f32";
    assert_eq!(load(name, &memory, &[0; 32], None), load(name, &memory, &[0; 32], Some(16)));
}

#[test]
fn a_lane_has_the_elements_of_a_sum_that_it_has_on_an_h200() {
    for (shape, of_lane_1) in [
        ("m16n16k16", [2, 3, 130, 131, 10, 11, 138, 139]),
        ("m32n8k16", [2, 3, 66, 67, 130, 131, 194, 195]),
        ("m8n32k16", [64, 96, 72, 104, 80, 112, 88, 120]),
    ] {
        let load_c = |kind: Kind| {
            let bytes = (0..256).flat_map(|n| (kind.2)(n).to_le_bytes()[..kind.1 / 8].to_vec());
            let name = format!("wmma.load.c.sync.aligned.row.{shape}.global.{}", kind.0);
            load(&name, &bytes.collect::<Vec<_>>(), &[0; 32], None)
        };
        let half = |bits: u64| (HALF_SUM.2)(f32::from_bits(bits as u32) as i64);
        let singles = load_c(F32);
        assert_eq!(
            singles.iter().map(|lanes| lanes[1]).collect::<Vec<_>>(),
            of_lane_1.map(F32.2),
            "{shape}"
        );
        for (pair, halves) in singles.chunks_exact(2).zip(load_c(HALF_SUM)) {
            for lane in 0..32 {
                assert_eq!(
                    half(pair[0][lane]) | half(pair[1][lane]) << 16,
                    halves[lane],
                    "{shape}"
                );
            }
        }
    }
}

#[test]
fn the_registers_of_wmma_are_as_many_as_the_isa_says() {
    let table = [
        ("a", "m16n16k16", "f16", 8),
        ("b", "m8n32k16", "f16", 8),
        ("c", "m16n16k16", "f16", 4),
        ("c", "m32n8k16", "f32", 8),
        ("a", "m16n16k16", "bf16", 4),
        ("a", "m8n32k16", "bf16", 2),
        ("b", "m8n32k16", "bf16", 8),
        ("a", "m16n16k16", "s8", 2),
        ("a", "m32n8k16", "u8", 4),
        ("b", "m32n8k16", "u8", 1),
        ("c", "m16n16k16", "s32", 8),
        ("a", "m16n16k8", "tf32", 4),
        ("c", "m16n16k8", "f32", 8),
        ("a", "m8n8k4", "f64", 1),
        ("c", "m8n8k4", "f64", 2),
        ("b", "m8n8k32", "u4", 1),
        ("a", "m8n8k128", "b1", 1),
        ("c", "m8n8k128", "s32", 2),
    ];
    for (operand, shape, ty, expected) in table {
        let name = format!("wmma.load.{operand}.sync.aligned.row.{shape}.{ty}");
        assert_eq!(registers(&transfer(&name).operands()), expected, "{name}");
    }
}
