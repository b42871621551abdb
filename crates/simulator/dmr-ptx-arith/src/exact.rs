//! Exact results of floating-point operations, and their one rounding to a format, in every
//! rounding mode.

use super::modifiers::Rounding;

/// A binary floating-point format of at most 64 bits: a sign, an exponent, a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) fraction_bits: u32,
    pub(super) exponent_bits: u32,
    /// The canonical NaN.
    pub(super) nan: u64,
    /// The greatest finite value. Where the format has infinities, the next bit pattern is
    /// infinity.
    pub(super) greatest: u64,
}

pub(super) const F16: Format =
    Format { fraction_bits: 10, exponent_bits: 5, nan: 0x7fff, greatest: 0x7bff };
pub(super) const BF16: Format =
    Format { fraction_bits: 7, exponent_bits: 8, nan: 0x7fff, greatest: 0x7f7f };
/// The upper 19 bits of an `f32`.
pub(super) const TF32: Format =
    Format { fraction_bits: 10, exponent_bits: 8, nan: 0x3ffff, greatest: 0x3fbff };
pub(super) const F32: Format =
    Format { fraction_bits: 23, exponent_bits: 8, nan: 0x7fff_ffff, greatest: 0x7f7f_ffff };
pub(super) const F64: Format = Format {
    fraction_bits: 52,
    exponent_bits: 11,
    nan: 0xfff8_0000_0000_0000,
    greatest: 0x7fef_ffff_ffff_ffff,
};
/// Has one NaN for each sign and no infinities.
pub(super) const E4M3: Format =
    Format { fraction_bits: 3, exponent_bits: 4, nan: 0x7f, greatest: 0x7e };
pub(super) const E5M2: Format =
    Format { fraction_bits: 2, exponent_bits: 5, nan: 0x7f, greatest: 0x7b };

impl Format {
    /// Returns the sign bit.
    pub(super) const fn sign(self) -> u64 {
        1 << (self.fraction_bits + self.exponent_bits)
    }

    /// Returns the bits of infinity.
    pub(super) const fn infinity(self) -> u64 {
        self.greatest + 1
    }

    /// Returns whether it has infinities: in E4M3 the NaN is where they would be.
    const fn has_infinity(self) -> bool {
        self.nan != self.infinity()
    }

    /// Returns the number of bits of a value.
    pub(super) const fn bits(self) -> u32 {
        self.fraction_bits + self.exponent_bits + 1
    }

    /// Returns the bits of 1.
    pub(super) const fn one(self) -> u64 {
        self.bias() << self.fraction_bits
    }

    const fn bias(self) -> u64 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// Returns whether `bits` are NaN.
    #[inline(always)]
    pub(super) const fn is_nan(self, bits: u64) -> bool {
        let magnitude = bits & !self.sign();
        magnitude > if self.has_infinity() { self.infinity() } else { self.greatest }
    }

    /// Returns the quiet NaN with the sign and the payload of a NaN.
    #[inline(always)]
    pub(super) const fn quiet(self, nan: u64) -> u64 {
        nan | 1 << (self.fraction_bits - 1)
    }

    /// Returns whether a value is below the least normal one when it is rounded as if exponents had
    /// no bound. It is exact, or rounded to odd.
    #[inline(always)]
    pub(super) fn is_tiny(self, value: f64, rounding: Rounding) -> bool {
        let least = f64::from_bits((1024 - self.bias()) << 52);
        // The greatest value below it with as many bits, and the one half way between.
        let ulp = f64::from_bits((1023 - u64::from(self.fraction_bits) - 1) << 52);
        match rounding {
            Rounding::Nearest | Rounding::NearestAway => value.abs() < least * (1.0 - ulp / 2.0),
            Rounding::Up if value > 0.0 => value <= least * (1.0 - ulp),
            Rounding::Down if value < 0.0 => -value <= least * (1.0 - ulp),
            _ => value.abs() < least,
        }
    }

