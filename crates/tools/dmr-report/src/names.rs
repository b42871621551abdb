//! Texts by index: each is kept once.

use rustc_hash::FxHashMap;

/// The texts of a model. Index 0 is the empty text.
#[derive(Debug)]
pub struct Names {
    texts: Vec<Box<str>>,
    index: FxHashMap<Box<str>, u32>,
}

impl Default for Names {
    fn default() -> Self {
        let mut names = Self { texts: Vec::new(), index: FxHashMap::default() };
        names.intern("");
        names
    }
}

impl Names {
    /// Returns the index of a text, which is added if it is new.
    pub fn intern(&mut self, text: &str) -> u32 {
        if let Some(known) = self.index.get(text) {
            return *known;
        }
        let index = self.texts.len() as u32;
        self.texts.push(text.into());
        self.index.insert(text.into(), index);
        index
    }

    /// Returns a text; the empty one for an index that no text has.
    #[must_use]
    pub fn get(&self, index: u32) -> &str {
        self.texts.get(index as usize).map_or("", |text| text)
    }

    /// Returns the texts in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }

    /// Returns the number of texts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.texts.len()
    }
}
