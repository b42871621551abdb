//! The texts of a file, in the order in which it defines them.

use crate::{MAX_TEXT_BYTES, MAX_TEXTS, Problem, StringId};

/// The texts that a reader has seen. Those of a section follow those of the sections before.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    /// All texts, one behind the other.
    texts: String,
    /// The end of each text.
    ends: Vec<u32>,
    /// The number of texts before those of the section.
    base: u32,
}

impl Strings {
    /// Begins a section: its texts are numbered from 1 again.
    pub(crate) fn begin_section(&mut self) {
        self.base = self.ends.len() as u32;
    }

    pub(crate) fn push(&mut self, text: &[u8]) -> Result<(), Problem> {
        let text = str::from_utf8(text).map_err(|_| Problem::NotText)?;
        if self.ends.len() >= MAX_TEXTS || self.texts.len() + text.len() > MAX_TEXT_BYTES {
            return Err(Problem::TooManyTexts);
        }
        self.texts.push_str(text);
        self.ends.push(self.texts.len() as u32);
        Ok(())
    }

    /// Returns the id in the file of a number in the section.
    #[inline]
    pub(crate) fn in_file(&self, number: u64) -> Result<StringId, Problem> {
        if number == 0 {
            return Ok(StringId::EMPTY);
        }
        let id = number.saturating_add(u64::from(self.base));
        if id > self.ends.len() as u64 {
            return Err(Problem::NoSuchText);
        }
        Ok(StringId(id as u32))
    }

    /// Returns a text; empty for an id that the file has not defined.
    pub(crate) fn get(&self, id: StringId) -> &str {
        let Some(index) = (id.0 as usize).checked_sub(1) else { return "" };
        let Some(&end) = self.ends.get(index) else { return "" };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.texts[start as usize..end as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.texts.len()
    }
}
