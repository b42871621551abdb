//! Forms of instructions between lanes: 32 rows are a warp.

use super::integers::of;
use super::operands::{Kind, Matrix};
use super::{Class, Form, List};

pub(crate) fn add(list: &mut List) {
    shuffles(list);
    votes(list);
    meetings(list);
    moves(list);
    products(list);
    wmma(list);
}

fn shuffles(list: &mut List) {
    let word = of("b32");
    for mode in ["up", "down", "bfly", "idx"] {
        let name = format!("shfl.sync.{mode}.b32");
        let body = |b: &str, c: &str| {
            format!(
                "cvt.u32.u64 %r10, %x0;\ncvt.u32.u64 %r11, %x1;\ncvt.u32.u64 %r12, %x2;\n\
                 shfl.sync.{mode}.b32 %r20|%p8, %r10, {b}, {c}, 0xffffffff;\n\
                 cvt.u64.u32 %o0, %r20;\nselp.u64 %o1, 1, 0, %p8;"
            )
        };
        list.raw(&name, &[word.1; 3], 2, &body("%r11", "%r12"));
        let small = "and.b32 %r12, %r12, 0x1f1f;\n";
        let text = body("%r11", "%r12").replacen("shfl", &format!("{small}shfl"), 1);
        list.raw(&format!("{name} (c below 0x2000)"), &[word.1, Kind::Amount, word.1], 2, &text);
        for amount in [0, 1, 5, 16, 31, 33] {
            for c in ["0", "31", "0x1c1f", "0x1000", "0x181f", "0x0707"] {
                list.raw(
                    &format!("{name} ({amount}, {c})"),
                    &[word.1; 3],
                    2,
                    &body(&amount.to_string(), c),
                );
            }
        }
    }
    for form in
        list.0.iter_mut().filter(|form| form.name.ends_with(')') && form.name.starts_with("shfl"))
    {
        if !form.name.contains("below") {
            form.rows = 256;
        }
    }
}

fn votes(list: &mut List) {
    let mask = "0xffffffff";
    for (poll, ty) in [("all", "pred"), ("any", "pred"), ("uni", "pred"), ("ballot", "b32")] {
        for not in ["", "!"] {
            let (d, finish) = if ty == "pred" {
                ("%p8", "selp.u64 %o0, 1, 0, %p8;")
            } else {
                ("%r20", "cvt.u64.u32 %o0, %r20;")
            };
            list.raw(
                &format!("vote.sync.{poll}.{ty} ({not}p)"),
                &[Kind::Int(64), Kind::Int(64)],
                1,
                // Mostly equal within a warp.
                &format!(
                    "shr.u32 %r40, %r3, 5;\nand.b32 %r41, %r40, 3;\nsetp.eq.u32 %p5, %r41, 0;\nsetp.eq.u32 %p6, %r41, 1;\n\
                     and.b64 %t5, %x0, 1;\nsetp.ne.u64 %p7, %t5, 0;\nor.pred %p7, %p7, %p5;\nnot.pred %p6, %p6;\n\
                     and.pred %p7, %p7, %p6;\nvote.sync.{poll}.{ty} {d}, {not}%p7, {mask};\n{finish}"
                ),
            );
        }
    }
}

