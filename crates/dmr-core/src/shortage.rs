//! Who holds the memory when there is none left.

use std::fmt;

use crate::AllocTag;
use crate::size::human_bytes;

/// One line of an [`OutOfBudget`](crate::ResourceError::OutOfBudget) or
/// [`OutOfMemory`](crate::ResourceError::OutOfMemory) answer: who holds how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who.
    pub tag: AllocTag,
    /// How many bytes.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
}

/// What a pool keeps while it has no room for a block: part of
/// [`OutOfMemory`](crate::ResourceError::OutOfMemory). All sizes are bytes, as the pool cuts memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolShortage {
    /// Taken from upstream.
    pub reserved: u64,
    /// The largest piece that is free.
    pub largest_free: u64,
    /// Free, in pieces that are too small.
    pub cached: u64,
    /// Free once other streams are done with it.
    pub pending: u64,
    /// Who holds the most, largest first.
    pub holders: Box<[Holder]>,
}

impl PoolShortage {
    /// How many holders are named.
    pub const HOLDERS: usize = 5;
}

/// A limit of a configuration that has refused memory: part of
/// [`OutOfMemory`](crate::ResourceError::OutOfMemory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name: `PoolConfig::maximum_size`.
    pub name: &'static str,
    /// Its value, in bytes.
    pub bytes: u64,
    /// Bytes reserved that count against it.
    pub reserved: u64,
}

/// Says whether the device or a limit lacks room: the start of a message.
pub(crate) fn lack(
    requested: usize,
    device_ordinal: usize,
    free: u64,
    total: u64,
    limit: &Option<Box<Limit>>,
) -> String {
    let (asked, free, total) =
        (human_bytes(requested as u64), human_bytes(free), human_bytes(total));
    match limit.as_deref() {
        None => {
            format!(
                "out of device memory: {asked} asked, {free} of {total} free on device \
                 {device_ordinal}"
            )
        }
        Some(Limit { name, bytes, reserved }) => format!(
            "out of memory: {asked} asked, and {name} allows {}, of which {} are reserved (device \
             {device_ordinal} has {free} of {total} free)",
            human_bytes(*bytes),
            human_bytes(*reserved)
        ),
    }
}

/// Says what to do about it: the end of a message.
pub(crate) fn advice(limit: &Option<Box<Limit>>) -> String {
    match limit.as_deref() {
        None => "free blocks, call reap_pending, or ask for less".to_owned(),
        Some(limit) => {
            format!("free blocks, call reap_pending, ask for less, or raise {}", limit.name)
        }
    }
}

/// ` "tenant"`; nothing if it has no name.
pub(crate) struct Named<'a>(pub(crate) &'a AllocTag);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_untagged() { Ok(()) } else { write!(f, " \"{}\"", self.0) }
    }
}

/// `; 3 GiB held by "hash-table" (312 blocks), ...`; nothing if there are none.
pub(crate) struct Held<'a>(pub(crate) &'a [Holder]);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Holder { tag, bytes, blocks }) in self.0.iter().enumerate() {
            let (lead, size) = (if i == 0 { ';' } else { ',' }, human_bytes(*bytes));
            write!(f, "{lead} {size} held by \"{tag}\" ({blocks} blocks)")?;
        }
        Ok(())
    }
}

/// What a pool says of itself, in the middle of a sentence.
pub(crate) struct Pooled<'a>(pub(crate) &'a Option<Box<PoolShortage>>);

impl fmt::Display for Pooled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pool) = self.0 else { return Ok(()) };
        write!(
            f,
            ", has {} reserved, {} pending and {} free, of which {} in one piece{}",
            human_bytes(pool.reserved),
            human_bytes(pool.pending),
            human_bytes(pool.cached),
            human_bytes(pool.largest_free),
            Held(&pool.holders)
        )
    }
}
