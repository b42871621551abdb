//! Any operands: no instruction panics, and a result is not wider than its type.

use crate::{Arith, decode};
use crate::{Lanes, Mask, WARP};
use dmr_ptx_syntax::Type;

const NAMES: &[&str] = &[
    "abs",
    "add",
    "addc",
    "and",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "brev",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "cvt",
    "div",
    "dp2a",
    "dp4a",
    "ex2",
    "fma",
    "fns",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "max",
    "min",
    "mov",
    "mul",
    "mul24",
    "neg",
    "not",
    "or",
    "popc",
    "prmt",
    "rcp",
    "rem",
    "rsqrt",
    "sad",
    "selp",
    "set",
    "setp",
    "shf",
    "shl",
    "shr",
    "sin",
    "slct",
    "sqrt",
    "sub",
    "subc",
    "szext",
    "tanh",
    "testp",
    "xor",
    "vadd4",
    "vsub2",
    "vavrg4",
    "vabsdiff2",
    "vmin4",
    "vmax2",
    "vset4",
];
const WORDS: &[&str] = &[
    "rn",
    "rz",
    "rm",
    "rp",
    "rna",
    "rni",
    "rzi",
    "rmi",
    "rpi",
    "ftz",
    "sat",
    "relu",
    "satfinite",
    "NaN",
    "xorsign",
    "abs",
    "approx",
    "full",
    "hi",
    "lo",
    "wide",
    "cc",
    "shiftamt",
    "clamp",
    "wrap",
    "l",
    "r",
    "pack",
    "f4e",
    "b4e",
    "rc8",
    "ecl",
    "ecr",
    "rc16",
    "add",
    "eq",
    "ne",
    "lt",
    "ge",
    "hs",
    "equ",
    "leu",
    "num",
    "nan",
    "and",
    "or",
    "xor",
    "finite",
    "normal",
];
const TYPES: &[&str] = &[
    "pred", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "u16x2",
    "s16x2", "f16", "f16x2", "bf16", "bf16x2", "tf32", "e4m3x2", "e5m2x2", "f32", "f32x2", "f64",
];

/// Returns a random operation that decodes: a name, up to three words, up to three types.
fn operation(random: &mut fastrand::Rng) -> Option<(String, Arith)> {
    let name = NAMES[random.usize(..NAMES.len())];
    let mut words: Vec<&str> =
        (0..random.usize(..3)).map(|_| WORDS[random.usize(..WORDS.len())]).collect();
    words.extend((0..random.usize(1..4)).map(|_| TYPES[random.usize(..TYPES.len())]));
    let arith = decode(name, &words)?.ok()?;
    Some((format!("{name}.{}", words.join(".")), arith))
}

fn width(ty: Type) -> u32 {
    if ty == Type::Pred { 1 } else { 8 * ty.bytes() as u32 }
}

#[test]
fn no_operands_panic_and_results_fit_their_types() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut decoded = std::collections::BTreeSet::new();
    for _ in 0..super::CASES * 50 {
        let Some((opcode, arith)) = operation(&mut random) else { continue };
        decoded.insert(opcode.clone());
        let shape = *arith.operands();
        let garbage: [Lanes; 6] = std::array::from_fn(|_| std::array::from_fn(|_| random.u64(..)));
        let count = random.usize(shape.required_sources..=shape.source_count);
        let mut first = [0; WARP];
        let mut second = [0; WARP];
        let mut carry = random.u32(..);
        let sources: Vec<&Lanes> = garbage.iter().take(count).collect();
        arith.eval(&sources, &mut first, &mut second, Mask::MAX, &mut carry);

        let mut values = garbage;
        for (source, ty) in values.iter_mut().zip(shape.sources()) {
            source.iter_mut().for_each(|value| *value &= u64::MAX >> (64 - width(*ty)));
        }
        let sources: Vec<&Lanes> = values.iter().take(count).collect();
        arith.eval(&sources, &mut first, &mut second, random.u32(..), &mut carry);
        arith.eval(&sources, &mut first, &mut second, Mask::MAX, &mut carry);
        for (result, ty) in [first, second].iter().zip(shape.results()) {
            let fits = |value: &u64| shape.extends || width(*ty) == 64 || value >> width(*ty) == 0;
            assert!(result.iter().all(fits), "{opcode}: {result:x?}");
        }
    }
    assert!(decoded.len() > 400, "{} opcodes were decoded", decoded.len());
}
