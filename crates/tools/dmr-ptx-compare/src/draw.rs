//! Random values, special values among them.

use dmr_testkit::SplitMix64;

use crate::element::Element;

/// The distribution of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Every kind: NaN, infinities, subnormals, zeros, all exponents, and moderate values.
    /// Integers: edges, and all bits.
    Any,
    /// Magnitudes below 2. Integers: 0 to 49.
    Mild,
    /// Magnitudes from 0.25 to 1, positive. Integers: 1 to 64.
    Positive,
    /// Small whole numbers, so that sums are exact in every order.
    Whole,
}

/// A source of random values.
#[derive(Clone, Debug)]
pub struct Draw(SplitMix64);

impl Draw {
    /// Makes a source for this launch.
    #[must_use]
    pub fn new(kernel: &str, variant: &str, seed: u64) -> Self {
        let bytes = kernel.bytes().chain([b'#']).chain(variant.bytes());
        let hash = bytes.fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(SplitMix64::new(hash))
    }

    /// Returns a number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    /// Returns random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.0.next_u64() as u8).collect()
    }

    /// Returns a number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the bits of one value.
    pub fn value(&mut self, element: Element, style: Style) -> u64 {
        if element.is_float() { self.float(element, style) } else { self.integer(element, style) }
    }

    /// Returns the bytes of `count` values.
    pub fn values(&mut self, element: Element, style: Style, count: usize) -> Vec<u8> {
        element.bytes((0..count).map(|_| self.value(element, style)))
    }

    fn float(&mut self, element: Element, style: Style) -> u64 {
        let unit = self.unit();
        match style {
            Style::Mild => element.encode((unit - 0.5) * 4.0),
            Style::Positive => element.encode(0.25 + 0.75 * unit),
            Style::Whole => element.encode((unit * 9.0).floor() - 4.0),
            Style::Any => match self.below(8) {
                0 => self.special(element),
                1 => self.0.next_u64() & (u64::MAX >> (64 - 8 * element.size())),
                2 => element.encode((unit - 0.5) * 200.0),
                _ => element.encode((unit - 0.5) * 12.0),
            },
        }
    }

    fn special(&mut self, element: Element) -> u64 {
        let bits = 8 * element.size();
        let sign = self.below(2) << (bits - 1);
        let one = 1u64 << element.mantissa_bits();
        let infinity = (u64::MAX >> (65 - bits)) & !(one - 1);
        let magnitude = match self.below(10) {
            0 | 1 => 0,
            2 => 1,
            3 => one - 1,
            4 => one,
            5 => infinity - 1,
            6 => infinity,
            7 => u64::MAX >> (65 - bits),
            8 => element.encode(1.0),
            _ => element.encode(0.5),
        };
        sign | magnitude
    }

    fn integer(&mut self, element: Element, style: Style) -> u64 {
        let mask = u64::MAX >> (64 - 8 * element.size());
        match style {
            Style::Mild => self.below(50),
            Style::Positive => 1 + self.below(64),
            Style::Whole => self.below(10),
            Style::Any => match self.below(6) {
                0 => [0, 1, mask, mask >> 1, (mask >> 1) + 1, 2][self.below(6) as usize],
                1 | 2 => self.0.next_u64() & mask,
                _ => self.below(100),
            },
        }
    }
}
