//! Forms of comparisons, immediate operands, atomics, and loads and stores of narrow types.

use super::integers::of;
use super::operands::Kind;
use super::{Class, List, Source};

pub(crate) fn add(list: &mut List) {
    setp(list);
    set(list);
    immediates(list);
    memory(list);
    atomics(list);
}

const FLOAT_COMPARISONS: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

/// Adds a form with two predicates: the result is the first in bit 0 and the second in bit 1.
fn two_predicates(list: &mut List, name: &str, instruction: &str, sources: &[Source]) {
    // Of halves there is no second predicate.
    let is_half = instruction.contains(".f16 ") || instruction.contains(".bf16 ");
    let instruction =
        if is_half { instruction.replace("|%p8", "") } else { instruction.to_owned() };
    let second = if is_half { "" } else { "@%p8 or.b32 {d}, {d}, 2;" };
    let text = format!("{instruction}\nselp.u32 {{d}}, 1, 0, %p7;\n{second}");
    list.text(name, &text, Class::R, sources);
}

fn setp(list: &mut List) {
    let plain = |list: &mut List, opcode: &str, ty: &str| {
        let text = format!("{opcode}.{ty} %p7|%p8, {{0}}, {{1}};");
        two_predicates(list, &format!("{opcode}.{ty}"), &text, &[of(ty); 2]);
    };
    for ty in ["u16", "u32", "u64", "s16", "s32", "s64"] {
        for comparison in ["eq", "ne", "lt", "le", "gt", "ge"] {
            plain(list, &format!("setp.{comparison}"), ty);
        }
        if ty.starts_with('u') {
            for comparison in ["lo", "ls", "hi", "hs"] {
                plain(list, &format!("setp.{comparison}"), ty);
            }
        }
    }
    for ty in ["b16", "b32", "b64"] {
        plain(list, "setp.eq", ty);
        plain(list, "setp.ne", ty);
    }
    for ty in ["f32", "f64", "f16", "f16x2", "bf16", "bf16x2"] {
        for comparison in FLOAT_COMPARISONS {
            plain(list, &format!("setp.{comparison}"), ty);
            if matches!(ty, "f32" | "f16" | "f16x2") {
                plain(list, &format!("setp.{comparison}.ftz"), ty);
            }
        }
    }
    for ty in ["s32", "u64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"] {
        for combine in ["and", "or", "xor"] {
            for not in ["", "!"] {
                let text = format!("setp.lt.{combine}.{ty} %p7|%p8, {{0}}, {{1}}, {not}{{2}};");
                let name = format!("setp.lt.{combine}.{ty} ({not}c)");
                two_predicates(list, &name, &text, &[of(ty), of(ty), of("pred")]);
            }
        }
    }
}

fn set(list: &mut List) {
    let types = [
        "u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64", "f16", "bf16", "f32", "f64",
    ];
    for ty in types {
        let float = ty.contains('f');
        let comparisons: &[&str] = match ty {
            "b16" | "b32" | "b64" => &["eq", "ne"],
            _ if float => &["lt", "ne", "neu", "nan"],
            _ => &["lt", "ne"],
        };
        for comparison in comparisons {
            for result in ["u32", "s32", "f32", "f16", "bf16", "u16", "s16"] {
                if matches!(result, "f16" | "bf16" | "u16" | "s16") && !matches!(ty, "f16" | "bf16")
                {
                    continue;
                }
                let opcode = format!("set.{comparison}.{result}.{ty}");
                list.simple(&opcode, of(result).0, &[of(ty); 2]);
            }
        }
    }
    for ty in ["f16x2", "bf16x2"] {
        for comparison in ["lt", "neu", "nan"] {
            for result in [ty, "u32", "s32"] {
                list.simple(&format!("set.{comparison}.{result}.{ty}"), Class::R, &[of(ty); 2]);
            }
        }
    }
    list.simple("set.lt.ftz.f32.f32", Class::R, &[of("f32"); 2]);
    list.simple("set.lt.ftz.f16.f16", Class::H, &[of("f16"); 2]);
    list.simple("set.lt.ftz.f16x2.f16x2", Class::R, &[of("f16x2"); 2]);
    for combine in ["and", "or", "xor"] {
        for ty in ["s32", "f32", "f16x2"] {
            let sources = [of(ty), of(ty), of("pred")];
            list.simple(&format!("set.lt.{combine}.u32.{ty}"), Class::R, &sources);
        }
    }
}

