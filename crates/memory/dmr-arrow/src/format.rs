//! The types of columns: format strings, and the buffers and children that each has.

use std::fmt;

use crate::column::Primitive;

/// The type of a column, without its children: a format string of the specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    text: Box<str>,
    layout: Layout,
}

/// The layout of a column: its buffers and its children.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Nulls, without a buffer.
    Null,
    /// Validity and values of this many bits.
    Fixed {
        /// The bits of a value.
        bits: usize,
        /// The type of the elements in a view.
        element: Element,
    },
    /// Validity, offsets and bytes.
    Binary(Offsets),
    /// Validity, views of 16 bytes, and any number of buffers of bytes.
    BinaryView,
    /// Validity and offsets; one child.
    List(Offsets),
    /// Validity, offsets and sizes; one child.
    ListView(Offsets),
    /// Validity; one child with this many values for each row.
    FixedSizeList(usize),
    /// Validity; any number of children.
    Struct,
    /// Validity and offsets; one child, a struct of two children.
    Map,
    /// Type ids, and offsets if it is dense; one child for each id.
    Union {
        /// It has offsets.
        is_dense: bool,
        /// The number of type ids.
        ids: usize,
    },
    /// No buffer; two children, the ends of the runs and the values.
    RunEndEncoded,
}

/// The width of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// 32 bits.
    Int32,
    /// 64 bits.
    Int64,
}

/// The type of the elements of a column with values of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element {
    /// Signed integers: also dates, times, durations, months and decimals.
    Int(u16),
    /// Unsigned integers.
    UInt(u16),
    /// Floating-point numbers.
    Float(u16),
    /// Bits, structs or bytes, which have no type of elements.
    Other,
}

impl Offsets {
    /// Returns the bytes of an offset.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Int32 => 4,
            Self::Int64 => 8,
        }
    }
}

