//! Writes a pickle of protocol 2: lists, dictionaries, texts and numbers, with the opcodes that
//! PyTorch's viewer reads.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

/// The most values that one opcode appends: as many as Python's pickle appends at once. The viewer
/// passes them as the arguments of a call, whose number is limited.
const BATCH: usize = 1000;

/// Writes values one after the other. A text that was written before is named by its number, and
/// so is a list that has a key.
pub(super) struct PickleWriter<W> {
    out: W,
    texts: FxHashMap<Box<str>, u32>,
    lists: FxHashMap<ListKey, u32>,
    /// The number of the next text or list.
    next: u32,
}

/// The names that a list is made of.
pub(super) type ListKey = [u32; 3];

impl<W: Write> PickleWriter<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"\x80\x02")?;
        Ok(Self { out, texts: FxHashMap::default(), lists: FxHashMap::default(), next: 0 })
    }

    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(known) = self.texts.get(text) {
            let known = *known;
            return self.recall(known);
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.out.write_all(b"X")?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        let number = self.memoize()?;
        self.texts.insert(text.into(), number);
        Ok(())
    }

    /// Writes a number in as few bytes as it needs: the viewer reads nine as an integer of another
    /// type, which it cannot add to others. From 2^63 on there is no other way.
    pub(super) fn number(&mut self, number: u64) -> io::Result<()> {
        let bytes = number.to_le_bytes();
        if number < 1 << 8 {
            return self.out.write_all(&[b'K', bytes[0]]);
        }
        if number < 1 << 16 {
            return self.out.write_all(&[b'M', bytes[0], bytes[1]]);
        }
        if number < 1 << 31 {
            self.out.write_all(b"J")?;
            return self.out.write_all(&bytes[..4]);
        }
        // The highest bit is the sign.
        let length = (64 - number.leading_zeros()) as usize / 8 + 1;
        self.out.write_all(&[0x8a, length as u8])?;
        self.out.write_all(&bytes[..length.min(8)])?;
        self.out.write_all(&[0][..length.saturating_sub(8)])
    }

    /// Writes a list: `write` writes each item, as one value or more.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"](")?;
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 && at.is_multiple_of(BATCH) {
                self.out.write_all(b"e(")?;
            }
            write(self, item)?;
        }
        self.out.write_all(b"e")
    }

    /// Writes a list as [`list`](Self::list) does, unless one with this key was written: then it is
    /// named.
    pub(super) fn shared_list<T>(
        &mut self,
        key: ListKey,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(known) = self.lists.get(&key) {
            let known = *known;
            return self.recall(known);
        }
        self.list(items, write)?;
        let number = self.memoize()?;
        self.lists.insert(key, number);
        Ok(())
    }

    /// Writes a dictionary of the keys and values that `write` writes in turn.
    pub(super) fn dict(
        &mut self,
        write: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        write(self)?;
        self.out.write_all(b"u")
    }

    /// Writes a key and a number.
    pub(super) fn item(&mut self, key: &str, number: u64) -> io::Result<()> {
        self.text(key)?;
        self.number(number)
    }

    /// Writes a key and a text.
    pub(super) fn text_item(&mut self, key: &str, text: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(text)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    /// Numbers the value that was written last.
    fn memoize(&mut self) -> io::Result<u32> {
        let number = self.next;
        self.next = number.checked_add(1).ok_or_else(|| io::Error::other("too many texts"))?;
        self.out.write_all(b"r")?;
        self.out.write_all(&number.to_le_bytes())?;
        Ok(number)
    }

    /// Writes the value with a number.
    fn recall(&mut self, number: u32) -> io::Result<()> {
        self.out.write_all(b"j")?;
        self.out.write_all(&number.to_le_bytes())
    }
}
