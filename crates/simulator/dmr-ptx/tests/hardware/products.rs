//! Forms of products of matrices: `mma` and `wmma`.

use super::operands::{Kind, Matrix};
use super::{Form, List};

pub(crate) fn add(list: &mut List) {
    products(list);
    wmma(list);
}

/// Returns the kind of a register of such elements.
fn element(ty: &str) -> Kind {
    match ty {
        "f16" => Kind::Matrix(Matrix::F16),
        "bf16" => Kind::Matrix(Matrix::Bf16),
        "tf32" | "f32" => Kind::Matrix(Matrix::F32),
        "e4m3" => Kind::Matrix(Matrix::E4m3),
        "e5m2" => Kind::Matrix(Matrix::E5m2),
        "f64" => Kind::F64,
        _ => Kind::Int(32),
    }
}

fn bits(ty: &str) -> usize {
    match ty {
        "b1" => 1,
        "s4" | "u4" => 4,
        "s8" | "u8" | "e4m3" | "e5m2" => 8,
        "f16" | "bf16" => 16,
        "f64" => 64,
        _ => 32,
    }
}

/// A product: its opcode and the types of its matrices.
struct Product<'a> {
    opcode: &'a str,
    shape: [usize; 3],
    types: [&'a str; 4],
    quad: bool,
}

impl Product<'_> {
    /// Adds the form: each register of an operand is a word of the row.
    fn add(&self, list: &mut List) {
        let [m, n, k] = self.shape;
        let [d, a, b, c] = self.types;
        let registers = |rows: usize, columns: usize, ty: &str| {
            let copies = if self.quad { 4 } else { 1 };
            (rows * columns * copies * bits(ty)).div_ceil(32 * bits(ty).max(32)).max(1)
        };
        let mut kinds = Vec::new();
        let mut body = String::new();
        let mut number = 0;
        let mut vector = |count: usize, ty: &str, source: bool, prefix: usize| {
            let names: Vec<String> = (0..count)
                .map(|place| {
                    let name = if ty == "f64" {
                        format!("%d{}", prefix + place)
                    } else {
                        format!("%r{}", prefix + place)
                    };
                    if source {
                        kinds.push(element(ty));
                        body += &if ty == "f64" {
                            format!("mov.b64 {name}, %x{number};\n")
                        } else {
                            format!("cvt.u32.u64 {name}, %x{number};\n")
                        };
                        number += 1;
                    }
                    name
                })
                .collect();
            names
        };
        let a_names = vector(registers(m, k, a), a, true, 4);
        let b_names = vector(registers(k, n, b), b, true, 12);
        let c_names = vector(registers(m, n, c), c, true, 20);
        let d_names = vector(registers(m, n, d), d, false, 28 + if d == "f64" { 0 } else { 4 });
        let braces = |names: &[String]| format!("{{{}}}", names.join(", "));
        body += &format!(
            "{} {}, {}, {}, {};\n",
            self.opcode,
            braces(&d_names),
            braces(&a_names),
            braces(&b_names),
            braces(&c_names)
        );
        for (place, name) in d_names.iter().enumerate() {
            body += &if d == "f64" {
                format!("mov.b64 %o{place}, {name};\n")
            } else {
                format!("cvt.u64.u32 %o{place}, {name};\n")
            };
        }
        let results = d_names.len();
        list.push(Form {
            name: self.opcode.to_owned(),
            kinds,
            results,
            body,
            rows: 2048,
            is_approximate: false,
        });
    }
}

