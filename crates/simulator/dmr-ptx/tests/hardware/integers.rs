//! Forms of integer, bit, logic and video instructions.

use super::operands::Kind;
use super::{Class, List, Source};

const NUMBERS: [&str; 6] = ["u16", "u32", "u64", "s16", "s32", "s64"];

pub(crate) fn of(ty: &str) -> Source {
    match ty {
        "pred" => (Class::P, Kind::Pred),
        "f32" => (Class::R, Kind::F32),
        "f64" => (Class::D, Kind::F64),
        "f16" => (Class::H, Kind::F16),
        "bf16" => (Class::H, Kind::Bf16),
        "f16x2" => (Class::R, Kind::F16x2),
        "bf16x2" => (Class::R, Kind::Bf16x2),
        "u16" | "s16" | "b16" => (Class::H, Kind::Int(16)),
        "u64" | "s64" | "b64" => (Class::D, Kind::Int(64)),
        "u16x2" | "s16x2" => (Class::R, Kind::Int(32)),
        _ => (Class::R, Kind::Int(32)),
    }
}

const AMOUNT: Source = (Class::R, Kind::Amount);

pub(crate) fn add(list: &mut List) {
    arithmetic(list);
    carries(list);
    bits(list);
    logic(list);
    video(list);
    scalar_video(list);
}

fn same(list: &mut List, opcode: &str, ty: &str, count: usize) {
    let source = of(ty);
    list.simple(&format!("{opcode}.{ty}"), source.0, &vec![source; count]);
}

fn arithmetic(list: &mut List) {
    for ty in NUMBERS {
        for (name, count) in [
            ("add", 2),
            ("sub", 2),
            ("mul.lo", 2),
            ("mul.hi", 2),
            ("mad.lo", 3),
            ("mad.hi", 3),
            ("sad", 3),
            ("div", 2),
            ("rem", 2),
            ("min", 2),
            ("max", 2),
            ("abs", 1),
            ("neg", 1),
        ] {
            same(list, name, ty, count);
        }
        let wide = match ty {
            "u16" => "u32",
            "s16" => "s32",
            "u32" => "u64",
            _ => "s64",
        };
        list.simple(&format!("mul.wide.{ty}"), of(wide).0, &[of(ty); 2]);
        list.simple(&format!("mad.wide.{ty}"), of(wide).0, &[of(ty), of(ty), of(wide)]);
    }
    for opcode in ["add.sat", "sub.sat", "min.relu", "max.relu"] {
        same(list, opcode, "s32", 2);
    }
    same(list, "mad.hi.sat", "s32", 3);
    for ty in ["u16x2", "s16x2"] {
        for opcode in ["add", "sub", "add.sat", "sub.sat", "min", "max", "min.relu", "max.relu"] {
            same(list, opcode, ty, 2);
        }
    }
    for ty in ["u32", "s32"] {
        for part in ["lo", "hi"] {
            same(list, &format!("mul24.{part}"), ty, 2);
            same(list, &format!("mad24.{part}"), ty, 3);
        }
    }
    same(list, "mad24.hi.sat", "s32", 3);
}

