//! Writes a pickle of protocol 2: lists, dictionaries, texts and numbers.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

/// Writes values one after the other. A text that was written before is named by its number.
pub(super) struct PickleWriter<W> {
    out: W,
    texts: FxHashMap<Box<str>, u32>,
}

impl<W: Write> PickleWriter<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"\x80\x02")?;
        Ok(Self { out, texts: FxHashMap::default() })
    }

    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(known) = self.texts.get(text) {
            self.out.write_all(b"j")?;
            return self.out.write_all(&known.to_le_bytes());
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.out.write_all(b"X")?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        let number = u32::try_from(self.texts.len()).map_err(io::Error::other)?;
        self.out.write_all(b"r")?;
        self.out.write_all(&number.to_le_bytes())?;
        self.texts.insert(text.into(), number);
        Ok(())
    }

    pub(super) fn number(&mut self, number: u64) -> io::Result<()> {
        match i32::try_from(number) {
            Ok(number) => {
                self.out.write_all(b"J")?;
                self.out.write_all(&number.to_le_bytes())
            }
            Err(_) => {
                // One more byte keeps it positive.
                self.out.write_all(&[0x8a, 9])?;
                self.out.write_all(&number.to_le_bytes())?;
                self.out.write_all(&[0])
            }
        }
    }

    /// Writes a list of what `write` writes.
    pub(super) fn list(
        &mut self,
        write: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"](")?;
        write(self)?;
        self.out.write_all(b"e")
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
}