fn immediates(list: &mut List) {
    let one = |list: &mut List, text: &str, class: Class, ty: &str| {
        list.text(
            text,
            &format!("{};", text.replace("A", "{0}").replace("D", "{d}")),
            class,
            &[of(ty)],
        );
    };
    one(list, "add.s64 D, A, -1", Class::D, "s64");
    one(list, "add.u16 D, A, -1", Class::H, "u16");
    one(list, "setp.lt.u32 D, A, -1", Class::P, "u32");
    one(list, "setp.lt.s64 D, A, 0xffffffff", Class::P, "s64");
    one(list, "setp.lt.u64 D, A, -1", Class::P, "u64");
    one(list, "and.b32 D, A, 0xff00ff00", Class::R, "b32");
    one(list, "and.b64 D, A, -2", Class::D, "b64");
    one(list, "mul.wide.s32 D, A, -3", Class::D, "s32");
    one(list, "mul.wide.u32 D, A, -3", Class::D, "u32");
    one(list, "shr.s32 D, A, 40", Class::R, "s32");
    one(list, "fma.rn.f32 D, A, 0f3F800001, 0fBF800000", Class::R, "f32");
    one(list, "add.f64 D, A, 0d3FF0000000000001", Class::D, "f64");
    one(list, "mul.f32 D, A, 0.1", Class::R, "f32");
    one(list, "add.f32 D, A, 0f7F800001", Class::R, "f32");
    one(list, "div.s32 D, A, 7", Class::R, "s32");
    one(list, "div.u32 D, A, 0", Class::R, "u32");
    one(list, "rem.s32 D, A, -2147483648", Class::R, "s32");
    one(list, "bfe.u32 D, A, 8, 8", Class::R, "u32");
    one(list, "bfe.s32 D, A, 24, 40", Class::R, "s32");
    one(list, "prmt.b32 D, A, 0, 0x4441", Class::R, "b32");
    one(list, "prmt.b32 D, A, 0, 0x8888", Class::R, "b32");
}

fn memory(list: &mut List) {
    // The word is in memory already: in the place of the result.
    for ty in ["u8", "s8", "u16", "s16", "b8", "b16"] {
        for (class, register) in [("32", "%r20"), ("64", "%t5"), ("16", "%h20")] {
            let wide = match class {
                "32" => "cvt.u64.u32 %o0, %r20;",
                "64" => "mov.b64 %o0, %t5;",
                _ => "cvt.u64.u16 %o0, %h20;",
            };
            list.raw(
                &format!("ld.global.{ty} into {class} bits"),
                &[Kind::Int(64)],
                1,
                &format!(
                    "st.global.b64 [%base], %x0;\nld.global.{ty} {register}, [%base];\n{wide}"
                ),
            );
        }
        list.raw(
            &format!("st.global.{ty} of 64 bits"),
            &[Kind::Int(64), Kind::Int(64)],
            1,
            &format!("st.global.b64 [%base], %x0;\nst.global.{ty} [%base], %x1;\nld.global.b64 %o0, [%base];"),
        );
    }
}

/// The body of an atomic on the word of the thread: `load` makes registers from `%x0`, `%x1`,
/// `%x2`.
fn atomic(space: &str, class: Class, instruction: &str) -> String {
    let (address, start) = if space == "shared" {
        (
            "%r60",
            ".shared .align 16 .b8 cells[2048];\nmov.u32 %r60, cells;\nshl.b32 %r61, %r2, 4;\nadd.u32 %r60, %r60, %r61;\n",
        )
    } else {
        ("%base", "")
    };
    let (load, d, finish) = match class {
        Class::H => {
            ("cvt.u16.u64 %h11, %x1;\ncvt.u16.u64 %h12, %x2;\n", "%h20", "cvt.u64.u16 %o0, %h20;\n")
        }
        Class::D => ("mov.b64 %t6, %x1;\nmov.b64 %t7, %x2;\n", "%o0", ""),
        _ => {
            ("cvt.u32.u64 %r11, %x1;\ncvt.u32.u64 %r12, %x2;\n", "%r20", "cvt.u64.u32 %o0, %r20;\n")
        }
    };
    let (b, c) = match class {
        Class::H => ("%h11", "%h12"),
        Class::D => ("%t6", "%t7"),
        _ => ("%r11", "%r12"),
    };
    let text = instruction
        .replace("{m}", &format!("[{address}]"))
        .replace("{d}", d)
        .replace("{b}", b)
        .replace("{c}", c);
    format!(
        "{start}{load}st.{space}.b64 [{address}], %x0;\nmov.b64 %o0, 0;\nmov.u16 %h20, 0;\nmov.u32 %r20, 0;\n{text}\n{finish}ld.{space}.b64 %o1, [{address}];"
    )
}

