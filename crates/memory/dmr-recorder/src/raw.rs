//! The words of an event in a ring, and the event that they stand for.

use dmr_core::AllocTag;

use crate::ring::WORDS;

/// The kinds of events that rings have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Allocate = 1,
    Free,
    Retire,
    Ready,
    Grow,
    Reserve,
    Release,
    Map,
    Unmap,
    Move,
    Wait,
    Describe,
    SpillOut,
    SpillIn,
    GraphLaunch,
    LabelBegin,
    LabelEnd,
    HostWait,
}

impl Kind {
    const ALL: [Self; 18] = [
        Self::Allocate,
        Self::Free,
        Self::Retire,
        Self::Ready,
        Self::Grow,
        Self::Reserve,
        Self::Release,
        Self::Map,
        Self::Unmap,
        Self::Move,
        Self::Wait,
        Self::Describe,
        Self::SpillOut,
        Self::SpillIn,
        Self::GraphLaunch,
        Self::LabelBegin,
        Self::LabelEnd,
        Self::HostWait,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// An event, without what its thread adds to it. What the fields hold depends on the kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    pub(crate) kind: Kind,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) stream: u64,
    /// The address of a text that lives as long as the process, or a number.
    pub(crate) text: u64,
    /// The bytes of the text; 0 for none.
    pub(crate) text_len: u16,
}

impl Raw {
    /// Makes an event without a text.
    #[inline(always)]
    pub(crate) const fn new(kind: Kind, a: u64, b: u64, c: u64, stream: u64) -> Self {
        Self { kind, a, b, c, stream, text: 0, text_len: 0 }
    }

    /// Adds a tag.
    #[inline(always)]
    pub(crate) fn tagged(self, tag: AllocTag) -> Self {
        let name = tag.name();
        let text = name.as_ptr().expose_provenance() as u64;
        Self { text, text_len: name.len().min(usize::from(u16::MAX)) as u16, ..self }
    }
}

/// The part of the second word that the event has: its kind, and the bytes of its text.
#[inline(always)]
pub(crate) const fn head_of(kind: Kind, text_len: u16) -> u64 {
    kind as u64 | (text_len as u64) << 8
}

/// The part of the second word that the thread has. 24 bits of its number are kept.
#[inline(always)]
pub(crate) const fn head_of_thread(thread: u64, label: u16) -> u64 {
    (label as u64) << 24 | thread << 40
}

/// The second word of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) text_len: u16,
    pub(crate) thread: u64,
    pub(crate) label: u16,
}

impl Head {
    fn unpack(word: u64) -> Option<Self> {
        Some(Self {
            kind: Kind::of(word as u8)?,
            text_len: (word >> 8) as u16,
            label: (word >> 24) as u16,
            thread: word >> 40,
        })
    }
}

/// An event that was read from a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingEvent {
    pub(crate) ticks: u64,
    pub(crate) head: Head,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) stream: u64,
    pub(crate) text: u64,
    pub(crate) query: u64,
}

impl RingEvent {
    /// Returns the event of the words of a slot.
    ///
    /// # Safety
    ///
    /// The slot was written as a whole by [`push`](crate::thread::push).
    #[allow(unsafe_code, reason = "the text of an event is its address and its length")]
    pub(crate) unsafe fn of(words: [u64; WORDS]) -> Option<Self> {
        let [ticks, head, a, b, c, stream, text, query] = words;
        let head = Head::unpack(head)?;
        Some(Self { ticks, head, a, b, c, stream, text, query })
    }

    /// Returns its text.
    #[allow(unsafe_code, reason = "the text of an event is its address and its length")]
    pub(crate) fn text(&self) -> &'static str {
        let len = usize::from(self.head.text_len);
        if len == 0 {
            return "";
        }
        let first = std::ptr::with_exposed_provenance(self.text as usize);
        // SAFETY: `Raw::tagged` has made address and length of a `&'static str`, whose provenance
        // it has exposed; a length that did not fit was made smaller. By the word of `of`'s caller
        // they were pushed together, and no other event has a length.
        let bytes = unsafe { std::slice::from_raw_parts(first, len) };
        // Cut within a character, if the text was longer.
        let valid = str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), |_| len);
        str::from_utf8(&bytes[..valid]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_second_word_survive_at_their_limits() {
        for (nth, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, nth + 1);
            let head = Head { kind, text_len: u16::MAX, thread: (1 << 24) - 1, label: u16::MAX };
            let word = head_of(kind, u16::MAX) | head_of_thread((1 << 24) - 1, u16::MAX);
            assert_eq!(Head::unpack(word), Some(head));
            let head = Head { kind, text_len: 0, thread: 0, label: 0 };
            assert_eq!(Head::unpack(head_of(kind, 0) | head_of_thread(0, 0)), Some(head));
        }
        assert_eq!(Head::unpack(0), None);
    }
}
