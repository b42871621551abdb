//! Decoding: accepted and refused opcodes, and the operands that it reports.

use super::{decoded, refused};
use crate::decode;
use dmr_ptx_syntax::Type;

#[test]
fn instructions_of_other_families_are_not_decoded() {
    for name in ["ld", "bra", "shfl", "atom", "bar", "cvta", ""] {
        assert!(decode(name, &["u32"]).is_none(), "{name}");
    }
}

#[test]
fn the_refusal_names_the_instruction() {
    for opcode in [
        "add",
        "add.u8",
        "add.sat.u32",
        "add.rn.s32",
        "add.wide.u32",
        "add.u32.u32",
        "mul.u32",
        "mul.wide.u64",
        "mul.lo.hi.s32",
        "fma.f32",
        "fma.rna.f32",
        "add.rz.f16",
        "div.rn.f16",
        "add.ftz.f64",
        "min.relu.u32",
        "abs.u32",
        "neg.u32",
        "shf.l.b32",
        "div.f32",
        "rcp.f64",
        "lop3.b64",
        "popc.u32",
        "bfe.b32",
        "dp4a.u32",
        "prmt.b64",
        "and.u32",
        "vadd.u32",
        "vabsdiff4.u32",
        "add.frobnicate.u32",
        "mov.b128",
        "min.ftz.f64",
        "add.sat.relu.f32",
        "add.rn.rz.f32",
        "setp.f32",
        "testp.f32",
        "slct.f32.u32",
        "addc.u16",
        "bmsk.b32",
        "add.sat.f32x2",
        "abs.f32x2",
        "sad.u16x2",
    ] {
        let name = opcode.split('.').next().unwrap_or_default();
        assert!(refused(opcode).contains(name), "{opcode}: {}", refused(opcode));
    }
}

#[test]
fn operands_have_types_and_counts() {
    let operands = |opcode: &str| *decoded(opcode).operands();
    assert_eq!(operands("mad.wide.s16").results(), [Type::S32]);
    assert_eq!(operands("mad.wide.s16").sources(), [Type::S16, Type::S16, Type::S32]);
    assert_eq!(operands("setp.lt.and.f32").sources(), [Type::F32, Type::F32, Type::Pred]);
    assert_eq!(operands("setp.lt.f32").results(), [Type::Pred, Type::Pred]);
    assert_eq!(operands("setp.lt.f32").required_results, 1);
    assert_eq!(operands("max.f32").source_count, 3);
    assert_eq!(operands("max.f32").required_sources, 2);
    assert_eq!(operands("bfi.b64").sources(), [Type::B64, Type::B64, Type::U32, Type::U32]);
    assert_eq!(operands("lop3.or.b32").sources().last(), Some(&Type::Pred));
    assert_eq!(operands("cvt.rn.f16x2.f32").sources(), [Type::F32, Type::F32]);
    assert_eq!(operands("slct.f64.s32").sources(), [Type::F64, Type::F64, Type::S32]);
    assert_eq!(operands("selp.u16").sources(), [Type::U16, Type::U16, Type::Pred]);
}
