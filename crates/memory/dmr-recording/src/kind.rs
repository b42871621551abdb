//! The first byte of a record: its kind, and which fields are those of the block before.

/// The kinds of records. The numbers are those of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Text = 0,
    Start = 1,
    Summary = 2,
    Thread = 3,
    Device = 4,
    Query = 5,
    Label = 6,
    Allocate = 7,
    Free = 8,
    Retire = 9,
    Ready = 10,
    Grow = 11,
    Span = 12,
    Wait = 13,
    Describe = 14,
    Spill = 15,
    Refused = 16,
    GraphLaunch = 17,
    BudgetPeak = 18,
    Stream = 19,
    LabelBegin = 20,
    LabelEnd = 21,
    DeviceLost = 22,
    SnapshotBegin = 23,
    Region = 24,
    SnapshotEnd = 25,
    WaitLength = 26,
    HostWait = 27,
}

impl Kind {
    /// The bits of the kind in the first byte.
    pub(crate) const MASK: u8 = 0x1f;
    /// The stream is that of the block before.
    pub(crate) const SAME_STREAM: u8 = 0x20;
    /// The tag is that of the block before.
    pub(crate) const SAME_TAG: u8 = 0x40;
    /// The size is that of the block before.
    pub(crate) const SAME_BYTES: u8 = 0x80;

    const ALL: [Self; 28] = [
        Self::Text,
        Self::Start,
        Self::Summary,
        Self::Thread,
        Self::Device,
        Self::Query,
        Self::Label,
        Self::Allocate,
        Self::Free,
        Self::Retire,
        Self::Ready,
        Self::Grow,
        Self::Span,
        Self::Wait,
        Self::Describe,
        Self::Spill,
        Self::Refused,
        Self::GraphLaunch,
        Self::BudgetPeak,
        Self::Stream,
        Self::LabelBegin,
        Self::LabelEnd,
        Self::DeviceLost,
        Self::SnapshotBegin,
        Self::Region,
        Self::SnapshotEnd,
        Self::WaitLength,
        Self::HostWait,
    ];

    /// Returns the kind of a first byte.
    #[inline]
    pub(crate) fn of(head: u8) -> Option<Self> {
        Self::ALL.get(usize::from(head & Self::MASK)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_stands_at_its_number() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
        assert_eq!(Kind::of(28), None);
    }
}
