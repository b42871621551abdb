//! Forms of floating-point instructions and of conversions.

use super::operands::Kind;
use super::{Class, List, Source};

const ROUNDING: [&str; 5] = ["", ".rn", ".rz", ".rm", ".rp"];

/// Returns the register class and the values of a floating-point type.
pub(crate) fn float(ty: &str) -> Source {
    match ty {
        "f16" => (Class::H, Kind::F16),
        "bf16" => (Class::H, Kind::Bf16),
        "f16x2" => (Class::R, Kind::F16x2),
        "bf16x2" => (Class::R, Kind::Bf16x2),
        "f32" => (Class::R, Kind::F32),
        "f32x2" => (Class::D, Kind::F32x2),
        _ => (Class::D, Kind::F64),
    }
}

fn words(list: &mut List, opcode: &str, ty: &str, count: usize) {
    let source = float(ty);
    list.simple(&format!("{opcode}.{ty}"), source.0, &vec![source; count]);
}

pub(crate) fn add(list: &mut List) {
    rounded(list);
    halves(list);
    selections(list);
    approximations(list);
}

fn rounded(list: &mut List) {
    for rounding in ROUNDING {
        for ftz in ["", ".ftz"] {
            for sat in ["", ".sat"] {
                for name in ["add", "sub", "mul"] {
                    words(list, &format!("{name}{rounding}{ftz}{sat}"), "f32", 2);
                }
                if !rounding.is_empty() {
                    words(list, &format!("fma{rounding}{ftz}{sat}"), "f32", 3);
                }
                words(list, &format!("mad{rounding}{ftz}{sat}"), "f32", 3);
            }
            if !rounding.is_empty() {
                words(list, &format!("div{rounding}{ftz}"), "f32", 2);
                words(list, &format!("rcp{rounding}{ftz}"), "f32", 1);
                words(list, &format!("sqrt{rounding}{ftz}"), "f32", 1);
            }
            for name in ["add", "mul"] {
                words(list, &format!("{name}{rounding}{ftz}"), "f32x2", 2);
            }
        }
        for name in ["add", "sub", "mul"] {
            words(list, &format!("{name}{rounding}"), "f64", 2);
        }
        if !rounding.is_empty() {
            for (name, count) in [("fma", 3), ("mad", 3), ("div", 2), ("rcp", 1), ("sqrt", 1)] {
                words(list, &format!("{name}{rounding}"), "f64", count);
            }
        }
    }
}

fn halves(list: &mut List) {
    for ty in ["f16", "f16x2", "bf16", "bf16x2"] {
        for ftz in ["", ".ftz"] {
            for last in ["", ".sat", ".relu"] {
                if ty.starts_with('b') && (!ftz.is_empty() || last == ".sat") {
                    continue;
                }
                if last != ".relu" {
                    for name in ["add", "sub", "mul", "add.rn", "sub.rn", "mul.rn"] {
                        words(list, &format!("{name}{ftz}{last}"), ty, 2);
                    }
                }
                words(list, &format!("fma.rn{ftz}{last}"), ty, 3);
            }
        }
    }
}

fn selections(list: &mut List) {
    for ty in ["f32", "f16", "f16x2", "bf16", "bf16x2", "f64"] {
        let start = list.0.len();
        for ftz in ["", ".ftz"] {
            if !ftz.is_empty() && (ty.starts_with('b') || ty == "f64") {
                continue;
            }
            for name in ["abs", "neg"] {
                words(list, &format!("{name}{ftz}"), ty, 1);
            }
            for nan in ["", ".NaN"] {
                for xor in ["", ".xorsign.abs"] {
                    if ty == "f64" && (!nan.is_empty() || !xor.is_empty()) {
                        continue;
                    }
                    for name in ["min", "max"] {
                        words(list, &format!("{name}{ftz}{nan}{xor}"), ty, 2);
                    }
                }
            }
        }
        list.all_patterns_from(start);
    }
    for name in ["min", "max", "min.NaN", "max.ftz"] {
        list.simple(&format!("{name}.f32 (three operands)"), Class::R, &[]);
        list.0.pop();
        list.text(
            &format!("{name}.f32 (three operands)"),
            &format!("{name}.f32 {{d}}, {{0}}, {{1}}, {{2}};"),
            Class::R,
            &[float("f32"); 3],
        );
    }
    for ty in ["f32", "f64"] {
        words(list, "copysign", ty, 2);
        for class in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
            list.simple(&format!("testp.{class}.{ty}"), Class::P, &[float(ty)]);
        }
    }
}