fn atomics(list: &mut List) {
    let operations: [(&str, &str); 44] = [
        ("add", "u32"),
        ("add", "s32"),
        ("add", "u64"),
        ("add", "s64"),
        ("add", "f32"),
        ("add", "f64"),
        ("add.noftz", "f16"),
        ("add.noftz", "f16x2"),
        ("add.noftz", "bf16"),
        ("add.noftz", "bf16x2"),
        ("inc", "u32"),
        ("dec", "u32"),
        ("min", "u32"),
        ("min", "s32"),
        ("min", "u64"),
        ("min", "s64"),
        ("max", "u32"),
        ("max", "s32"),
        ("max", "u64"),
        ("max", "s64"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
        ("and", "b64"),
        ("or", "b64"),
        ("xor", "b64"),
        ("exch", "b32"),
        ("exch", "b64"),
        ("cas", "b16"),
        ("cas", "b32"),
        ("cas", "b64"),
        ("min.noftz", "f16"),
        ("min.noftz", "bf16"),
        ("max.noftz", "f16"),
        ("max.noftz", "bf16"),
        ("min.noftz", "f16x2"),
        ("min.noftz", "bf16x2"),
        ("max.noftz", "f16x2"),
        ("max.noftz", "bf16x2"),
        ("add.ftz", "f32"),
        ("min", "f32"),
        ("exch", "u32"),
        ("exch", "f32"),
        ("cas", "u32"),
    ];
    for space in ["global", "shared"] {
        for (operation, ty) in operations {
            let (class, kind) = of(ty);
            let last = if operation == "cas" { "{b}, {c};" } else { "{b};" };
            let opcode = format!("{space}.{operation}.{ty}");
            let body = atomic(space, class, &format!("atom.{opcode} {{d}}, {{m}}, {last}"));
            list.raw(&format!("atom.{opcode}"), &[kind; 3], 2, &body);
            if !matches!(operation, "cas" | "exch") {
                let body = atomic(space, class, &format!("red.{opcode} {{m}}, {{b}};"));
                list.raw(&format!("red.{opcode}"), &[kind; 3], 2, &body);
            }
        }
    }
    // By a generic address.
    for ty in ["f16x2", "f32"] {
        let (class, kind) = of(ty);
        let noftz = if ty == "f32" { "" } else { ".noftz" };
        let text = format!("cvta.shared.u64 %t4, %t4;\natom.add{noftz}.{ty} {{d}}, [%t4], {{b}};");
        let body = atomic("shared", class, &text)
            .replace("cvta.shared", "cvt.u64.u32 %t4, %r60;\ncvta.shared");
        list.raw(&format!("atom.add{noftz}.{ty} of shared memory"), &[kind; 3], 2, &body);
        let text = format!("atom.add{noftz}.{ty} {{d}}, [%base], {{b}};");
        let body = atomic("global", class, &text);
        list.raw(&format!("atom.add{noftz}.{ty} of global memory"), &[kind; 3], 2, &body);
    }
    let vectors = [
        ("add.v2.f32", "{%r20, %r21}", "{%r11, %r12}"),
        ("add.noftz.v2.f16x2", "{%r20, %r21}", "{%r11, %r12}"),
        ("add.noftz.v2.bf16x2", "{%r20, %r21}", "{%r11, %r12}"),
    ];
    for (operation, d, b) in vectors {
        let (name, ty) = operation.split_at(operation.find(".v2").unwrap_or(0));
        let opcode = format!("global{}{}", ".v2", ty.trim_start_matches(".v2"));
        let opcode = opcode.replacen(".v2", &format!(".v2.{name}"), 1);
        let kind = if operation.ends_with("f32") { Kind::F32x2 } else { Kind::F16x2 };
        let body = format!(
            "cvt.u32.u64 %r11, %x1;\nshr.u64 %t5, %x1, 32;\ncvt.u32.u64 %r12, %t5;\nst.global.b64 [%base], %x0;\n\
             atom.{opcode} {d}, [%base], {b};\nmov.b64 %o0, {d};\nld.global.b64 %o1, [%base];"
        );
        list.raw(&format!("atom.{opcode}"), &[kind; 2], 2, &body);
    }
}
