//! The bytes of an account: a header, and a record for each member.
//!
//! All sizes are fixed and all numbers little-endian, so that each record has its place and one
//! write changes it. Processes with different builds of the library share the file: the checksum is
//! written out here, because a hash of a dependency may change with its version.

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 256;
/// Bytes of a record: no record crosses a page.
pub(crate) const RECORD_BYTES: usize = 128;
/// The maximum number of members.
pub(crate) const MAX_MEMBERS: usize = 256;
/// The version of this layout.
pub(crate) const VERSION: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"DMRLIMIT");

/// A text of at most `N` bytes of UTF-8, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Cuts a text at a character boundary, and replaces its control characters.
    pub(crate) fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        let mut len = 0;
        for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
            let Some(room) = bytes.get_mut(len..len + c.len_utf8()) else { break };
            len += c.encode_utf8(room).len();
        }
        Self(bytes)
    }
}

/// The text; what is not UTF-8 or a control character is replaced.
impl<const N: usize> From<Text<N>> for String {
    fn from(text: Text<N>) -> Self {
        let len = text.0.iter().position(|byte| *byte == 0).unwrap_or(N);
        let text = Self::from_utf8_lossy(&text.0[..len]);
        text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

/// A process, and the program that it executes: pids are reused, and a process can execute another
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Clock ticks from boot to its start.
    pub(crate) start: u64,
    /// A number that changes at each exec; 0 if the system does not provide it.
    pub(crate) program: u64,
}

/// The namespaces in which pids and start times can be compared, by inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Namespaces {
    pub(crate) pid: u64,
    pub(crate) time: u64,
}

/// The part of an account that all members agree on, and the process that set the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Header {
    /// In bytes.
    pub(crate) limit: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) group: Text<64>,
    pub(crate) namespaces: Namespaces,
    /// The pid of the process that set the limit.
    pub(crate) set_by: u32,
    pub(crate) set_by_name: Text<16>,
}

/// The charges of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) process: ProcessId,
    pub(crate) bytes: u64,
    pub(crate) name: Text<16>,
    /// The tag that holds the most.
    pub(crate) tag: Text<64>,
    pub(crate) tag_bytes: u64,
}

/// Bytes that are no header or no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The header begins with something else.
    NoAccount,
    /// Another version of the layout.
    Version(u32),
    /// The checksum does not match.
    Checksum,
}

/// Returns the offset of a record in the file.
pub(crate) const fn offset_of(index: usize) -> usize {
    HEADER_BYTES + index * RECORD_BYTES
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        sealed(&[
            &MAGIC.to_le_bytes(),
            &VERSION.to_le_bytes(),
            &self.set_by.to_le_bytes(),
            &self.limit.to_le_bytes(),
            &self.uuid,
            &self.namespaces.pid.to_le_bytes(),
            &self.namespaces.time.to_le_bytes(),
            &self.set_by_name.0,
            &self.group.0,
        ])
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Unreadable> {
        let mut fields = Fields { bytes, at: 0 };
        if fields.u64() != MAGIC {
            return Err(Unreadable::NoAccount);
        }
        let version = fields.u32();
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        if !is_sealed(bytes) {
            return Err(Unreadable::Checksum);
        }
        let set_by = fields.u32();
        Ok(Self {
            limit: fields.u64(),
            uuid: fields.take(),
            namespaces: Namespaces { pid: fields.u64(), time: fields.u64() },
            set_by,
            set_by_name: Text(fields.take()),
            group: Text(fields.take()),
        })
    }
}

/// The bytes of a record that no member has.
pub(crate) const FREE: [u8; RECORD_BYTES] = [0; RECORD_BYTES];

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        sealed(&[
            &u64::from(self.process.pid).to_le_bytes(),
            &self.process.start.to_le_bytes(),
            &self.process.program.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &self.tag_bytes.to_le_bytes(),
            &self.name.0,
            &self.tag.0,
        ])
    }

    /// Returns `None` if no member has the record.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Option<Self>, Unreadable> {
        if *bytes == FREE {
            return Ok(None);
        }
        if !is_sealed(bytes) {
            return Err(Unreadable::Checksum);
        }
        let mut fields = Fields { bytes, at: 0 };
        let pid = fields.u64() as u32;
        let process = ProcessId { pid, start: fields.u64(), program: fields.u64() };
        let bytes = fields.u64();
        let tag_bytes = fields.u64();
        let name = Text(fields.take());
        let tag = Text(fields.take());
        Ok(Some(Self { process, bytes, name, tag, tag_bytes }))
    }
}

const CHECKSUM_BYTES: usize = 8;

/// Returns the fields of a header or a record one after the other, and the checksum at the end.
fn sealed<const N: usize>(fields: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    for field in fields {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    let (fields, end) = bytes.split_at_mut(N - CHECKSUM_BYTES);
    end.copy_from_slice(&checksum(fields).to_le_bytes());
    bytes
}

/// Reads the fields of a header or a record, one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    fn take<const M: usize>(&mut self) -> [u8; M] {
        let mut field = [0; M];
        field.copy_from_slice(&self.bytes[self.at..self.at + M]);
        self.at += M;
        field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn is_sealed<const N: usize>(bytes: &[u8; N]) -> bool {
    let (fields, end) = bytes.split_at(N - CHECKSUM_BYTES);
    end == checksum(fields).to_le_bytes()
}

/// Returns a number that finds accidents, not intent: a program that can write the file can write
/// the checksum.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(MAGIC, |sum, word| {
        (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            limit: 1 << 40,
            uuid: *b"0123456789abcdef",
            group: Text::new("tests"),
            namespaces: Namespaces { pid: 7, time: 8 },
            set_by: 42,
            set_by_name: Text::new("python3"),
        }
    }

    fn record() -> Record {
        Record {
            process: ProcessId { pid: 42, start: 77, program: 1 << 46 },
            bytes: 3 << 30,
            name: Text::new("python3"),
            tag: Text::new("kv-cache"),
            tag_bytes: 2 << 30,
        }
    }

    #[test]
    fn what_was_encoded_is_decoded_and_one_changed_bit_is_found() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes), Ok(header()));
        for bit in 0..HEADER_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&changed).is_err(), "bit {bit}");
        }
        let bytes = record().encode();
        assert_eq!(Record::decode(&bytes), Ok(Some(record())));
        assert_eq!(Record::decode(&FREE), Ok(None));
        for bit in 0..RECORD_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&changed), Err(Unreadable::Checksum), "bit {bit}");
        }
    }

    #[test]
    fn no_record_crosses_a_page_and_none_is_taken_for_free() {
        for index in 0..MAX_MEMBERS {
            let first = offset_of(index);
            let last = offset_of(index + 1) - 1;
            assert_eq!(first / 4096, last / 4096);
        }
        let process = ProcessId { pid: 0, start: 0, program: 0 };
        let empty =
            Record { process, bytes: 0, name: Text::new(""), tag: Text::new(""), tag_bytes: 0 };
        assert_ne!(empty.encode(), FREE);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_has_no_control_characters() {
        assert_eq!(String::from(Text::<16>::new(&"é".repeat(9))), "é".repeat(8));
        assert_eq!(String::from(Text::<4>::new("xéé")), "xé");
        assert_eq!(String::from(Text::<16>::new("a\u{1b}[2J\nb")), "a?[2J?b");
        assert_eq!(String::from(Text([b'a', 0x1b, 0xff, 0])), "a?\u{fffd}");
    }
}
