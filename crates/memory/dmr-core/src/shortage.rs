//! Reports of a memory shortage: which tags hold the memory, and which limit refused more.

use std::fmt;

use crate::AllocTag;
use crate::human::human_bytes;

/// The live blocks of one tag: part of [`OutOfBudget`](crate::ResourceError::OutOfBudget) and
/// [`OutOfMemory`](crate::ResourceError::OutOfMemory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tag.
    pub tag: AllocTag,
    /// Their bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The charges of one process to a limit that processes share: part of
/// [`OutOfBudget`](crate::ResourceError::OutOfBudget).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessHolder {
    /// Its pid.
    pub pid: u32,
    /// Its name, as the system shows it: at most 15 bytes.
    pub name: Box<str>,
    /// Bytes charged.
    pub bytes: u64,
    /// The tag that holds the most, at most 64 bytes of it.
    pub tag: Box<str>,
    /// Bytes of that tag when it was last reported; 0 if there is none.
    pub tag_bytes: u64,
}

/// The state of a limit that processes share, and that refused a request: part of
/// [`OutOfBudget`](crate::ResourceError::OutOfBudget).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedShortage {
    /// The processes, most bytes first.
    pub processes: Box<[ProcessHolder]>,
    /// Why the limit cannot be used, and what to do; `None` if it has no room.
    pub problem: Option<Box<str>>,
}

/// The state of a pool that has no free chunk for a request: part of
/// [`OutOfMemory`](crate::ResourceError::OutOfMemory). All sizes are bytes, rounded up as the pool
/// cuts chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolShortage {
    /// Reserved from upstream.
    pub reserved: u64,
    /// The largest free chunk.
    pub largest_free: u64,
    /// Free, in chunks that are too small.
    pub cached: u64,
    /// Freed, and still used by other streams.
    pub pending: u64,
    /// The tags that hold the most, largest first.
    pub holders: Box<[Holder]>,
}

impl PoolShortage {
    /// The maximum number of holders.
    pub const HOLDERS: usize = 5;
}

/// A configured limit that a request would have exceeded: part of
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

/// Returns the start of a message: whether the device or a limit refused the request.
pub(crate) fn lack(
    requested: usize,
    device_ordinal: usize,
    free: u64,
    total: u64,
    limit: &Option<Box<Limit>>,
) -> String {
    let requested = human_bytes(requested as u64);
    let free = human_bytes(free);
    let total = human_bytes(total);
    match limit.as_deref() {
        None => {
            format!(
                "out of device memory: {requested} requested, {free} of {total} free on device \
                 {device_ordinal}"
            )
        }
        Some(Limit { name, bytes, reserved }) => format!(
            "out of memory: {requested} requested, and {name} allows {}, of which {} are reserved (device \
             {device_ordinal} has {free} of {total} free)",
            human_bytes(*bytes),
            human_bytes(*reserved)
        ),
    }
}

/// Returns the end of a message: what to do.
pub(crate) fn advice(limit: &Option<Box<Limit>>) -> String {
    match limit.as_deref() {
        None => "free blocks, call reap_pending, or request less".to_owned(),
        Some(limit) => {
            format!("free blocks, call reap_pending, request less, or raise {}", limit.name)
        }
    }
}

/// Shows a tag as ` "tenant"`, and the empty tag as nothing.
pub(crate) struct Named<'a>(pub(crate) &'a AllocTag);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_untagged() { Ok(()) } else { write!(f, " \"{}\"", self.0) }
    }
}

/// Shows holders as `; 3 GiB held by "hash-table" (312 blocks), ...`.
pub(crate) struct Held<'a>(pub(crate) &'a [Holder]);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Holder { tag, bytes, blocks }) in self.0.iter().enumerate() {
            let lead = if i == 0 { ';' } else { ',' };
            let size = human_bytes(*bytes);
            write!(f, "{lead} {size} held by \"{tag}\" ({blocks} blocks)")?;
        }
        Ok(())
    }
}

/// Shows a process as `1 GiB held by process 42 (python3), most of it by "kv-cache" (800 MiB)`.
impl fmt::Display for ProcessHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} held by process {} ({})", human_bytes(self.bytes), self.pid, self.name)?;
        if self.tag_bytes == 0 {
            return Ok(());
        }
        let tag = if self.tag.is_empty() { "untagged" } else { &*self.tag };
        write!(f, ", most of it by \"{tag}\" ({})", human_bytes(self.tag_bytes))
    }
}

/// Shows the state of a limit that processes share, in the middle of a message.
pub(crate) struct SharedBy<'a>(pub(crate) &'a Option<Box<SharedShortage>>);

impl fmt::Display for SharedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(SharedShortage { processes, problem }) = self.0.as_deref() else { return Ok(()) };
        if let Some(problem) = problem {
            write!(f, "; the limit is shared by processes and cannot be used: {problem}")?;
        }
        for (i, process) in processes.iter().enumerate() {
            write!(f, "; {}{process}", if i == 0 { "shared by processes: " } else { "" })?;
        }
        if processes.iter().any(|process| process.pid != std::process::id()) {
            f.write_str("; idle memory of their pools counts: call trim_to there")?;
        }
        Ok(())
    }
}

/// Shows a pool's state, in the middle of a message.
pub(crate) struct Pooled<'a>(pub(crate) &'a Option<Box<PoolShortage>>);

impl fmt::Display for Pooled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pool) = self.0 else { return Ok(()) };
        write!(
            f,
            ", has {} reserved, {} pending and {} free, of which {} in one chunk{}",
            human_bytes(pool.reserved),
            human_bytes(pool.pending),
            human_bytes(pool.cached),
            human_bytes(pool.largest_free),
            Held(&pool.holders)
        )
    }
}
