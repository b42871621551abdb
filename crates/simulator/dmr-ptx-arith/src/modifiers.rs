//! The modifiers of an opcode: what follows the dots, sorted by kind.

use dmr_ptx_syntax::Type;

/// A rounding mode of a floating-point result, or of a conversion to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// `.rn`, `.rni`: to the nearest, ties to even.
    Nearest,
    /// `.rna`: to the nearest, ties away from zero.
    NearestAway,
    /// `.rz`, `.rzi`: towards zero.
    Zero,
    /// `.rm`, `.rmi`: towards negative infinity.
    Down,
    /// `.rp`, `.rpi`: towards positive infinity.
    Up,
}

/// A comparison of `set` and `setp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unsigned `<`, `<=`, `>`, `>=`.
    Lo,
    Ls,
    Hi,
    Hs,
    /// True too if an operand is NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Neither operand is NaN; one is.
    Num,
    Nan,
}

/// An operator that combines a comparison with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    And,
    Or,
    Xor,
}

/// Words that are set or not, as bits.
pub(super) mod flag {
    macro_rules! flags {
        ($($name:ident = $word:literal),* $(,)?) => {
            flags!(@number 0u32; $($name)*);
            /// Each word of a flag, with its bit.
            pub(crate) const WORDS: &[(&str, u32)] = &[$(($word, $name)),*];
        };
        (@number $n:expr; $name:ident $($rest:ident)*) => {
            pub(crate) const $name: u32 = 1 << $n;
            flags!(@number $n + 1; $($rest)*);
        };
        (@number $n:expr;) => {};
    }
    flags! {
        FTZ = "ftz", SAT = "sat", RELU = "relu", SATFINITE = "satfinite", NAN = "NaN", XORSIGN = "xorsign",
        ABS = "abs", APPROX = "approx", FULL = "full", HI = "hi", LO = "lo", WIDE = "wide", CC = "cc",
        SHIFTAMT = "shiftamt", CLAMP = "clamp", WRAP = "wrap", LEFT = "l", RIGHT = "r", PACK = "pack",
        F4E = "f4e", B4E = "b4e", RC8 = "rc8", ECL = "ecl", ECR = "ecr", RC16 = "rc16",
        ACCUMULATE = "add", INTEGER = "rounds to an integer",
    }
}

/// The modifiers of one instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modifiers<'a> {
    pub(super) name: &'a str,
    flags: u32,
    pub(super) rounding: Option<Rounding>,
    pub(super) comparison: Option<Comparison>,
    pub(super) combine: Option<Combine>,
    types: [Type; 4],
    type_count: usize,
    /// A word of `testp`: `finite`, `infinite`, `number`, `notanumber`, `normal`, `subnormal`.
    pub(super) class: Option<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Sorts the words after the dots; a word that no arithmetic instruction has is an error.
    pub(super) fn parse(name: &'a str, words: &[&'a str]) -> Result<Self, String> {
        let mut all = Self {
            name,
            flags: 0,
            rounding: None,
            comparison: None,
            combine: None,
            types: [Type::B32; 4],
            type_count: 0,
            class: None,
        };
        for word in words {
            all.add(word)?;
        }
        Ok(all)
    }

    fn add(&mut self, word: &'a str) -> Result<(), String> {
        if let Some(ty) = Type::from_name(word) {
            let place = self.types.get_mut(self.type_count);
            *place.ok_or_else(|| format!("{} has too many types", self.name))? = ty;
            self.type_count += 1;
        } else if let Some((_, bit)) = flag::WORDS.iter().find(|(known, _)| known == &word) {
            self.flags |= bit;
        } else if let Some((rounding, integer)) = rounding(word) {
            if self.rounding.replace(rounding).is_some() {
                return Err(format!("{} has two rounding modes", self.name));
            }
            self.flags |= if integer { flag::INTEGER } else { 0 };
        } else if let Some(comparison) = comparison(word) {
            self.comparison = Some(comparison);
        } else {
            match word {
                "and" => self.combine = Some(Combine::And),
                "or" => self.combine = Some(Combine::Or),
                "xor" => self.combine = Some(Combine::Xor),
                "finite" | "infinite" | "number" | "notanumber" | "normal" | "subnormal" => {
                    self.class = Some(word)
                }
                _ => return Err(format!("{}: the modifier .{word} is not supported", self.name)),
            }
        }
        Ok(())
    }

    /// Returns whether the flag is there.
    pub(super) const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Errors if there is a flag that is not in `allowed`, or a rounding mode, comparison,
    /// combination or class: the instruction's decoder takes those that it has before.
    pub(super) fn only(&self, allowed: u32) -> Result<(), String> {
        if let Some((word, _)) =
            flag::WORDS.iter().find(|(_, bit)| self.flags & !allowed & bit != 0)
        {
            return Err(format!("{}: the modifier .{word} is not supported here", self.name));
        }
        if self.rounding.is_some()
            || self.comparison.is_some()
            || self.combine.is_some()
            || self.class.is_some()
        {
            return Err(format!(
                "{}: a rounding mode or comparison is not supported here",
                self.name
            ));
        }
        Ok(())
    }

    /// Returns the types, in the order of the text.
    pub(super) fn types(&self) -> &[Type] {
        self.types.get(..self.type_count).unwrap_or(&self.types)
    }

    /// Returns the type of an instruction that has one.
    pub(super) fn one_type(&self) -> Result<Type, String> {
        match self.types() {
            [ty] => Ok(*ty),
            other => Err(format!("{} has {} types instead of one", self.name, other.len())),
        }
    }

    /// Returns the error for a type that the instruction does not have.
    pub(super) fn wrong_type<T>(&self, ty: Type) -> Result<T, String> {
        Err(format!("{} is not supported for the type {ty:?}", self.name))
    }
}

fn rounding(word: &str) -> Option<(Rounding, bool)> {
    Some(match word {
        "rn" => (Rounding::Nearest, false),
        "rna" => (Rounding::NearestAway, false),
        "rz" => (Rounding::Zero, false),
        "rm" => (Rounding::Down, false),
        "rp" => (Rounding::Up, false),
        "rni" => (Rounding::Nearest, true),
        "rzi" => (Rounding::Zero, true),
        "rmi" => (Rounding::Down, true),
        "rpi" => (Rounding::Up, true),
        _ => return None,
    })
}

fn comparison(word: &str) -> Option<Comparison> {
    Some(match word {
        "eq" => Comparison::Eq,
        "ne" => Comparison::Ne,
        "lt" => Comparison::Lt,
        "le" => Comparison::Le,
        "gt" => Comparison::Gt,
        "ge" => Comparison::Ge,
        "ls" => Comparison::Ls,
        "hs" => Comparison::Hs,
        "equ" => Comparison::Equ,
        "neu" => Comparison::Neu,
        "ltu" => Comparison::Ltu,
        "leu" => Comparison::Leu,
        "gtu" => Comparison::Gtu,
        "geu" => Comparison::Geu,
        "num" => Comparison::Num,
        "nan" => Comparison::Nan,
        _ => return None,
    })
}