fn carries(list: &mut List) {
    for ty in ["u32", "s32", "u64", "s64"] {
        let wide = ty.ends_with("64");
        let (class, zero) = if wide { (Class::D, "%t8") } else { (Class::R, "%r40") };
        let clear = if wide { "mov.u64 %t8, 0;" } else { "mov.u32 %r40, 0;" };
        let first = if wide { "%t6" } else { "%r41" };
        let number = if wide { "u64" } else { "u32" };
        // The first result and what the flag adds to a second one.
        let mut chain = |name: &str, first_op: &str, middle: &str, last: &str, count: usize| {
            let sources: Vec<Source> = vec![(class, Kind::Int(if wide { 64 } else { 32 })); count];
            let operands: Vec<String> = (0..count).map(|n| format!("{{{n}}}")).collect();
            let last = last.replace("first", first).replace("zero", zero);
            let text = format!(
                "{clear}\n{first_op}.{ty} {first}, {};\n{middle}\n{last}",
                operands.join(", ")
            );
            list.text(
                &format!("{name}.{ty}"),
                &text.replace("ty", ty).replace("number", number),
                class,
                &sources,
            );
        };
        let flagged = "ty {d}, zero, zero;\nxor.bNN {d}, {d}, first;"
            .replace("NN", if wide { "64" } else { "32" });
        let one = |opcode: &str| format!("{opcode}.{flagged}");
        chain("add.cc, addc", "add.cc", "", &one("addc"), 2);
        chain("sub.cc, subc", "sub.cc", "", &one("subc"), 2);
        chain("sub.cc, addc", "sub.cc", "", &one("addc"), 2);
        chain("add.cc, subc", "add.cc", "", &one("subc"), 2);
        let plain = "add.number %t5, %x0, 1;".replace("number", "u64");
        chain("add.cc, add, addc", "add.cc", &plain, &one("addc"), 2);
        chain("add.cc, setp, addc", "add.cc", "setp.lt.u64 %p5, %x0, %x1;", &one("addc"), 2);
        let second = format!(
            "addc.cc.ty {{d}}, first, {{1}};\nxor.b{} first, first, {{d}};\naddc.{flagged}",
            if wide { 64 } else { 32 }
        );
        chain("add.cc, addc.cc, addc", "add.cc", "", &second, 2);
        let second = format!(
            "subc.cc.ty {{d}}, first, {{1}};\nxor.b{} first, first, {{d}};\nsubc.{flagged}",
            if wide { 64 } else { 32 }
        );
        chain("sub.cc, subc.cc, subc", "sub.cc", "", &second, 2);
        for part in ["lo", "hi"] {
            chain(&format!("mad.{part}.cc, addc"), &format!("mad.{part}.cc"), "", &one("addc"), 3);
            let second = format!(
                "madc.{part}.cc.ty {{d}}, {{0}}, {{1}}, {{2}};\nxor.b{} first, first, {{d}};\naddc.{flagged}",
                if wide { 64 } else { 32 }
            );
            chain(
                &format!("add.cc, madc.{part}.cc, addc"),
                "add.cc",
                "",
                &second.replace("{2}", "{1}"),
                2,
            );
            let second = format!("madc.{part}.ty {{d}}, {{0}}, {{1}}, first;");
            chain(&format!("add.cc, madc.{part}"), "add.cc", "", &second, 2);
        }
    }
}

fn bits(list: &mut List) {
    for ty in ["b32", "b64"] {
        list.simple(&format!("popc.{ty}"), Class::R, &[of(ty)]);
        list.simple(&format!("clz.{ty}"), Class::R, &[of(ty)]);
        same(list, "brev", ty, 1);
        list.simple(&format!("bfi.{ty}"), of(ty).0, &[of(ty), of(ty), AMOUNT, AMOUNT]);
    }
    for ty in ["u32", "u64", "s32", "s64"] {
        list.simple(&format!("bfind.{ty}"), Class::R, &[of(ty)]);
        list.simple(&format!("bfind.shiftamt.{ty}"), Class::R, &[of(ty)]);
        list.simple(&format!("bfe.{ty}"), of(ty).0, &[of(ty), AMOUNT, AMOUNT]);
    }
    list.simple("fns.b32", Class::R, &[of("b32"), AMOUNT, (Class::R, Kind::Int(32))]);
    list.text(
        "fns.b32 (small offset)",
        "and.b32 %r50, {2}, 15; sub.s32 %r50, %r50, 8; and.b32 %r51, {1}, 31; fns.b32 {d}, {0}, %r51, %r50;",
        Class::R,
        &[of("b32"), AMOUNT, (Class::R, Kind::Int(32))],
    );
    for mode in ["clamp", "wrap"] {
        list.simple(&format!("bmsk.{mode}.b32"), Class::R, &[AMOUNT; 2]);
        for ty in ["u32", "s32"] {
            list.simple(&format!("szext.{mode}.{ty}"), Class::R, &[of(ty), AMOUNT]);
        }
        for side in ["l", "r"] {
            list.simple(
                &format!("shf.{side}.{mode}.b32"),
                Class::R,
                &[of("b32"), of("b32"), AMOUNT],
            );
        }
    }
    for a in ["u32", "s32"] {
        for b in ["u32", "s32"] {
            list.simple(&format!("dp4a.{a}.{b}"), Class::R, &[of("b32"); 3]);
            for part in ["lo", "hi"] {
                list.simple(&format!("dp2a.{part}.{a}.{b}"), Class::R, &[of("b32"); 3]);
            }
        }
    }
}

