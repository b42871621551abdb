//! The numbers that a matrix has as elements: their bits in a register, and their exact values.

/// The type of the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    B1,
    S4,
    U4,
    S8,
    U8,
    S32,
    E4m3,
    E5m2,
    F16,
    Bf16,
    /// The upper 19 bits of an `f32`; the lower 13 are ignored.
    Tf32,
    F32,
    F64,
}

impl Element {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "b1" => Self::B1,
            "s4" => Self::S4,
            "u4" => Self::U4,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s32" => Self::S32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    pub(super) fn is_integer(self) -> bool {
        matches!(self, Self::B1 | Self::S4 | Self::U4 | Self::S8 | Self::U8 | Self::S32)
    }

    /// Returns the size of an element, in bits.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::B1 => 1,
            Self::S4 | Self::U4 => 4,
            Self::S8 | Self::U8 | Self::E4m3 | Self::E5m2 => 8,
            Self::F16 | Self::Bf16 => 16,
            Self::S32 | Self::Tf32 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// Returns how many elements a register holds, the first in the low bits.
    pub(super) fn per_register(self) -> usize {
        32_usize.div_ceil(self.bits())
    }

    fn bit_mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Returns the exact value of a floating-point element.
    #[inline]
    pub(super) fn to_f64(self, bits: u64) -> f64 {
        match self {
            Self::F64 => f64::from_bits(bits),
            Self::F32 => f64::from(f32::from_bits(bits as u32)),
            Self::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
            Self::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
            Self::F16 => half(bits),
            Self::E5m2 => small_float(bits as u32, 5, 2),
            Self::E4m3 => e4m3(bits as u32),
            _ => self.to_i64(bits) as f64,
        }
    }

    /// Returns the value of an integer element.
    pub(super) fn to_i64(self, bits: u64) -> i64 {
        match self {
            Self::S4 | Self::S8 | Self::S32 => {
                let unused = 64 - self.bits();
                (bits as i64) << unused >> unused
            }
            _ => (bits & self.bit_mask()) as i64,
        }
    }

    /// Returns the element that is nearest to a value, the even one of two: `F16`, `F32` or `F64`.
    #[inline]
    pub(super) fn round(self, value: f64) -> u64 {
        match self {
            Self::F64 => value.to_bits(),
            Self::F16 => u64::from(to_half(value)),
            _ if value.is_nan() => 0x7fff_ffff,
            _ => u64::from((value as f32).to_bits()),
        }
    }
}

/// Returns 2 to the power of `exponent`, which is that of a normal `f64`.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Returns the value of an `f16`.
#[inline(always)]
pub(super) fn half(bits: u64) -> f64 {
    let size = f64::from_bits((bits & 0x7fff) << 42) * power_of_two(1023 - 15);
    let not_finite = if bits & 0x7c00 == 0x7c00 { 0x7ff << 52 } else { 0 };
    f64::from_bits(size.to_bits() | not_finite | (bits & 0x8000) << 48)
}

/// Returns the value of an IEEE number with fewer bits.
fn small_float(bits: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    let sign = if bits >> (mantissa_bits + exponent_bits) & 1 == 0 { 1.0 } else { -1.0 };
    if exponent == (1 << exponent_bits) - 1 {
        return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let hidden = if exponent == 0 { 0 } else { 1 << mantissa_bits };
    let scale = power_of_two(exponent.max(1) as i32 - bias - mantissa_bits as i32);
    sign * f64::from(hidden | mantissa) * scale
}

/// Returns the value of an e4m3 number: no infinities, one NaN of each sign.
fn e4m3(bits: u32) -> f64 {
    if bits & 0x7f == 0x7f {
        return f64::NAN;
    }
    let (mantissa, exponent) = (bits & 7, bits >> 3 & 15);
    let sign = if bits >> 7 & 1 == 0 { 1.0 } else { -1.0 };
    let hidden = if exponent == 0 { 0 } else { 8 };
    sign * f64::from(hidden | mantissa) * power_of_two(exponent.max(1) as i32 - 10)
}

/// Returns the nearest `f16`, the even one of two.
fn to_half(value: f64) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    if size >= 65536.0 {
        return sign | 0x7c00;
    }
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(-14);
    // Of the last bit of the mantissa; a carry out of the mantissa is one into the exponent.
    let units = (size * power_of_two(10 - exponent)).round_ties_even() as u16;
    sign | ((exponent + 14) as u16).wrapping_mul(1 << 10).wrapping_add(units)
}
