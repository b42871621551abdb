//! The table of instructions: the family that decodes each name.

use super::float::format_of;
use super::modifiers::{Modifiers, flag};
use super::{Arith, approx, bits, carry, compare, convert, float, integer, logic, sign, video};
use dmr_ptx_syntax::Type;

/// The instructions of a family, by name.
///
/// Several families have `add`: the first row whose condition holds decodes it.
pub(super) struct Row {
    pub(super) names: &'static [&'static str],
    pub(super) condition: fn(&Modifiers<'_>) -> bool,
    pub(super) decode: fn(&Modifiers<'_>) -> Result<Arith, String>,
}

/// All arithmetic instructions. To add one, add its name to a row of its family, which then decodes
/// and evaluates it.
#[rustfmt::skip]
pub(super) const FAMILIES: &[Row] = &[
    Row { names: &["addc", "madc", "subc"], condition: always, decode: carry::decode },
    Row { names: &["add", "mad", "sub"], condition: sets_carry, decode: carry::decode },
    Row {
        names: &["abs", "add", "div", "mad", "max", "min", "mul", "neg", "rem", "sub"],
        condition: is_integer,
        decode: integer::decode,
    },
    Row { names: &["mad24", "mul24", "sad"], condition: always, decode: integer::decode },
    Row {
        names: &[
            "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "dp2a", "dp4a", "fns", "popc", "szext",
        ],
        condition: always,
        decode: bits::decode,
    },
    Row {
        names: &[
            "and", "cnot", "lop3", "mov", "not", "or", "prmt", "selp", "shf", "shl", "shr", "xor",
        ],
        condition: always,
        decode: logic::decode,
    },
    Row { names: &["add", "fma", "mad", "mul", "sub"], condition: has_float, decode: float::decode },
    Row { names: &["div", "rcp", "sqrt"], condition: has_rounding, decode: float::decode },
    Row { names: &["div", "rcp", "sqrt"], condition: is_approximate, decode: approx::decode },
    Row {
        names: &["cos", "ex2", "lg2", "rsqrt", "sin", "tanh"],
        condition: always,
        decode: approx::decode,
    },
    Row { names: &["abs", "max", "min", "neg"], condition: is_float, decode: sign::decode },
    Row { names: &["copysign", "testp"], condition: always, decode: sign::decode },
    Row { names: &["set", "setp"], condition: always, decode: compare::decode },
    Row { names: &["slct"], condition: always, decode: compare::decode_slct },
    Row { names: &["cvt"], condition: always, decode: convert::decode },
    Row {
        names: &[
            "vabsdiff", "vabsdiff2", "vabsdiff4", "vadd", "vadd2", "vadd4", "vavrg2", "vavrg4",
            "vmad", "vmax", "vmax2", "vmax4", "vmin", "vmin2", "vmin4", "vset", "vset2", "vset4",
            "vshl", "vshr", "vsub", "vsub2", "vsub4",
        ],
        condition: always,
        decode: video::decode,
    },
];

fn always(_: &Modifiers<'_>) -> bool {
    true
}

fn sets_carry(words: &Modifiers<'_>) -> bool {
    words.has(flag::CC)
}

fn is_integer(words: &Modifiers<'_>) -> bool {
    use Type::{S16, S16x2, S32, S64, U16, U16x2, U32, U64};
    let first = words.types().first();
    matches!(first, Some(U16 | U32 | U64 | S16 | S32 | S64 | U16x2 | S16x2))
}

fn is_float(words: &Modifiers<'_>) -> bool {
    words.types().first().is_some_and(|ty| format_of(*ty).is_some())
}

fn has_float(words: &Modifiers<'_>) -> bool {
    words.types().iter().any(|ty| format_of(*ty).is_some())
}

fn has_rounding(words: &Modifiers<'_>) -> bool {
    words.rounding.is_some()
}

fn is_approximate(words: &Modifiers<'_>) -> bool {
    words.has(flag::APPROX) || words.name == "div" && words.has(flag::FULL)
}
