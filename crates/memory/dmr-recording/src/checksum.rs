//! The length of a chunk, and the checksum of both: CRC-32C (Castagnoli).

/// The exclusive-or of the four bytes of a length: a length that was damaged is no end of a file
/// that was cut.
const LENGTH_MARK: u8 = 0xa5;

/// Returns the length of a chunk as it stands in a file: 24 bits and a check byte.
pub(crate) const fn length_bytes(length: u32) -> [u8; 4] {
    let [a, b, c, _] = length.to_le_bytes();
    [a, b, c, a ^ b ^ c ^ LENGTH_MARK]
}

/// Returns the length of a chunk; `None` if its check byte does not fit.
pub(crate) const fn length_of(bytes: [u8; 4]) -> Option<u32> {
    let [a, b, c, check] = bytes;
    if a ^ b ^ c ^ check == LENGTH_MARK { Some(u32::from_le_bytes([a, b, c, 0])) } else { None }
}

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Tables by byte, for four bytes at a time.
static TABLES: [[u32; 256]; 4] = tables();

const fn tables() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ (POLYNOMIAL & (sum & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut table = 1;
    while table < 4 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Returns the checksum of a chunk: of its length as it stands in the file, then of its bytes.
pub(crate) fn checksum(length: [u8; 4], bytes: &[u8]) -> u32 {
    !extend(extend(!0, &length), bytes)
}

fn extend(mut sum: u32, bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let word: [u8; 4] = word.try_into().unwrap_or_default();
        sum ^= u32::from_le_bytes(word);
        sum = TABLES[3][(sum & 0xff) as usize]
            ^ TABLES[2][(sum >> 8 & 0xff) as usize]
            ^ TABLES[1][(sum >> 16 & 0xff) as usize]
            ^ TABLES[0][(sum >> 24) as usize];
    }
    for &byte in words.remainder() {
        sum = (sum >> 8) ^ TABLES[0][((sum ^ u32::from(byte)) & 0xff) as usize];
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_rfc_3720() {
        // The check value of CRC-32C is that of these nine digits.
        assert_eq!(!extend(!0, b"123456789"), 0xe306_9283);
        assert_eq!(checksum(*b"1234", b"56789"), 0xe306_9283);
    }
}
