//! The values that the next record of a chunk need not repeat. They are zero at its start.

use crate::bytes::{Cursor, put, put_delta};
use crate::kind::Kind;
use crate::strings::Strings;
use crate::{Block, LabelId, Problem, StreamNumber, StringId};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Context {
    pub(crate) time_ns: u64,
    pub(crate) thread: u32,
    pub(crate) device: u16,
    pub(crate) query: u64,
    pub(crate) label: LabelId,
    address: u64,
    generation: u64,
    stream: StreamNumber,
    tag: StringId,
    bytes: u64,
}

/// The fields of a block that are those of the block before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Same(u8);

impl Context {
    /// Appends the first byte of a record and its time.
    #[inline]
    pub(crate) fn put_head(&mut self, out: &mut Vec<u8>, kind: Kind, flags: u8, time_ns: u64) {
        out.push(kind as u8 | flags);
        put_delta(out, self.time_ns, time_ns);
        self.time_ns = time_ns;
    }

    /// Appends a record of a block without the fields of its event.
    #[inline]
    pub(crate) fn put_block(&mut self, out: &mut Vec<u8>, kind: Kind, time_ns: u64, block: &Block) {
        let flag = |flag, same| if same { flag } else { 0 };
        let same_stream = flag(Kind::SAME_STREAM, block.stream == self.stream);
        let same_tag = flag(Kind::SAME_TAG, block.tag == self.tag);
        let same_bytes = flag(Kind::SAME_BYTES, block.bytes == self.bytes);
        self.put_head(out, kind, same_stream | same_tag | same_bytes, time_ns);
        self.put_address(out, block.address);
        put_delta(out, self.generation, block.generation);
        self.generation = block.generation;
        if same_bytes == 0 {
            put(out, block.bytes);
            self.bytes = block.bytes;
        }
        if same_stream == 0 {
            put(out, block.stream.0.into());
            self.stream = block.stream;
        }
        if same_tag == 0 {
            put(out, block.tag.0.into());
            self.tag = block.tag;
        }
    }

    #[inline]
    pub(crate) fn put_address(&mut self, out: &mut Vec<u8>, address: u64) {
        put_delta(out, self.address, address);
        self.address = address;
    }

    #[inline]
    pub(crate) fn read_time(&mut self, from: &mut Cursor) -> Result<(), Problem> {
        self.time_ns = from.delta(self.time_ns)?;
        Ok(())
    }

    #[inline]
    pub(crate) fn read_address(&mut self, from: &mut Cursor) -> Result<u64, Problem> {
        self.address = from.delta(self.address)?;
        Ok(self.address)
    }

    #[inline]
    pub(crate) fn read_block(
        &mut self,
        from: &mut Cursor,
        same: Same,
        strings: &Strings,
    ) -> Result<Block, Problem> {
        let address = self.read_address(from)?;
        self.generation = from.delta(self.generation)?;
        if !same.has(Kind::SAME_BYTES) {
            self.bytes = from.number()?;
        }
        if !same.has(Kind::SAME_STREAM) {
            self.stream = StreamNumber(from.number_as()?);
        }
        if !same.has(Kind::SAME_TAG) {
            self.tag = strings.in_file(from.number()?)?;
        }
        Ok(Block {
            address,
            bytes: self.bytes,
            generation: self.generation,
            stream: self.stream,
            tag: self.tag,
        })
    }
}

impl Same {
    pub(crate) const fn of(head: u8) -> Self {
        Self(head & !Kind::MASK)
    }

    const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}
