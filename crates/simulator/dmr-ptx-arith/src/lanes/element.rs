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

    pub(super) fn bit_mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Returns how the bits of a floating-point element other than `F64` are turned into an `f32`.
    pub(super) fn format(self) -> Format {
        // The exponents of the smaller types have other biases; bf16 and tf32 are parts of an
        // `f32`.
        let (sign, shift, bias, special) = match self {
            Self::F16 => (15, 13, 15, 0x7c00),
            Self::E5m2 => (7, 21, 15, 0x7c),
            Self::E4m3 => (7, 20, 7, 0x7f),
            Self::Bf16 => (15, 16, 127, 0x7f80),
            _ => (31, 0, 127, 0x7f80_0000),
        };
        let kept = if self == Self::Tf32 { !0x1fff } else { !0 };
        Format { sign, shift, scale: f32::from_bits((254 - bias) << 23), special, kept }
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

    /// Returns the bits of the `F16` that is nearest to a value, or of the value as an `F32`. A NaN
    /// is the canonical one.
    #[inline(always)]
    pub(super) fn round(self, value: f32) -> u64 {
        let canonical = if self == Self::F16 { 0x7fff } else { 0x7fff_ffff };
        let bits = if self == Self::F16 {
            half_bits(nearest_half(f64::from(value)))
        } else {
            value.to_bits()
        };
        u64::from(if value.is_nan() { canonical } else { bits })
    }
}

/// The bits of a floating-point element, and its conversion to an `f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// The position of the sign.
    sign: u32,
    /// The distance of the fraction from that of an `f32`.
    shift: u32,
    /// The factor that makes up for the bias of the exponent.
    scale: f32,
    /// The bits that an infinity or NaN has.
    special: u32,
    /// The bits that are not ignored.
    kept: u32,
}

impl Format {
    /// Returns whether an element is infinite or NaN.
    #[inline(always)]
    pub(super) fn is_special(self, bits: u32) -> bool {
        bits & self.special == self.special
    }

    /// Returns the exact value of an element.
    pub(super) fn value(self, bits: u32) -> f32 {
        let special = if self.is_special(bits) { 0xff << 23 } else { 0 };
        f32::from_bits(self.finite(bits).to_bits() | special)
    }

    /// Returns the exact value of an element that is finite.
    #[inline(always)]
    pub(super) fn finite(self, bits: u32) -> f32 {
        let sign = bits >> self.sign << 31;
        let kept = bits & self.kept & ((1 << self.sign) - 1);
        let size = f32::from_bits(kept << self.shift) * self.scale;
        f32::from_bits(size.to_bits() | sign)
    }
}

/// Returns the value of the `f16` that is nearest to a value, the even one of two.
#[inline(always)]
pub(super) fn nearest_half(value: f64) -> f32 {
    let least = 2.0_f64.powi(-14);
    let above = 65536.0;
    let size = value.abs();
    let size = if size > above { above } else { size };
    let normal = if size < least { least } else { size };
    // A sum with it is rounded to ten bits below the exponent of the size.
    let large = f64::from_bits(normal.to_bits() & 0x7ff << 52) * (1_u64 << 42) as f64;
    let size = size + large - large;
    let size = if size >= above { f64::INFINITY } else { size };
    size.copysign(value) as f32
}

/// Returns the bits of a value that is an `f16`'s, and no NaN.
#[inline(always)]
fn half_bits(value: f32) -> u32 {
    let size = value.abs() * f32::from_bits((127 - 112) << 23);
    (size.to_bits() >> 13).min(0x7c00) | value.to_bits() >> 31 << 15
}