fn products(list: &mut List) {
    let mut add =
        |shape: [usize; 3], [d, a, b, c]: [&str; 4], layout: &str, before: &str, last: &str| {
            let [m, n, k] = shape;
            let opcode =
                format!("mma.sync.aligned.m{m}n{n}k{k}.{layout}{before}.{d}.{a}.{b}.{c}{last}");
            let quad = shape == [8, 8, 4] && a == "f16";
            Product { opcode: &opcode, shape, types: [d, a, b, c], quad }.add(list);
        };
    for d in ["f16", "f32"] {
        for c in ["f16", "f32"] {
            for layout in ["row.col", "row.row", "col.col", "col.row"] {
                add([8, 8, 4], [d, "f16", "f16", c], layout, "", "");
            }
            for k in [8, 16] {
                add([16, 8, k], [d, "f16", "f16", c], "row.col", "", "");
            }
            for a in ["e4m3", "e5m2"] {
                for b in ["e4m3", "e5m2"] {
                    for k in [16, 32] {
                        add([16, 8, k], [d, a, b, c], "row.col", "", "");
                    }
                }
            }
        }
    }
    for (a, depths) in [("bf16", [8, 16]), ("tf32", [4, 8])] {
        for k in depths {
            add([16, 8, k], ["f32", a, a, "f32"], "row.col", "", "");
        }
    }
    for shape in [[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]] {
        add(shape, ["f64"; 4], "row.col", "", "");
    }
    for (types, shapes) in [
        (["s8", "u8"], [[8, 8, 16], [16, 8, 16], [16, 8, 32]]),
        (["s4", "u4"], [[8, 8, 32], [16, 8, 32], [16, 8, 64]]),
    ] {
        for a in types {
            for b in types {
                for shape in shapes {
                    for finite in ["", ".satfinite"] {
                        add(shape, ["s32", a, b, "s32"], "row.col", finite, "");
                    }
                }
            }
        }
    }
    for shape in [[8, 8, 128], [16, 8, 128], [16, 8, 256]] {
        for operation in [".xor.popc", ".and.popc"] {
            add(shape, ["s32", "b1", "b1", "s32"], "row.col", "", operation);
        }
    }
}