/// Instructions that only some of the lanes execute, by their member masks.
fn meetings(list: &mut List) {
    let start = "mov.b64 %o0, 77;\nmov.b64 %o1, 77;\nmov.u32 %r20, 99;\ncvt.u32.u64 %r10, %x0;\nmov.u32 %r4, %laneid;\nsetp.ne.u32 %p8, 0, 0;\n";
    let members = |mask: &str, text: &str| {
        format!(
            "{start}mov.u32 %r5, {mask};\nshr.u32 %r6, %r5, %r4;\nand.b32 %r6, %r6, 1;\nsetp.eq.u32 %p5, %r6, 0;\n@%p5 bra done;\n\
             {text}\ncvt.u64.u32 %o0, %r20;\nselp.u64 %o1, 1, 0, %p8;\ndone:"
        )
    };
    for mask in ["0xffffffff", "0xaaaaaaaa", "0x00010000", "0x7f0000f1"] {
        let mut add = |name: &str, kind: Kind, text: &str| {
            list.raw(&format!("{name} ({mask})"), &[kind], 2, &members(mask, text));
        };
        add("elect.sync", Kind::Int(32), "elect.sync %r20|%p8, %r5;");
        add("activemask.b32", Kind::Int(32), "activemask.b32 %r20;");
        add("match.any.sync.b32", Kind::Few, "match.any.sync.b32 %r20, %r10, %r5;");
        add("match.any.sync.b64", Kind::Few, "match.any.sync.b64 %r20, %x0, %r5;");
        let few = "shr.u32 %r7, %r3, 5;\nand.b32 %r7, %r7, 1;\nsetp.eq.u32 %p6, %r7, 1;\n@%p6 mov.b64 %x0, 5;\ncvt.u32.u64 %r10, %x0;\n";
        add(
            "match.all.sync.b32",
            Kind::Few,
            &format!("{few}match.all.sync.b32 %r20|%p8, %r10, %r5;"),
        );
        add(
            "match.all.sync.b64",
            Kind::Few,
            &format!("{few}match.all.sync.b64 %r20|%p8, %x0, %r5;"),
        );
        for (operation, ty) in [
            ("add", "u32"),
            ("add", "s32"),
            ("min", "u32"),
            ("min", "s32"),
            ("max", "u32"),
            ("max", "s32"),
            ("and", "b32"),
            ("or", "b32"),
            ("xor", "b32"),
        ] {
            let opcode = format!("redux.sync.{operation}.{ty}");
            add(&opcode, Kind::Int(32), &format!("{opcode} %r20, %r10, %r5;"));
        }
        for last in ["min", "max", "min.abs", "max.NaN", "max.abs.NaN"] {
            let opcode = format!("redux.sync.{last}.f32");
            add(&opcode, Kind::F32, &format!("{opcode} %r20, %r10, %r5;"));
        }
        add(
            "vote.sync.ballot.b32",
            Kind::Int(32),
            "and.b32 %r10, %r10, 1;\nsetp.ne.u32 %p7, %r10, 0;\nvote.sync.ballot.b32 %r20, %p7, %r5;",
        );
        add(
            "shfl.sync.idx.b32",
            Kind::Int(32),
            "bfind.u32 %r8, %r5;\nshfl.sync.idx.b32 %r20|%p8, %r10, %r8, 31, %r5;",
        );
    }
    for form in
        list.0.iter_mut().filter(|form| form.name.ends_with(')') && form.body.contains("bra done"))
    {
        form.rows = 1024;
    }
    for operation in ["popc.u32", "and.pred", "or.pred"] {
        let (d, finish) = if operation == "popc.u32" {
            ("%r20", "cvt.u64.u32 %o0, %r20;")
        } else {
            ("%p8", "selp.u64 %o0, 1, 0, %p8;")
        };
        list.raw(
            &format!("barrier.cta.red.{operation}"),
            &[Kind::Int(32)],
            1,
            &format!("setp.gt.s64 %p7, %x0, 100;\nbarrier.cta.red.{operation} {d}, 3, 128, %p7;\n{finish}"),
        );
    }
}

/// The words of the operands into the shared memory of the warp: 16 bytes a lane at `%r31`, the warp's at `%r30`.
const TO_SHARED: &str = ".shared .align 128 .b8 tile[2048];\nmov.u32 %r4, %laneid;\nshr.u32 %r5, %r2, 5;\nshl.b32 %r5, %r5, 9;\n\
    mov.u32 %r30, tile;\nadd.u32 %r30, %r30, %r5;\nshl.b32 %r6, %r4, 4;\nadd.u32 %r31, %r30, %r6;\n\
    st.shared.v2.b64 [%r31], {%x0, %x1};\nbar.warp.sync 0xffffffff;\n";

fn moves(list: &mut List) {
    let kinds = [Kind::Int(64), Kind::Int(64)];
    for trans in ["", ".trans"] {
        for (count, registers) in
            [("x1", "{%r20}"), ("x2", "{%r20, %r21}"), ("x4", "{%r20, %r21, %r22, %r23}")]
        {
            let clear = "mov.u32 %r20, 0;\nmov.u32 %r21, 0;\nmov.u32 %r22, 0;\nmov.u32 %r23, 0;\n";
            let pack = "mov.b64 %o0, {%r20, %r21};\nmov.b64 %o1, {%r22, %r23};";
            // Rows in another order than the lanes'.
            let rows = "xor.b32 %r7, %r4, 5;\nshl.b32 %r7, %r7, 4;\nadd.u32 %r32, %r30, %r7;\n";
            list.raw(
                &format!("ldmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16"),
                &kinds,
                2,
                &format!("{TO_SHARED}{rows}{clear}ldmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16 {registers}, [%r32];\n{pack}"),
            );
            list.raw(
                &format!("stmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16"),
                &kinds,
                2,
                &format!(
                    "{TO_SHARED}{rows}mov.b64 {{%r20, %r21}}, %x1;\nmov.b64 {{%r22, %r23}}, %x0;\n\
                     stmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16 [%r32], {registers};\n\
                     bar.warp.sync 0xffffffff;\nld.shared.v2.b64 {{%o0, %o1}}, [%r31];"
                ),
            );
        }
    }
    list.simple("movmatrix.sync.aligned.m8n8.trans.b16", Class::R, &[of("b32")]);
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
        let (mut kinds, mut body) = (Vec::new(), String::new());
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

/// A product of `wmma`: matrices come from the operands' rows of the warp and go to the results' ones.
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

/// Stores operand `n` of a row in the memory of its matrix: 64 bits, of two operands if these have 32.
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