fn approximations(list: &mut List) {
    let start = list.0.len();
    for ftz in ["", ".ftz"] {
        for name in ["div.approx", "div.full"] {
            words(list, &format!("{name}{ftz}"), "f32", 2);
        }
        for name in ["rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"] {
            words(list, &format!("{name}.approx{ftz}"), "f32", 1);
        }
        words(list, &format!("rsqrt.approx{ftz}"), "f64", 1);
    }
    words(list, "rcp.approx.ftz", "f64", 1);
    words(list, "tanh.approx", "f32", 1);
    for (opcode, ty) in [
        ("ex2.approx", "f16"),
        ("ex2.approx", "f16x2"),
        ("ex2.approx.ftz", "bf16"),
        ("ex2.approx.ftz", "bf16x2"),
        ("tanh.approx", "f16"),
        ("tanh.approx", "f16x2"),
        ("tanh.approx", "bf16"),
        ("tanh.approx", "bf16x2"),
    ] {
        words(list, opcode, ty, 1);
    }
    list.approximate_from(start, 1 << 14);
    list.all_patterns_from(start);
}

const INTEGERS: [&str; 8] = ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"];
const FLOATS: [&str; 4] = ["f16", "bf16", "f32", "f64"];

fn bits(ty: &str) -> u32 {
    ty[1..].parse().unwrap_or(32)
}

/// Returns the register class and the values of an integer source: 8 bits are in a register of 32.
fn integer(ty: &str) -> Source {
    let class = match bits(ty) {
        16 => Class::H,
        64 => Class::D,
        _ => Class::R,
    };
    (class, Kind::Int(bits(ty)))
}

/// Returns the register class of an integer result: a narrow one is extended to 32 bits.
fn wide(ty: &str) -> Class {
    if bits(ty) == 64 { Class::D } else { Class::R }
}

pub(crate) fn add_conversions(list: &mut List) {
    let start = list.0.len();
    for from in INTEGERS {
        for to in INTEGERS {
            for sat in ["", ".sat"] {
                list.simple(&format!("cvt{sat}.{to}.{from}"), wide(to), &[integer(from)]);
            }
        }
        for to in FLOATS {
            for rounding in &ROUNDING[1..] {
                let sat = if *rounding == ".rn" { &["", ".sat"][..] } else { &[""] };
                for sat in sat {
                    list.simple(
                        &format!("cvt{rounding}{sat}.{to}.{from}"),
                        float(to).0,
                        &[integer(from)],
                    );
                }
            }
        }
        for of in FLOATS {
            for rounding in [".rni", ".rzi", ".rmi", ".rpi"] {
                for ftz in if of == "f32" { &["", ".ftz"][..] } else { &[""] } {
                    for sat in if rounding == ".rni" { &["", ".sat"][..] } else { &[""] } {
                        list.simple(
                            &format!("cvt{rounding}{ftz}{sat}.{from}.{of}"),
                            wide(from),
                            &[float(of)],
                        );
                    }
                }
            }
        }
    }
    between_floats(list);
    to_pairs(list);
    list.all_patterns_from(start);
}

fn between_floats(list: &mut List) {
    for from in FLOATS {
        for to in FLOATS {
            let roundings: &[&str] = if from == to {
                &["", ".rni", ".rzi", ".rmi", ".rpi"]
            } else if matches!((from, to), (_, "f64") | ("f16" | "bf16", "f32")) {
                &[""]
            } else {
                &ROUNDING[1..]
            };
            for rounding in roundings {
                for ftz in if from == "f32" || to == "f32" { &["", ".ftz"][..] } else { &[""] } {
                    for sat in ["", ".sat"] {
                        list.simple(
                            &format!("cvt{rounding}{ftz}{sat}.{to}.{from}"),
                            float(to).0,
                            &[float(from)],
                        );
                    }
                }
            }
        }
    }
}

fn to_pairs(list: &mut List) {
    let single = float("f32");
    for relu in ["", ".relu"] {
        for finite in ["", ".satfinite"] {
            for rounding in [".rn", ".rz", ".rna"] {
                list.simple(&format!("cvt{rounding}{relu}{finite}.tf32.f32"), Class::R, &[single]);
            }
            for rounding in [".rn", ".rz"] {
                for to in ["f16", "bf16"] {
                    list.simple(
                        &format!("cvt{rounding}{relu}{finite}.{to}.f32"),
                        Class::H,
                        &[single],
                    );
                    list.simple(
                        &format!("cvt{rounding}{relu}{finite}.{to}x2.f32"),
                        Class::R,
                        &[single; 2],
                    );
                }
            }
        }
        for eight in ["e4m3x2", "e5m2x2"] {
            list.simple(&format!("cvt.rn.satfinite{relu}.{eight}.f32"), Class::H, &[single; 2]);
            list.simple(
                &format!("cvt.rn.satfinite{relu}.{eight}.f16x2"),
                Class::H,
                &[float("f16x2")],
            );
            list.simple(&format!("cvt.rn{relu}.f16x2.{eight}"), Class::R, &[(Class::H, Kind::Row)]);
        }
    }
    for to in ["u16", "s16"] {
        let source = (Class::R, Kind::Int(32));
        list.simple(&format!("cvt.pack.sat.{to}.s32"), Class::R, &[source; 2]);
    }
    for to in ["u8", "s8", "u4", "s4", "u2", "s2"] {
        let source = (Class::R, Kind::Int(32));
        let narrow = (Class::R, Kind::Int(16));
        list.simple(&format!("cvt.pack.sat.{to}.s32.b32"), Class::R, &[narrow, narrow, source]);
    }
}