    /// Returns `bits`, or a zero of the same sign if they are subnormal.
    #[inline(always)]
    pub(super) const fn flush(self, bits: u64) -> u64 {
        let exponent = ((1 << self.exponent_bits) - 1) << self.fraction_bits;
        if bits & exponent == 0 { bits & self.sign() } else { bits }
    }

    /// Returns `bits` clamped to the range from +0 to 1; NaN becomes +0.
    #[inline(always)]
    pub(super) const fn saturate(self, bits: u64) -> u64 {
        if self.is_nan(bits) || bits & self.sign() != 0 {
            0
        } else if bits > self.one() {
            self.one()
        } else {
            bits
        }
    }

    /// Returns `bits`, or +0 if they are negative, or the canonical NaN.
    #[inline(always)]
    pub(super) const fn relu(self, bits: u64) -> u64 {
        if self.is_nan(bits) {
            self.nan
        } else if bits & self.sign() != 0 {
            0
        } else {
            bits
        }
    }

    /// Returns the value of `bits`, which an `f64` holds exactly for every format here.
    #[inline(always)]
    pub(super) fn load(self, bits: u64) -> f64 {
        if self.fraction_bits == 52 {
            return f64::from_bits(bits);
        }
        if self.fraction_bits == 23 {
            return f64::from(f32::from_bits(bits as u32));
        }
        if self.fraction_bits == 7 && self.exponent_bits == 8 {
            return f64::from(f32::from_bits((bits as u32) << 16));
        }
        let sign = (bits & self.sign()) << (63 - self.fraction_bits - self.exponent_bits);
        let magnitude = bits & (self.sign() - 1);
        // Read as an `f64` with the same fraction and exponent, it is too small by a power of two:
        // subnormals too.
        let scale = f64::from_bits((1023 + 1023 - self.bias()) << 52);
        let scaled = f64::from_bits(magnitude << (52 - self.fraction_bits)) * scale;
        let value = if magnitude <= self.greatest {
            scaled
        } else if self.is_nan(magnitude) {
            f64::NAN
        } else {
            f64::INFINITY
        };
        f64::from_bits(value.to_bits() | sign)
    }

    /// Returns the bits of a value that is not rounded further: NaN, infinite, zero.
    fn special(self, value: f64) -> u64 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_nan() {
            self.nan
        } else if value == 0.0 {
            sign
        } else {
            sign | self.infinity()
        }
    }

    /// Returns the bits of a value that the format holds.
    pub(super) fn store_exact(self, value: f64) -> u64 {
        if self.fraction_bits == 52 {
            value.to_bits()
        } else {
            self.store(value, Rounding::Nearest)
        }
    }

    /// Rounds a value to this format: once, if it is exact.
    #[inline(always)]
    pub(super) fn store(self, value: f64, rounding: Rounding) -> u64 {
        let bits = value.to_bits();
        let magnitude = bits & !(1 << 63);
        let sign = (bits >> 63) << (self.fraction_bits + self.exponent_bits);
        let dropped = 52 - self.fraction_bits;
        // Normal in this format before and after rounding: a round by one addition.
        let least = (1024 - self.bias()) << 52;
        let beyond = (1023 + self.bias()) << 52;
        if dropped > 0 && magnitude >= least && magnitude < beyond {
            let most = (1 << dropped) - 1;
            let added = match rounding {
                Rounding::Nearest => (most >> 1) + (magnitude >> dropped & 1),
                Rounding::NearestAway => (most >> 1) + 1,
                Rounding::Zero => 0,
                Rounding::Down => most * (bits >> 63),
                Rounding::Up => most * (bits >> 63 ^ 1),
            };
            let encoded =
                ((magnitude + added) >> dropped) - ((1023 - self.bias()) << self.fraction_bits);
            return encoded | sign;
        }
        if magnitude == 0 { sign } else { self.store_rare(value, rounding) }
    }

    /// Rounds a value that is NaN, infinite, subnormal in this format, or near its greatest values.
    #[cold]
    #[inline(never)]
    fn store_rare(self, value: f64, rounding: Rounding) -> u64 {
        if value.is_finite() { Exact::of(value).round(self, rounding) } else { self.special(value) }
    }
}

