//! Columns of numbers for the page: as few bytes a number as they need, deflated, as base64.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;

/// The description of a column. A value is `min + scale * raw`, and with `differences` the sum of
/// these up to its row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Description {
    pub(crate) name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    length: usize,
    min: u64,
    scale: u64,
    differences: bool,
}

/// A column, packed.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) description: Description,
    pub(crate) base64: String,
}

/// Packs a column.
///
/// # Errors
///
/// Those of the compressor, which writes to memory and has none.
pub(crate) fn pack(
    name: &'static str,
    values: impl Iterator<Item = u64> + Clone,
) -> io::Result<Packed> {
    pack_as(name, values, false)
}

/// Packs a column whose values never decrease as differences.
pub(crate) fn pack_rising(
    name: &'static str,
    values: impl Iterator<Item = u64> + Clone,
) -> io::Result<Packed> {
    let mut last = 0;
    let differences = values.map(move |value| {
        let difference = value.saturating_sub(last);
        last = value;
        difference
    });
    pack_as(name, differences, true)
}

fn pack_as(
    name: &'static str,
    values: impl Iterator<Item = u64> + Clone,
    differences: bool,
) -> io::Result<Packed> {
    let range = Range::of(values.clone());
    let width = range.width();
    let mut length = 0;
    let mut raw = Buffered::new();
    for value in values {
        length += 1;
        let scaled = (value - range.min) / range.scale;
        let bytes = scaled.to_le_bytes();
        match width {
            Width::U8 => raw.push(&bytes[..1])?,
            Width::U16 => raw.push(&bytes[..2])?,
            Width::U32 => raw.push(&bytes[..4])?,
            Width::F64 => raw.push(&(scaled as f64).to_le_bytes())?,
        }
    }
    let kind = match width {
        Width::U8 => "u8",
        Width::U16 => "u16",
        Width::U32 => "u32",
        Width::F64 => "f64",
    };
    let Range { min, scale, .. } = range;
    let description = Description { name, kind, length, min, scale, differences };
    Ok(Packed { description, base64: base64(&raw.finish()?) })
}

/// Small writes cost the compressor more than their bytes.
struct Buffered {
    out: DeflateEncoder<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Buffered {
    const SIZE: usize = 64 << 10;

    fn new() -> Self {
        Self {
            out: DeflateEncoder::new(Vec::new(), Compression::fast()),
            buffer: Vec::with_capacity(Self::SIZE),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > Self::SIZE {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        self.out.write_all(&self.buffer)?;
        self.out.finish()
    }
}

#[derive(Clone, Copy)]
enum Width {
    U8,
    U16,
    U32,
    F64,
}

/// The range of the values, and their greatest common divisor.
struct Range {
    min: u64,
    max: u64,
    scale: u64,
}

impl Range {
    fn of(values: impl Iterator<Item = u64> + Clone) -> Self {
        let min = values.clone().min().unwrap_or(0);
        let max = values.clone().max().unwrap_or(0);
        let mut scale = max - min;
        for value in values {
            if scale <= 1 {
                break;
            }
            scale = gcd(scale, value - min);
        }
        Self { min, max, scale: scale.max(1) }
    }

    fn width(&self) -> Width {
        match (self.max - self.min) / self.scale {
            0..=0xFF => Width::U8,
            0x100..=0xFFFF => Width::U16,
            0x1_0000..=0xFFFF_FFFF => Width::U32,
            _ => Width::F64,
        }
    }
}

/// Returns the greatest common divisor of a number that is not 0 and another one.
const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        let rest = a % b;
        a = b;
        b = rest;
    }
    a
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=three.len()].copy_from_slice(three);
        let group = u32::from_be_bytes(group);
        for digit in 0..4 {
            let shown = digit <= three.len();
            let value = group >> (18 - 6 * digit) & 63;
            text.push(if shown { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::DeflateDecoder;
    use proptest::prelude::*;

    use super::*;

    /// Does what the page does.
    fn unpack(packed: &Packed) -> Vec<u64> {
        let Description { kind, length, min, scale, differences, .. } = packed.description;
        let mut raw = Vec::new();
        DeflateDecoder::new(&from_base64(&packed.base64)[..]).read_to_end(&mut raw).unwrap();
        let size = match kind {
            "u8" => 1,
            "u16" => 2,
            "u32" => 4,
            _ => 8,
        };
        assert_eq!(raw.len(), length * size);
        let mut sum = 0;
        raw.chunks(size)
            .map(|bytes| {
                let mut wide = [0; 8];
                wide[..size].copy_from_slice(bytes);
                let raw = match kind {
                    "f64" => f64::from_le_bytes(wide) as u64,
                    _ => u64::from_le_bytes(wide),
                };
                let value = min + scale * raw;
                sum = if differences { sum + value } else { value };
                sum
            })
            .collect()
    }

    fn from_base64(text: &str) -> Vec<u8> {
        let value = |digit: &u8| DIGITS.iter().position(|it| it == digit).unwrap() as u32;
        let text = text.trim_end_matches('=').as_bytes();
        let groups = text.chunks(4).flat_map(|four| {
            let bits = four.iter().fold(0, |sum, digit| sum << 6 | value(digit));
            let bits = bits << (6 * (4 - four.len()));
            bits.to_be_bytes()[1..four.len()].to_vec()
        });
        groups.collect()
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        let shown = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(shown, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }

    #[test]
    fn a_number_takes_the_bytes_that_it_needs() {
        let kind = |values: &[u64]| pack("x", values.iter().copied()).unwrap().description.kind;
        assert_eq!(kind(&[]), "u8");
        assert_eq!(kind(&[1 << 40, (1 << 40) + 255]), "u8");
        assert_eq!(kind(&[0, 512, 512 * 255]), "u8");
        assert_eq!(kind(&[0, 1, 256]), "u16");
        assert_eq!(kind(&[0, 1, 1 << 20]), "u32");
        assert_eq!(kind(&[0, 1, 1 << 40]), "f64");
    }

    proptest! {
        #[test]
        fn values_come_back(
            mut values in proptest::collection::vec(0_u64..1 << 52, 0..200),
            unit in 1_u64..100,
        ) {
            let scaled: Vec<u64> = values.iter().map(|value| value / unit * unit).collect();
            prop_assert_eq!(unpack(&pack("x", scaled.iter().copied()).unwrap()), scaled);
            values.sort_unstable();
            let rising = pack_rising("x", values.iter().copied()).unwrap();
            prop_assert_eq!(unpack(&rising), values);
        }
    }
}
