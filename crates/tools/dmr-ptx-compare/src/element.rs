//! Types of elements: encoding, decoding, distance in units of the last place.

/// The type of an element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the name of its type")]
pub enum Element {
    F8E4M3,
    Bf16,
    F16,
    F32,
    F64,
    U8,
    I16,
    U32,
    I32,
    I64,
}

/// The layout of a floating-point type.
#[derive(Clone, Copy, Debug)]
struct Layout {
    exponent_bits: u32,
    mantissa_bits: u32,
}

impl Layout {
    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }
}

impl Element {
    /// Returns the type that this part of a kernel's name means.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "f8_e4m3" | "fp8_e4m3" => Self::F8E4M3,
            "bf16" => Self::Bf16,
            "f16" => Self::F16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "u8" => Self::U8,
            "i16" => Self::I16,
            "u32" => Self::U32,
            "i32" => Self::I32,
            "i64" => Self::I64,
            _ => return None,
        })
    }

    /// Returns the number of bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F8E4M3 | Self::U8 => 1,
            Self::Bf16 | Self::F16 | Self::I16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    const fn layout(self) -> Option<Layout> {
        let (exponent_bits, mantissa_bits) = match self {
            Self::F8E4M3 => (4, 3),
            Self::Bf16 => (8, 7),
            Self::F16 => (5, 10),
            Self::F32 => (8, 23),
            Self::F64 => (11, 52),
            _ => return None,
        };
        Some(Layout { exponent_bits, mantissa_bits })
    }

    /// Returns whether this is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        self.layout().is_some()
    }

    /// Returns the number of bits of the mantissa, without the hidden one; 0 for integers.
    #[must_use]
    pub const fn mantissa_bits(self) -> u32 {
        match self.layout() {
            Some(layout) => layout.mantissa_bits,
            None => 0,
        }
    }

    /// Returns the bits of a value, rounded towards zero; floats that are too small become zero.
    #[must_use]
    pub fn encode(self, value: f64) -> u64 {
        let Some(layout) = self.layout() else {
            return (value as i64).cast_unsigned() & self.mask();
        };
        let bits = value.to_bits();
        let sign = (bits >> 63) << (layout.exponent_bits + layout.mantissa_bits);
        let exponent = ((bits >> 52) & 0x7ff) as i32 - 1023 + layout.bias();
        if exponent <= 0 {
            return sign;
        }
        let mantissa = (bits & ((1 << 52) - 1)) >> (52 - layout.mantissa_bits);
        sign | (u64::from(exponent.cast_unsigned()) << layout.mantissa_bits) | mantissa
    }

    /// Returns the value of these bits: exact, of integers up to 2^53.
    #[must_use]
    pub fn decode(self, bits: u64) -> f64 {
        let Some(layout) = self.layout() else {
            return match self {
                Self::I16 => f64::from(bits as i16),
                Self::I32 => f64::from(bits as i32),
                Self::I64 => bits.cast_signed() as f64,
                _ => bits as f64,
            };
        };
        if self.is_nan(bits) {
            return f64::NAN;
        }
        let magnitude = bits & self.magnitude_mask();
        let sign = if magnitude == bits { 1.0 } else { -1.0 };
        let mantissa = magnitude & ((1 << layout.mantissa_bits) - 1);
        let exponent = (magnitude >> layout.mantissa_bits) as i32;
        let scale = |exponent: i32| 2f64.powi(exponent - layout.mantissa_bits as i32);
        let value = if exponent == 0 {
            mantissa as f64 * scale(1 - layout.bias())
        } else if exponent == (1 << layout.exponent_bits) - 1 && self != Self::F8E4M3 {
            f64::INFINITY
        } else {
            (mantissa | (1 << layout.mantissa_bits)) as f64 * scale(exponent - layout.bias())
        };
        if self == Self::F64 { f64::from_bits(bits) } else { sign * value }
    }

    /// Returns whether these bits are a NaN.
    #[must_use]
    pub fn is_nan(self, bits: u64) -> bool {
        let Some(layout) = self.layout() else { return false };
        let magnitude = bits & self.magnitude_mask();
        let infinity = ((1 << layout.exponent_bits) - 1) << layout.mantissa_bits;
        if self == Self::F8E4M3 { magnitude == 0x7f } else { magnitude > infinity }
    }

    /// Returns the bits, with one NaN for all.
    #[must_use]
    pub fn canonical(self, bits: u64) -> u64 {
        if self.is_nan(bits) { self.magnitude_mask() } else { bits }
    }

    /// Returns the distance in units of the last place; `None` where exactly one is a NaN. Of
    /// integers, the difference.
    #[must_use]
    pub fn distance(self, a: u64, b: u64) -> Option<u64> {
        match (self.is_nan(a), self.is_nan(b)) {
            (true, true) => return Some(0),
            (false, false) => {}
            _ => return None,
        }
        if !self.is_float() {
            return Some((self.decode(a) - self.decode(b)).abs() as u64);
        }
        let position = |bits: u64| {
            let magnitude = i128::from(bits & self.magnitude_mask());
            if bits & self.magnitude_mask() == bits { magnitude } else { -magnitude }
        };
        Some((position(a) - position(b)).unsigned_abs() as u64)
    }

    /// Returns the difference in units of the last place, in the type `of`, of the largest of both
    /// values and 1: it stays small where terms cancel. `None` where exactly one is a NaN or
    /// infinite.
    #[must_use]
    pub fn scaled_distance(self, a: u64, b: u64, of: Self) -> Option<u64> {
        if self.canonical(a) == self.canonical(b) {
            return Some(0);
        }
        let a = self.decode(a);
        let b = self.decode(b);
        let largest = a.abs().max(b.abs()).max(1.0);
        let exponent = ((largest.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let unit = 2f64.powi(exponent - of.mantissa_bits() as i32);
        let units = ((a - b).abs() / unit).ceil();
        units.is_finite().then_some(units as u64)
    }

    /// Returns the bits of each element.
    pub fn each(self, bytes: &[u8]) -> impl Iterator<Item = u64> {
        bytes.chunks_exact(self.size()).map(|chunk| {
            let mut bits = [0; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(bits)
        })
    }

    /// Returns the bytes of these elements.
    pub fn bytes(self, elements: impl IntoIterator<Item = u64>) -> Vec<u8> {
        elements
            .into_iter()
            .flat_map(|bits| bits.to_le_bytes().into_iter().take(self.size()))
            .collect()
    }

    const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.size())
    }

    const fn magnitude_mask(self) -> u64 {
        self.mask() >> 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_encoding_and_decoding() {
        for element in [Element::F8E4M3, Element::Bf16, Element::F16, Element::F32, Element::F64] {
            for value in [0.0, 1.0, -1.5, 12.0, 0.125] {
                assert_eq!(element.decode(element.encode(value)), value, "{element:?}");
            }
        }
        assert_eq!(Element::F16.decode(1), 2f64.powi(-24));
        assert_eq!(Element::F8E4M3.decode(0x7e), 448.0);
        assert_eq!(Element::I32.decode(Element::I32.encode(-3.0)), -3.0);
    }

    #[test]
    fn the_distance_crosses_zero_and_nan_has_none() {
        assert_eq!(Element::F32.distance(1, 0x8000_0001), Some(2));
        assert_eq!(Element::F32.distance(0x7fc0_0000, 0x7fff_ffff), Some(0));
        assert_eq!(Element::F32.distance(0x7fc0_0000, 0), None);
        assert_eq!(Element::F8E4M3.distance(0xff, 0x7e), None);
    }

    #[test]
    fn the_scaled_distance_is_small_where_terms_cancel() {
        let f32 = |value: f32| u64::from(value.to_bits());
        assert_eq!(Element::F32.scaled_distance(f32(1e-9), f32(-1e-9), Element::F32), Some(1));
        assert_eq!(
            Element::F32.scaled_distance(f32(4.0), f32(4.0 + 4.0 * f32::EPSILON), Element::F32),
            Some(1)
        );
        assert_eq!(Element::F32.scaled_distance(f32(f32::INFINITY), f32(1.0), Element::F32), None);
        assert_eq!(
            Element::F32.scaled_distance(f32(f32::NAN), f32(f32::NAN), Element::F32),
            Some(0)
        );
        assert_eq!(Element::F32.scaled_distance(f32(f32::NAN), f32(0.0), Element::F32), None);
    }
}