/// An exact value: `significand * 2^exponent`. Bits below the significand are represented by its
/// lowest bit, set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    pub(super) negative: bool,
    pub(super) exponent: i32,
    pub(super) significand: u128,
}

impl Exact {
    /// Returns the exact value of a finite number.
    pub(super) fn of(value: f64) -> Self {
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as i32;
        let fraction = u128::from(bits & ((1 << 52) - 1));
        let significand = if exponent == 0 { fraction } else { fraction | 1 << 52 };
        Self { negative: bits >> 63 != 0, exponent: exponent.max(1) - 1075, significand }
    }

    /// Returns the exact value of an integer.
    pub(super) fn of_integer(value: i128) -> Self {
        Self { negative: value < 0, exponent: 0, significand: value.unsigned_abs() }
    }

    /// Returns the product of two values with at most 53 bits each.
    fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            exponent: self.exponent + other.exponent,
            significand: self.significand * other.significand,
        }
    }

    /// Moves the highest set bit to `top`.
    fn with_top_at(self, top: u32) -> Self {
        let shift = top as i32 - (127 - self.significand.leading_zeros() as i32);
        let significand = if shift >= 0 {
            self.significand << shift
        } else {
            shift_down(self.significand, shift.unsigned_abs())
        };
        Self { negative: self.negative, exponent: self.exponent - shift, significand }
    }

    /// Returns the sum of two values with at most 106 bits each. The rounding mode decides the sign
    /// of a zero.
    fn plus(self, other: Self, rounding: Rounding) -> Self {
        if self.significand == 0 && other.significand == 0 {
            let negative = if self.negative == other.negative {
                self.negative
            } else {
                rounding == Rounding::Down
            };
            return Self { negative, exponent: 0, significand: 0 };
        } else if self.significand == 0 {
            return other;
        } else if other.significand == 0 {
            return self;
        }
        // With its top at bit 125 a value of 106 bits has 20 zeros below: a shift that loses bits
        // is so long that a difference loses at most one bit at the top, and the lowest bit is far
        // below what rounding looks at.
        let a = self.with_top_at(125);
        let b = other.with_top_at(125);
        let (large, small) = if (a.exponent, a.significand) >= (b.exponent, b.significand) {
            (a, b)
        } else {
            (b, a)
        };
        let aligned = shift_down(small.significand, large.exponent.abs_diff(small.exponent));
        let significand = if large.negative == small.negative {
            large.significand + aligned
        } else {
            large.significand - aligned
        };
        let negative = if significand == 0 { rounding == Rounding::Down } else { large.negative };
        Self { negative, exponent: large.exponent, significand }
    }

    /// Returns the quotient of two values with at most 53 bits each, to 73 bits or more. `other` is
    /// not zero.
    fn over(self, other: Self) -> Self {
        let negative = self.negative != other.negative;
        if self.significand == 0 {
            return Self { negative, exponent: 0, significand: 0 };
        }
        let a = self.with_top_at(126);
        let b = other.with_top_at(52);
        let rest = !a.significand.is_multiple_of(b.significand);
        let significand = (a.significand / b.significand) | u128::from(rest);
        Self { negative, exponent: a.exponent - b.exponent, significand }
    }

    /// Returns the square root of a value with at most 53 bits that is not negative, to 62 bits or
    /// more.
    fn square_root(self) -> Self {
        if self.significand == 0 {
            return self;
        }
        let mut even = self.with_top_at(125);
        if even.exponent % 2 != 0 {
            even = self.with_top_at(124);
        }
        let root = even.significand.isqrt();
        let rest = root * root != even.significand;
        // One more bit at the bottom for what is left.
        Self {
            negative: false,
            exponent: even.exponent / 2 - 1,
            significand: root << 1 | u128::from(rest),
        }
    }

    /// Rounds to a format. An overflow is infinity or the greatest finite value, as the rounding
    /// mode demands.
    pub(super) fn round(self, format: Format, rounding: Rounding) -> u64 {
        let sign = if self.negative { format.sign() } else { 0 };
        if self.significand == 0 {
            return sign;
        }
        let top = self.exponent + 127 - self.significand.leading_zeros() as i32;
        let fraction_bits = format.fraction_bits as i32;
        let least = 1 - format.bias() as i32 - fraction_bits;
        // The exponent of the last bit that the format keeps.
        let last = (top - fraction_bits).max(least);
        let kept = self.rounded_at(last, rounding);
        let encoded = u128::from((last - least).unsigned_abs()) << fraction_bits;
        let bits = kept + encoded;
        if bits <= u128::from(format.greatest) {
            return sign | bits as u64;
        }
        let away = match rounding {
            Rounding::Nearest | Rounding::NearestAway => true,
            Rounding::Zero => false,
            Rounding::Down => self.negative,
            Rounding::Up => !self.negative,
        };
        sign | if away { format.infinity() } else { format.greatest }
    }

    /// Returns the magnitude as a multiple of `2^last`, rounded. It must fit.
    fn rounded_at(self, last: i32, rounding: Rounding) -> u128 {
        let shift = last - self.exponent;
        if shift <= 0 {
            return self.significand << shift.unsigned_abs();
        }
        let shift = shift.unsigned_abs();
        if shift > 128 {
            let up = match rounding {
                Rounding::Up => !self.negative,
                Rounding::Down => self.negative,
                _ => false,
            };
            return u128::from(up);
        }
        let kept = if shift == 128 { 0 } else { self.significand >> shift };
        let rest =
            if shift == 128 { self.significand } else { self.significand & ((1 << shift) - 1) };
        let half = 1u128 << (shift - 1);
        let up = match rounding {
            Rounding::Nearest => rest > half || rest == half && kept & 1 != 0,
            Rounding::NearestAway => rest >= half,
            Rounding::Zero => false,
            Rounding::Down => self.negative && rest != 0,
            Rounding::Up => !self.negative && rest != 0,
        };
        kept + u128::from(up)
    }
}

