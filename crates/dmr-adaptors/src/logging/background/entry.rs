//! A record on its way through a ring, in one cache line.

use dmr_core::{AllocTag, StreamId};

use crate::logging::{LogAction, LogRecord};

/// What a push costs is, above all, fetching the lines of the slot from the core that emptied it
/// last: so an entry is one line. The thread is that of the ring.
#[repr(align(64))]
pub(super) struct Entry(Packed);

enum Packed {
    Small(Small),
    /// A call that failed, or a number that does not fit.
    Boxed(Box<LogRecord>),
}

const _: () = assert!(size_of::<Entry>() == 64);

struct Small {
    time_ns: u64,
    ptr: u64,
    /// From the top: 8 bits of action, 8 of device, 48 of bytes.
    action_device_bytes: u64,
    stream: StreamId,
    tag: AllocTag,
    query_id: u64,
    generation: u64,
}

const BYTES_BITS: u32 = 48;
const DEVICE_BITS: u32 = 8;

impl Entry {
    #[inline]
    pub(super) fn pack(record: &LogRecord, thread: u64) -> Self {
        let fits = record.thread == thread
            && record.bytes >> BYTES_BITS == 0
            && record.device >> DEVICE_BITS == 0
            && record.result.is_ok();
        let Some(action) = action_number(record.action).filter(|_| fits) else {
            return Self(Packed::Boxed(Box::new(record.clone())));
        };
        let action_and_device = action << DEVICE_BITS | u64::from(record.device);
        Self(Packed::Small(Small {
            time_ns: record.time_ns,
            ptr: record.ptr,
            action_device_bytes: action_and_device << BYTES_BITS | record.bytes,
            stream: record.stream,
            tag: record.tag,
            query_id: record.query_id,
            generation: record.generation,
        }))
    }

    pub(super) fn time_ns(&self) -> u64 {
        match &self.0 {
            Packed::Small(small) => small.time_ns,
            Packed::Boxed(record) => record.time_ns,
        }
    }

    pub(super) fn unpack(self, thread: u64) -> LogRecord {
        let small = match self.0 {
            Packed::Small(small) => small,
            Packed::Boxed(record) => return *record,
        };
        let action_and_device = small.action_device_bytes >> BYTES_BITS;
        LogRecord {
            time_ns: small.time_ns,
            thread,
            action: action_of(action_and_device >> DEVICE_BITS),
            ptr: small.ptr,
            bytes: small.action_device_bytes & ((1 << BYTES_BITS) - 1),
            stream: small.stream,
            device: (action_and_device & ((1 << DEVICE_BITS) - 1)) as u32,
            tag: small.tag,
            query_id: small.query_id,
            generation: small.generation,
            result: Ok(()),
        }
    }
}

/// `None` for an action that is newer than this.
#[inline]
fn action_number(action: LogAction) -> Option<u64> {
    match action {
        LogAction::Allocate => Some(0),
        LogAction::Deallocate => Some(1),
        LogAction::Reap => Some(2),
        LogAction::Grow => Some(3),
        _ => None,
    }
}

fn action_of(number: u64) -> LogAction {
    match number {
        0 => LogAction::Allocate,
        1 => LogAction::Deallocate,
        2 => LogAction::Reap,
        _ => LogAction::Grow,
    }
}

#[cfg(test)]
mod tests {
    use dmr_core::StreamPoolId;
    use dmr_core::record::Failure;

    use super::*;

    #[test]
    fn any_record_is_unpacked_as_it_was_packed() {
        let pool = StreamPoolId::next().unwrap();
        let record = LogRecord {
            time_ns: u64::MAX,
            thread: 7,
            action: LogAction::Allocate,
            ptr: u64::MAX,
            bytes: (1 << BYTES_BITS) - 1,
            stream: StreamId::from_parts(pool, 4095, 3).unwrap(),
            device: 255,
            tag: AllocTag::new("packed"),
            query_id: u64::MAX,
            generation: u64::MAX,
            result: Ok(()),
        };
        let mut records = vec![record.clone()];
        for action in [LogAction::Deallocate, LogAction::Reap, LogAction::Grow] {
            records.push(LogRecord { action, ..record.clone() });
        }
        records.push(LogRecord { tag: AllocTag::UNTAGGED, bytes: 0, device: 0, ..record.clone() });
        for small in records {
            let entry = Entry::pack(&small, 7);
            assert!(matches!(entry.0, Packed::Small(_)));
            assert_eq!(entry.unpack(7), small);
        }
        let boxed = [
            LogRecord { bytes: 1 << BYTES_BITS, ..record.clone() },
            LogRecord { device: 256, ..record.clone() },
            LogRecord { thread: 8, ..record.clone() },
            LogRecord { result: Err(Box::new(Failure::new("driver", "no"))), ..record },
        ];
        for boxed in boxed {
            let entry = Entry::pack(&boxed, 7);
            assert!(matches!(entry.0, Packed::Boxed(_)));
            assert_eq!(entry.unpack(7), boxed);
        }
    }
}