fn logic(list: &mut List) {
    for ty in ["pred", "b16", "b32", "b64"] {
        for name in ["and", "or", "xor"] {
            same(list, name, ty, 2);
        }
        same(list, "not", ty, 1);
        if ty != "pred" {
            same(list, "cnot", ty, 1);
            list.simple(&format!("shl.{ty}"), of(ty).0, &[of(ty), AMOUNT]);
            list.simple(&format!("shr.{ty}"), of(ty).0, &[of(ty), AMOUNT]);
        }
        same(list, "mov", ty, 1);
    }
    for ty in NUMBERS {
        list.simple(&format!("shr.{ty}"), of(ty).0, &[of(ty), AMOUNT]);
    }
    for ty in ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"] {
        let source = of(ty);
        list.simple(&format!("selp.{ty}"), source.0, &[source, source, of("pred")]);
        for by in ["s32", "f32"] {
            list.simple(&format!("slct.{ty}.{by}"), source.0, &[source, source, of(by)]);
        }
        list.simple(&format!("slct.ftz.{ty}.f32"), source.0, &[source, source, of("f32")]);
    }
    for table in [0x00, 0x01, 0x1b, 0x80, 0x96, 0xca, 0xd4, 0xe8, 0xfe, 0xff] {
        let text = format!("lop3.b32 {{d}}, {{0}}, {{1}}, {{2}}, {table};");
        list.text(&format!("lop3.b32 ({table:#x})"), &text, Class::R, &[of("b32"); 3]);
    }
    for combine in ["and", "or"] {
        let text = format!(
            "lop3.{combine}.b32 {{d}}|%p8, {{0}}, {{1}}, {{2}}, 0x80, {{3}};\nselp.u32 %r50, 0x10101, 0, %p8;\nxor.b32 {{d}}, {{d}}, %r50;"
        );
        list.text(
            &format!("lop3.{combine}.b32"),
            &text,
            Class::R,
            &[of("b32"), of("b32"), of("b32"), of("pred")],
        );
    }
    for mode in ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"] {
        list.simple(&format!("prmt.b32{mode}"), Class::R, &[of("b32"); 3]);
    }
}

fn video(list: &mut List) {
    for width in ["2", "4"] {
        for name in ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"] {
            for d in ["u32", "s32"] {
                for (a, b) in [("u32", "u32"), ("s32", "s32"), ("u32", "s32"), ("s32", "u32")] {
                    for last in ["", ".sat", ".add"] {
                        let mixed = a != b || d != a;
                        if mixed
                            && (last == ".sat" && name != "vadd"
                                || last == ".add" && name != "vsub")
                        {
                            continue;
                        }
                        let sources = [of("b32"); 3];
                        list.simple(
                            &format!("{name}{width}.{d}.{a}.{b}{last}"),
                            Class::R,
                            &sources,
                        );
                    }
                }
            }
        }
        for comparison in ["eq", "ne", "lt", "le", "gt", "ge"] {
            for (a, b) in [("u32", "u32"), ("s32", "s32"), ("u32", "s32")] {
                for last in ["", ".add"] {
                    let opcode = format!("vset{width}.{a}.{b}.{comparison}{last}");
                    list.simple(&opcode, Class::R, &[of("b32"); 3]);
                }
            }
        }
    }
}

