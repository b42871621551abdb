//! The bytes of a trace: plain or gzip, distinguished by the first bytes.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// The decompressed bytes.
pub(crate) type Bytes = Box<dyn BufRead + Send>;

/// The number of bytes that were read from the file so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Consumed(Arc<AtomicU64>);

impl Consumed {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads the first bytes to distinguish the two; the name of the file is ignored.
pub(crate) fn open(read: impl Read + Send + 'static) -> io::Result<(Bytes, Consumed)> {
    let consumed = Consumed::default();
    let mut read = Counting { read, consumed: consumed.clone() };
    let mut start = Vec::new();
    read.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut start)?;
    let is_gzip = start == GZIP_MAGIC;
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(read));
    let bytes: Bytes = if is_gzip {
        // Several streams of gzip behind each other, as appending to a log leaves them.
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole)))
    } else {
        Box::new(whole)
    };
    Ok((bytes, consumed))
}

const BUFFER: usize = 64 << 10;

struct Counting<R> {
    read: R,
    consumed: Consumed,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.read.read(buffer)?;
        self.consumed.0.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}
