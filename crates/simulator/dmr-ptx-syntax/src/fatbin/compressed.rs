//! Payloads of fat binaries that are compressed.

use std::borrow::Cow;
use std::io::Read;

use ruzstd::decoding::StreamingDecoder;

use super::error::FatbinError;

const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// Flags of compression that no known toolkit sets alone.
const OTHER: u64 = 0x1000 | 0x4000;

/// The longest payload once it is not compressed, in bytes.
const MAX_BYTES: u64 = 1 << 28;

/// Returns the payload as it was before it was compressed: `length` bytes.
pub(super) fn expand(
    payload: &[u8],
    flags: u64,
    length: u64,
) -> Result<Cow<'_, [u8]>, FatbinError> {
    let lz4 = flags & LZ4 != 0;
    let zstandard = flags & ZSTANDARD != 0;
    if !lz4 && !zstandard {
        if flags & OTHER != 0 {
            return Err(FatbinError::Compression { flags });
        }
        return Ok(Cow::Borrowed(payload));
    }
    if length > MAX_BYTES {
        return Err(FatbinError::TooLarge { bytes: length, max: MAX_BYTES });
    }
    const WRONG: FatbinError = FatbinError::Damaged("compressed data is damaged");
    let bytes = if lz4 {
        // A byte of LZ4 stands for 255 at most: more is a wrong length, for which nothing is
        // allocated.
        if length > payload.len() as u64 * 255 + 64 {
            return Err(WRONG);
        }
        lz4_flex::block::decompress(payload, length as usize).map_err(|_| WRONG)?
    } else {
        let mut bytes = Vec::new();
        let decoder = StreamingDecoder::new(payload).map_err(|_| WRONG)?;
        decoder.take(length + 1).read_to_end(&mut bytes).map_err(|_| WRONG)?;
        bytes
    };
    if bytes.len() as u64 == length { Ok(Cow::Owned(bytes)) } else { Err(WRONG) }
}