/// Video instructions on one value, with selectors and a second operation.
fn scalar_video(list: &mut List) {
    let sources = [of("b32"); 3];
    for name in ["vadd", "vsub", "vabsdiff", "vmin", "vmax"] {
        for (d, a, b) in [
            ("u32", "u32", "u32"),
            ("s32", "s32", "s32"),
            ("u32", "s32", "s32"),
            ("s32", "u32", "u32"),
            ("s32", "u32", "s32"),
        ] {
            for sat in ["", ".sat"] {
                let opcode = format!("{name}.{d}.{a}.{b}{sat}");
                list.text(&opcode, &format!("{opcode} {{d}}, {{0}}, {{1}};"), Class::R, &sources);
                for second in ["add", "min", "max"] {
                    let text = format!("{opcode}.{second} {{d}}, {{0}}, {{1}}, {{2}};");
                    if d == a && a == b {
                        list.text(&format!("{opcode}.{second}"), &text, Class::R, &sources);
                    }
                }
                if d == a && a == b {
                    for (x, y) in [("b0", "h1"), ("b3", "b1"), ("h0", "b2")] {
                        let text = format!("{opcode} {{d}}, {{0}}.{x}, {{1}}.{y};");
                        list.text(&format!("{opcode} ({x}, {y})"), &text, Class::R, &sources);
                    }
                    for part in ["b0", "b2", "h0", "h1"] {
                        let text = format!("{opcode} {{d}}.{part}, {{0}}, {{1}}, {{2}};");
                        list.text(&format!("{opcode} (d.{part})"), &text, Class::R, &sources);
                    }
                }
            }
        }
    }
    for name in ["vshl", "vshr"] {
        for mode in ["clamp", "wrap"] {
            for (d, a) in [("u32", "u32"), ("s32", "s32"), ("u32", "s32"), ("s32", "u32")] {
                for sat in ["", ".sat"] {
                    let opcode = format!("{name}.{d}.{a}.u32{sat}.{mode}");
                    let sources = [of("b32"), AMOUNT, of("b32")];
                    list.text(
                        &opcode,
                        &format!("{opcode} {{d}}, {{0}}, {{1}};"),
                        Class::R,
                        &sources,
                    );
                }
            }
        }
    }
    for (d, a, b) in
        [("u32", "u32", "u32"), ("s32", "s32", "s32"), ("s32", "u32", "s32"), ("s32", "u32", "u32")]
    {
        for last in ["", ".sat", ".shr7", ".shr15", ".sat.shr7"] {
            let opcode = format!("vmad.{d}.{a}.{b}{last}");
            for (x, y) in [("", ""), (".h0", ".b1"), (".b0", ".h1")] {
                let text = format!("{opcode} {{d}}, {{0}}{x}, {{1}}{y}, {{2}};");
                list.text(&format!("{opcode} ({x}, {y})"), &text, Class::R, &sources);
            }
        }
        let text = format!("vmad.{d}.{a}.{b}.po {{d}}, {{0}}.h0, {{1}}.b1, {{2}};");
        list.text(&format!("vmad.{d}.{a}.{b}.po"), &text, Class::R, &sources);
        let text = format!("vmad.{d}.{a}.{b} {{d}}, {{0}}.h0, {{1}}.b1, -{{2}};");
        list.text(&format!("vmad.{d}.{a}.{b} (-c)"), &text, Class::R, &sources);
    }
    for comparison in ["eq", "ne", "lt", "le", "gt", "ge"] {
        for (a, b) in [("u32", "u32"), ("s32", "s32"), ("u32", "s32")] {
            let opcode = format!("vset.{a}.{b}.{comparison}");
            list.text(&opcode, &format!("{opcode} {{d}}, {{0}}, {{1}};"), Class::R, &sources);
        }
    }
}