/// A product of `wmma`: matrices come from the operands' rows of the warp and go to the results'
/// ones.
fn wmma(list: &mut List) {
    let mut add = |shape: [usize; 3], types: [&str; 4], layouts: [&str; 2], last: &str| {
        let [m, n, k] = shape;
        let [d, a, b, c] = types;
        let size = format!("m{m}n{n}k{k}");
        let count = |rows: usize, columns: usize, ty: &str, factor: bool| match ty {
            "f16" if factor => 8,
            _ => (rows * columns * bits(ty) / 32 / bits(ty).max(32)).max(1),
        };
        let vector = |prefix: &str, count: usize| {
            let names: Vec<String> = (0..count).map(|n| format!("%{prefix}{n}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let kind = |ty: &str| if ty == "f64" { "f64" } else { "b32" };
        let [a_count, b_count, c_count, d_count] = [
            count(m, k, a, true),
            count(k, n, b, true),
            count(m, n, c, false),
            count(m, n, d, false),
        ];
        // Words of a lane: 8 of each matrix.
        let kinds: Vec<Kind> = [a, b, c].iter().flat_map(|ty| vec![memory_kind(ty); 8]).collect();
        let number = last.trim_start_matches('.');
        let mma = if a == "f16" {
            format!("wmma.mma.sync.aligned.{}.{}.{size}.{d}.{c}{last}", layouts[0], layouts[1])
        } else if a == "b1" {
            format!("wmma.mma.{number}.sync.aligned.row.col.{size}.s32.b1.b1.s32")
        } else {
            format!(
                "wmma.mma.sync.aligned.{}.{}.{size}.{d}.{a}.{b}.{c}{last}",
                layouts[0], layouts[1]
            )
        };
        let body = format!(
            ".reg .{} %a<16>;\n.reg .{} %b<16>;\n.reg .{} %c<16>;\n.reg .{} %e<16>;\n\
             .shared .align 256 .b8 tiles[24576];\nmov.u32 %r4, %laneid;\nshr.u32 %r5, %r2, 5;\nmul.lo.u32 %r5, %r5, 6144;\n\
             mov.u32 %r30, tiles;\nadd.u32 %r30, %r30, %r5;\nmul.lo.u32 %r6, %r4, 64;\nadd.u32 %r31, %r30, %r6;\n{}\
             bar.warp.sync 0xffffffff;\n\
             wmma.load.a.sync.aligned.{}.{size}.shared.{a} {}, [%r30];\nadd.u32 %r32, %r30, 2048;\n\
             wmma.load.b.sync.aligned.{}.{size}.shared.{b} {}, [%r32];\nadd.u32 %r33, %r30, 4096;\n\
             wmma.load.c.sync.aligned.row.{size}.shared.{c} {}, [%r33];\n\
             {mma} {}, {}, {}, {};\nbar.warp.sync 0xffffffff;\n\
             wmma.store.d.sync.aligned.row.{size}.shared.{d} [%r30], {};\nbar.warp.sync 0xffffffff;\n{}",
            kind(a),
            kind(b),
            kind(c),
            kind(d),
            (0..24).map(|n| to_memory(kinds[n], n)).collect::<String>(),
            layouts[0],
            vector("a", a_count),
            layouts[1],
            vector("b", b_count),
            vector("c", c_count),
            vector("e", d_count),
            vector("a", a_count),
            vector("b", b_count),
            vector("c", c_count),
            vector("e", d_count),
            (0..8).map(|n| format!("ld.shared.b64 %o{n}, [%r31+{}];\n", n * 8)).collect::<String>(),
        );
        list.push(Form { name: mma, kinds, results: 8, body, rows: 512, is_approximate: false });
    };
    for shape in [[16, 16, 16], [32, 8, 16], [8, 32, 16]] {
        for (d, c) in [("f16", "f16"), ("f32", "f32"), ("f16", "f32"), ("f32", "f16")] {
            for layouts in [["row", "col"], ["row", "row"], ["col", "col"], ["col", "row"]] {
                add(shape, [d, "f16", "f16", c], layouts, "");
            }
        }
        for layouts in [["row", "col"], ["col", "row"]] {
            add(shape, ["f32", "bf16", "bf16", "f32"], layouts, "");
            for ty in ["s8", "u8"] {
                add(shape, ["s32", ty, ty, "s32"], layouts, "");
                add(shape, ["s32", ty, ty, "s32"], layouts, ".satfinite");
            }
        }
    }
    for layouts in [["row", "col"], ["row", "row"], ["col", "col"], ["col", "row"]] {
        add([16, 16, 8], ["f32", "tf32", "tf32", "f32"], layouts, "");
        add([8, 8, 4], ["f64"; 4], layouts, "");
    }
    for ty in ["s4", "u4"] {
        add([8, 8, 32], ["s32", ty, ty, "s32"], ["row", "col"], "");
    }
    for operation in [".xor.popc", ".and.popc"] {
        add([8, 8, 128], ["s32", "b1", "b1", "s32"], ["row", "col"], operation);
    }
}

/// Stores operand `n` of a row in the memory of its matrix: 64 bits, of two operands if these have
/// 32.
fn to_memory(kind: Kind, n: usize) -> String {
    let at = n / 8 * 2048 + n % 8 * 8;
    if let Kind::Matrix(_) = kind {
        let other = n / 8 * 8 + (n + 3) % 8;
        return format!(
            "cvt.u32.u64 %r40, %x{n};\ncvt.u32.u64 %r41, %x{other};\nst.shared.v2.b32 [%r31+{at}], {{%r40, %r41}};\n"
        );
    }
    format!("st.shared.b64 [%r31+{at}], %x{n};\n")
}

/// Returns the kind of the operands that make 64 bits of such elements in memory.
fn memory_kind(ty: &str) -> Kind {
    match ty {
        "f64" => Kind::F64,
        _ => match element(ty) {
            Kind::Matrix(matrix) => Kind::Matrix(matrix),
            _ => Kind::Int(64),
        },
    }
}
