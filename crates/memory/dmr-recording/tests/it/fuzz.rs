//! Hostile files: whatever the bytes are, the reader returns, in bounded memory, and never panics.
//!
//! `DMR_RECORDING_FUZZ` sets the number of files; the checksums of most are made right again, so
//! that the records behind them are decoded.

use dmr_recording::{MAGIC, MAX_TEXT_BYTES, MAX_TEXTS, ReadError, Reader, Record};
use fastrand::Rng;

use crate::files::file;
use crate::support::record;

#[test]
fn any_bytes_are_records_or_an_error_that_names_a_byte_of_the_file() {
    let files = std::env::var("DMR_RECORDING_FUZZ").ok().and_then(|files| files.parse().ok());
    let files: u64 = files.unwrap_or(20_000);
    let mut rng = Rng::with_seed(5);
    let mut refused = 0_u64;
    for _ in 0..files {
        let records: Vec<_> = (0..rng.usize(..40)).map(|_| record(&mut rng)).collect();
        let mut bytes = file(&records, rng.usize(1..20));
        damage(&mut bytes, &mut rng);
        if rng.u8(..8) > 0 {
            repair_checksums(&mut bytes);
        }
        refused += u64::from(read(&bytes).is_err());
    }
    assert!(refused > files / 4, "{refused} of {files} were refused");
    assert!(refused < files, "the reader reached the end of none");
}

fn read(bytes: &[u8]) -> Result<u64, ReadError> {
    let mut reader = Reader::new(bytes)?;
    let mut records = 0;
    loop {
        match reader.next_record() {
            Ok(Some(Record { label, .. })) => {
                // Every id that was returned has a text.
                let text = reader.text(label.name);
                assert!(text.len() <= MAX_TEXT_BYTES);
                records += 1;
            }
            Ok(None) => break,
            Err(error) => {
                assert!(error.at <= bytes.len() as u64, "{error}");
                assert!(reader.next_record().unwrap().is_none(), "a record after an error");
                return Err(error);
            }
        }
        // Each record has at least one byte.
        assert!(records <= bytes.len() as u64);
        assert!(reader.texts() <= MAX_TEXTS);
    }
    Ok(records)
}

fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.u32(1..6) {
        let at = rng.usize(..bytes.len());
        match rng.u8(..6) {
            0 => bytes[at] ^= 1 << rng.u32(..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes.insert(at, rng.u8(..)),
            3 => {
                bytes.remove(at);
            }
            4 => bytes[at] = [0, 0x7f, 0x80, 0xff][rng.usize(..4)],
            _ if bytes.len() > 64 => bytes.truncate(at.max(32)),
            _ => {}
        }
    }
}

/// Gives each chunk the checksum of the bytes that it has now.
fn repair_checksums(bytes: &mut [u8]) {
    let mut at = MAGIC.len() + 4;
    while let Some(head) = bytes.get(at..at + 8) {
        let mut length: [u8; 4] = head[..4].try_into().unwrap();
        length[3] = length[0] ^ length[1] ^ length[2] ^ 0xa5;
        let [a, b, c, _] = length;
        let end = at + 8 + u32::from_le_bytes([a, b, c, 0]) as usize;
        let end = end.min(bytes.len());
        let sum = crc32c(&length, &bytes[at + 8..end]);
        bytes[at..at + 4].copy_from_slice(&length);
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
}

/// CRC-32C, a bit at a time.
fn crc32c(length: &[u8], bytes: &[u8]) -> u32 {
    let mut sum = !0_u32;
    for &byte in length.iter().chain(bytes) {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}
