//! Tensor maps: how a tensor lies in global memory, and the box of it that a tensor copy moves.
//!
//! The 128 bytes of a map are opaque to programs. A driver that runs kernels by this crate encodes
//! them by [`TensorMap::to_bytes`]; the map of a device is not understood.

use dmr_ptx_syntax::Type;

/// The number of bytes of a map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// The largest number of dimensions.
pub(crate) const MOST_DIMENSIONS: usize = 5;

/// The first bytes of each map.
const MARK: [u8; 4] = *b"tmap";

/// The elements of a tensor, as far as copies distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the PTX ISA")]
pub enum TensorElement {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    Bf16,
}

impl TensorElement {
    const ALL: [Self; 10] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::S32,
        Self::U64,
        Self::S64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
    ];

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Returns the type of the elements for arithmetic.
    pub(crate) fn ty(self) -> Type {
        match self {
            Self::U8 => Type::U8,
            Self::U16 => Type::U16,
            Self::U32 => Type::U32,
            Self::S32 => Type::S32,
            Self::U64 => Type::U64,
            Self::S64 => Type::S64,
            Self::F16 => Type::F16,
            Self::F32 => Type::F32,
            Self::F64 => Type::F64,
            Self::Bf16 => Type::Bf16,
        }
    }

    /// Returns the bytes of a NaN; zeros for integers.
    pub(crate) fn nan(self) -> &'static [u8] {
        match self {
            Self::F16 | Self::Bf16 => &[0xff, 0x7f],
            Self::F32 => &[0xff, 0xff, 0xff, 0x7f],
            Self::F64 => &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f],
            _ => &[0; 8],
        }
    }
}

/// The exchange of 16-byte units in shared memory, which spreads the rows of a box over banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swizzle {
    /// No exchange.
    #[default]
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    const ALL: [Self; 4] = [Self::None, Self::Bytes32, Self::Bytes64, Self::Bytes128];

    /// Returns the address at which the byte of a box at `address` is.
    pub(crate) fn apply(self, address: u64) -> u64 {
        let bits = match self {
            Self::None => 0,
            Self::Bytes32 => 1,
            Self::Bytes64 => 2,
            Self::Bytes128 => 3,
        };
        address ^ (address >> 3 & (((1 << bits) - 1) << 4))
    }
}

/// A tensor in global memory, and the box that a copy moves. The innermost dimension comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The elements.
    pub element: TensorElement,
    /// The address of the first element.
    pub address: u64,
    /// The dimensions, one to five.
    pub dimensions: Vec<TensorDimension>,
    /// The order of the box in shared memory.
    pub swizzle: Swizzle,
    /// True if elements out of bounds are NaN, and false if they are zero.
    pub fills_nan: bool,
}

/// One dimension of a tensor and its box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorDimension {
    /// The elements of the tensor: 1 to 2^32.
    pub size: u64,
    /// The distance of two elements in bytes.
    pub stride: u64,
    /// The elements that the box spans: 1 to 256.
    pub box_size: u32,
    /// The distance of two elements that are copied, in elements: 1 to 8.
    pub element_stride: u32,
}

impl TensorDimension {
    /// Returns the elements of the box that are copied.
    pub(crate) fn copied(&self) -> u64 {
        u64::from(self.box_size.div_ceil(self.element_stride.max(1)))
    }
}

impl TensorMap {
    /// Encodes the map. Values out of their range are cut off.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut bytes = [0; TENSOR_MAP_BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4] = self.dimensions.len().min(MOST_DIMENSIONS) as u8;
        bytes[5] = self.element as u8;
        bytes[6] = self.swizzle as u8;
        bytes[7] = u8::from(self.fills_nan);
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        let parts = bytes[16..].chunks_exact_mut(20);
        for (part, dimension) in parts.zip(self.dimensions.iter().take(MOST_DIMENSIONS)) {
            part[..4].copy_from_slice(&(dimension.size.wrapping_sub(1) as u32).to_le_bytes());
            part[4..12].copy_from_slice(&dimension.stride.to_le_bytes());
            part[12..16].copy_from_slice(&dimension.box_size.to_le_bytes());
            part[16..].copy_from_slice(&dimension.element_stride.to_le_bytes());
        }
        bytes
    }

    /// Decodes a map; `None` for bytes that [`TensorMap::to_bytes`] did not make.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; TENSOR_MAP_BYTES]) -> Option<Self> {
        let rank = usize::from(bytes[4]);
        if bytes[..4] != MARK || rank == 0 || rank > MOST_DIMENSIONS {
            return None;
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let dimension = |index: usize| {
            let at = 16 + 20 * index;
            let box_size = word(at + 12);
            let element_stride = word(at + 16);
            let size = u64::from(word(at)) + 1;
            let valid = (1..=256).contains(&box_size) && (1..=8).contains(&element_stride);
            valid.then_some(TensorDimension {
                size,
                stride: wide(at + 4),
                box_size,
                element_stride,
            })
        };
        Some(Self {
            element: *TensorElement::ALL.get(usize::from(bytes[5]))?,
            address: wide(8),
            dimensions: (0..rank).map(dimension).collect::<Option<_>>()?,
            swizzle: *Swizzle::ALL.get(usize::from(bytes[6]))?,
            fills_nan: bytes[7] != 0,
        })
    }

    /// Returns the bytes of a box in shared memory.
    #[must_use]
    pub fn box_bytes(&self) -> u64 {
        let elements: u64 = self.dimensions.iter().map(TensorDimension::copied).product();
        elements * self.element.bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_decoded_as_it_was_encoded() {
        for (index, element) in TensorElement::ALL.into_iter().enumerate() {
            let dimension = |n: u64| TensorDimension {
                size: (1 << 32) - n,
                stride: 1 << (40 - n),
                box_size: 256 - n as u32,
                element_stride: 1 + n as u32,
            };
            let map = TensorMap {
                element,
                address: 0x1234_5678_9abc,
                dimensions: (0..1 + index as u64 % 5).map(dimension).collect(),
                swizzle: Swizzle::ALL[index % 4],
                fills_nan: index % 2 == 0,
            };
            assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
        }
        assert_eq!(TensorMap::from_bytes(&[0; TENSOR_MAP_BYTES]), None);
    }

    #[test]
    fn a_swizzle_exchanges_the_units_of_a_row_by_its_number() {
        // The eight rows of 128 bytes have their first unit at eight places.
        let places: Vec<u64> = (0..8).map(|row| Swizzle::Bytes128.apply(row * 128) % 128).collect();
        assert_eq!(places, [0, 16, 32, 48, 64, 80, 96, 112]);
        assert_eq!([128, 256, 384].map(|at| Swizzle::Bytes64.apply(at) % 64), [16, 32, 48]);
        assert_eq!([128, 256, 384].map(|at| Swizzle::Bytes32.apply(at) % 32), [16, 0, 16]);
        assert_eq!(Swizzle::None.apply(0x3f8), 0x3f8);
    }
}