/// Shifts right; lost bits that were set are represented by the lowest bit.
fn shift_down(x: u128, shift: u32) -> u128 {
    if shift > 127 {
        return u128::from(x != 0);
    }
    let kept = x >> shift;
    kept | u128::from(kept << shift != x)
}

/// A basic operation of IEEE 754.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basic {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Sqrt,
}

/// Computes an operation on values that `format` can hold, exactly, and rounds it once.
pub(super) fn rounded(
    basic: Basic,
    [a, b, c]: [f64; 3],
    format: Format,
    rounding: Rounding,
) -> u64 {
    let finite = match basic {
        Basic::Add | Basic::Sub | Basic::Mul => a.is_finite() && b.is_finite(),
        Basic::Fma => a.is_finite() && b.is_finite() && c.is_finite(),
        Basic::Div => a.is_finite() && b.is_finite() && b != 0.0,
        Basic::Sqrt => a.is_finite() && a >= 0.0,
    };
    if !finite {
        // NaN, infinite or zero: no rounding mode changes it.
        return format.special(match basic {
            Basic::Add => a + b,
            Basic::Sub => a - b,
            Basic::Mul => a * b,
            Basic::Fma => special_product(a, b) + c,
            Basic::Div => a / b,
            Basic::Sqrt => a.sqrt(),
        });
    }
    let exact = match basic {
        Basic::Add => Exact::of(a).plus(Exact::of(b), rounding),
        Basic::Sub => Exact::of(a).plus(Exact::of(-b), rounding),
        Basic::Mul => Exact::of(a).times(Exact::of(b)),
        Basic::Fma => Exact::of(a).times(Exact::of(b)).plus(Exact::of(c), rounding),
        Basic::Div => Exact::of(a).over(Exact::of(b)),
        Basic::Sqrt => Exact::of(a).square_root(),
    };
    exact.round(format, rounding)
}

/// Returns a product that is NaN or infinite only where the exact one is: a finite one may not
/// overflow.
fn special_product(a: f64, b: f64) -> f64 {
    if a.is_finite() && b.is_finite() { 0.0 } else { a * b }
}