impl Format {
    /// Reads a format string. The error is the rest of a sentence about it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let layout = layout_of(text)?;
        Ok(Self { text: text.into(), layout })
    }

    /// Returns the type of columns of such elements.
    pub(crate) fn of_primitive<T: Primitive>() -> Self {
        let layout = Layout::Fixed { bits: 8 * size_of::<T>(), element: T::ELEMENT };
        Self { text: T::FORMAT.into(), layout }
    }

    /// Returns the format string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns whether a dictionary can have indices of this type.
    pub(crate) fn is_integer(&self) -> bool {
        matches!(&*self.text, "c" | "C" | "s" | "S" | "i" | "I" | "l" | "L")
    }

    /// Returns whether the ends of runs can have this type.
    pub(crate) fn is_run_end(&self) -> bool {
        matches!(&*self.text, "s" | "i" | "l")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn layout_of(text: &str) -> Result<Layout, String> {
    let fixed = |bits: u16, element| Ok(Layout::Fixed { bits: usize::from(bits), element });
    let int = |bits| fixed(bits, Element::Int(bits));
    match text {
        "n" => Ok(Layout::Null),
        "b" => fixed(1, Element::Other),
        "c" => int(8),
        "s" => int(16),
        "i" | "tdD" | "tts" | "ttm" | "tiM" => int(32),
        "l" | "tdm" | "ttu" | "ttn" | "tDs" | "tDm" | "tDu" | "tDn" => int(64),
        "C" => fixed(8, Element::UInt(8)),
        "S" => fixed(16, Element::UInt(16)),
        "I" => fixed(32, Element::UInt(32)),
        "L" => fixed(64, Element::UInt(64)),
        "e" => fixed(16, Element::Float(16)),
        "f" => fixed(32, Element::Float(32)),
        "g" => fixed(64, Element::Float(64)),
        "tiD" => fixed(64, Element::Other),
        "tin" => fixed(128, Element::Other),
        "z" | "u" => Ok(Layout::Binary(Offsets::Int32)),
        "Z" | "U" => Ok(Layout::Binary(Offsets::Int64)),
        "vz" | "vu" => Ok(Layout::BinaryView),
        "+l" => Ok(Layout::List(Offsets::Int32)),
        "+L" => Ok(Layout::List(Offsets::Int64)),
        "+vl" => Ok(Layout::ListView(Offsets::Int32)),
        "+vL" => Ok(Layout::ListView(Offsets::Int64)),
        "+s" => Ok(Layout::Struct),
        "+m" => Ok(Layout::Map),
        "+r" => Ok(Layout::RunEndEncoded),
        _ => match text.split_once(':') {
            Some(("tss" | "tsm" | "tsu" | "tsn", _)) => int(64),
            Some(("d", parameters)) => decimal(text, parameters),
            Some(("w", width)) => {
                let bits = size(text, width)?.checked_mul(8).ok_or_else(|| wrong(text, "size"))?;
                Ok(Layout::Fixed { bits, element: Element::Other })
            }
            Some(("+w", width)) => Ok(Layout::FixedSizeList(size(text, width)?)),
            Some(("+us", ids)) => union(text, ids, false),
            Some(("+ud", ids)) => union(text, ids, true),
            _ => Err(format!("is {text:?}, which is no type of the specification")),
        },
    }
}

fn decimal(text: &str, parameters: &str) -> Result<Layout, String> {
    let mut numbers = parameters.splitn(3, ',');
    let precision = numbers.next().and_then(|it| it.parse::<u8>().ok());
    let scale = numbers.next().and_then(|it| it.parse::<i32>().ok());
    let bits = numbers.next().map_or(Some(128), |it| it.parse::<u16>().ok());
    let most = match bits {
        Some(32) => 9,
        Some(64) => 18,
        Some(128) => 38,
        Some(256) => 76,
        _ => return Err(wrong(text, "width: 32, 64, 128 or 256 bits")),
    };
    if precision.is_none_or(|it| it == 0 || it > most) || scale.is_none() {
        return Err(wrong(text, "precision or scale"));
    }
    let bits = bits.unwrap_or_default();
    let element = if bits == 256 { Element::Other } else { Element::Int(bits) };
    Ok(Layout::Fixed { bits: usize::from(bits), element })
}

fn size(text: &str, number: &str) -> Result<usize, String> {
    let size = number.parse::<i32>().ok().and_then(|it| usize::try_from(it).ok());
    size.ok_or_else(|| wrong(text, "size"))
}

fn union(text: &str, ids: &str, is_dense: bool) -> Result<Layout, String> {
    let mut known = [false; 128];
    let mut count = 0;
    for id in ids.split(',').filter(|_| !ids.is_empty()) {
        let known = id.parse::<usize>().ok().and_then(|id| known.get_mut(id));
        match known {
            Some(known) if !*known => *known = true,
            _ => return Err(wrong(text, "type id: each is 0 to 127, and once")),
        }
        count += 1;
    }
    Ok(Layout::Union { is_dense, ids: count })
}

fn wrong(text: &str, parameter: &str) -> String {
    format!("is {text:?}, which has a wrong {parameter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_of_the_specification_has_a_layout() {
        let fixed = |bits, element| Layout::Fixed { bits, element };
        for (text, layout) in [
            ("n", Layout::Null),
            ("b", fixed(1, Element::Other)),
            ("e", fixed(16, Element::Float(16))),
            ("d:9,2", fixed(128, Element::Int(128))),
            ("d:9,-2,32", fixed(32, Element::Int(32))),
            ("d:76,10,256", fixed(256, Element::Other)),
            ("w:3", fixed(24, Element::Other)),
            ("w:0", fixed(0, Element::Other)),
            ("tss:", fixed(64, Element::Int(64))),
            ("tsn:Europe/Paris", fixed(64, Element::Int(64))),
            ("tin", fixed(128, Element::Other)),
            ("vu", Layout::BinaryView),
            ("+vL", Layout::ListView(Offsets::Int64)),
            ("+w:7", Layout::FixedSizeList(7)),
            ("+ud:4,5", Layout::Union { is_dense: true, ids: 2 }),
            ("+us:", Layout::Union { is_dense: false, ids: 0 }),
            ("+r", Layout::RunEndEncoded),
        ] {
            assert_eq!(Format::parse(text).map(|it| it.layout), Ok(layout), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_and_the_error_has_them() {
        for text in [
            "",
            "x",
            "nn",
            "tss",
            "w:",
            "w:-1",
            "w:99999999999",
            "+w:",
            "d:",
            "d:0,1",
            "d:39,1",
            "d:1",
            "d:5,1,99",
            "d:10,1,32",
            "+us:1,1",
            "+ud:128",
            "+us:-1",
            "+us:1,",
            "+u",
            "tx",
        ] {
            let problem = Format::parse(text).unwrap_err();
            assert!(problem.contains(&format!("{text:?}")), "{problem}");
        }
    }
}
