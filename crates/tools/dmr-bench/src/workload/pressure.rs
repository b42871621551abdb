//! W8: the sequences of W3 under a limit that nearly suffices, with trims.
//!
//! Sixteen threads make the operations of W3, each on a stream of its own, on a resource that may
//! take 1.15 times the live peak from the device ([`Pressure`]). The operations do not depend on
//! what is refused: an allocation that is refused is counted and not repeated, and the free of its
//! block is left out. After each 10,000 of its own operations, made or left out, a thread trims the
//! resource to 0 bytes.
//!
//! There is one pass, from an empty resource on, with the clock read around each call; the trims
//! are part of its time. An operation counts if it has allocated or freed: the time of a refused
//! call counts, the call does not.

use serde_json::json;

use super::{Plan, sequences, told};
use crate::sequence::{self, MULTISTREAM_SEED, Pressure, Sequence};
use crate::{BenchError, Line, Machine, stacks};

const WORKLOAD: &str = "pressure";
const THREADS: u64 = 16;

/// Operations of one thread.
const OPS: usize = 100_000;

/// Runs it on every resource of the plan that can have a limit. Returns how many failed.
pub(super) fn run(machine: &Machine, plan: &Plan, emit: &mut dyn FnMut(Line)) -> usize {
    let ops = plan.scaled(OPS);
    let of_thread = |thread| sequence::multistream(MULTISTREAM_SEED, thread, ops);
    let sequences: Vec<Sequence> = (0..THREADS).map(of_thread).collect();
    let pressure = Pressure::of(&sequences);
    let params = json!({
        "threads": THREADS,
        "ops_per_thread": ops,
        "limit_bytes": pressure.limit,
        "trim_every": pressure.trim_every,
    });
    let make = |_| Ok::<_, BenchError>(sequences.clone());
    let mut failed = 0;
    for resource in plan.resources.iter().filter(|name| stacks::can_be_limited(name)) {
        let params = &params;
        let pressure = Some(pressure);
        let run = sequences::Run { machine, plan, resource, workload: WORKLOAD, params, pressure };
        failed += usize::from(!told(resource, WORKLOAD, params, run.line(&make), emit));
    }
    failed
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use dmr_core::sync::lock;
    use dmr_core::{
        AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError,
        ResourceResult, StreamId,
    };

    use super::*;
    use crate::sequence::Fnv;
    use crate::stacks::Trim;
    use crate::workload::pass::{Outcome, Place, Trims};

    /// Refuses every seventh allocation, and hashes the calls as the peers' generator does.
    #[derive(Debug)]
    struct Refusing {
        inner: Arc<dyn DeviceMemoryResource>,
        allocations: AtomicU64,
        hash: Mutex<Fnv>,
    }

    impl Refusing {
        fn add(&self, word: u64) {
            lock(&self.hash).word(word);
        }
    }

    impl DeviceMemoryResource for Refusing {
        fn allocate(
            &self,
            bytes: usize,
            stream: StreamId,
            tag: AllocTag,
        ) -> ResourceResult<DeviceBlock> {
            self.add(bytes as u64);
            if (self.allocations.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(7) {
                return Err(ResourceError::beyond_device(bytes, 0));
            }
            self.inner.allocate(bytes, stream, tag)
        }

        fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
            self.add(1 << 63 | block.bytes() as u64);
            self.inner.deallocate(block)
        }

        dmr_core::forward!(
            inner: is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending,
        );
    }

    /// Runs the operations of a thread while every seventh allocation is refused. Returns the
    /// outcome of the pass, the hash of the calls and the number of trims.
    fn refused(thread: u64, ops: usize, trim_every: usize) -> (Outcome, u64, u64) {
        let machine = Machine::open(0).unwrap();
        let streams = machine.streams().unwrap();
        let lease = streams.acquire().unwrap();
        let inner = stacks::make(stacks::BARE, &streams).unwrap().resource;
        let allocations = AtomicU64::new(0);
        let hash = Mutex::default();
        let resource = Refusing { inner, allocations, hash };
        let trims = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&trims);
        let trim: Trim = Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let place = Place {
            resource: Some(&resource),
            fixed: 0,
            device: machine.device(),
            streams: vec![&lease],
            touch: 0,
            budget: Duration::MAX,
            live: None,
            trims: Some(Trims { every: trim_every, trim: &trim }),
        };
        let sequence = sequence::multistream(MULTISTREAM_SEED, thread, ops);
        let mut slots: Vec<_> = std::iter::repeat_with(|| None).take(sequence.slots).collect();
        let outcome = place.call_by_call(&sequence, &mut slots, &mut || Ok(())).unwrap();
        let hash = resource.hash.lock().unwrap().0;
        place.drain(&mut slots).unwrap();
        (outcome, hash, trims.load(Ordering::Relaxed))
    }

    /// The values that the peers' reference generator prints.
    #[test]
    fn refusals_leave_the_calls_of_the_peers() {
        let check_values = [
            (0, 5_000, (2_509, 358, 2_135), 0xb600_2fd4_29bf_3d18),
            (1, 5_000, (2_512, 358, 2_133), 0x0110_ad31_6f11_9f95),
            (0, 20_000, (10_000, 1_428, 8_572), 0xebe0_cfe0_5740_ca7c),
            (1, 20_000, (10_027, 1_432, 8_550), 0x4e49_7d1e_4987_0e04),
        ];
        for (thread, ops, counts, expected) in check_values {
            let (outcome, hash, _) = refused(thread, ops, ops);
            let found = (outcome.allocations.len(), outcome.failed, outcome.frees.len());
            assert_eq!((found, hash), (counts, expected), "thread {thread}, {ops} operations");
        }
    }

    #[test]
    fn a_thread_trims_at_intervals_of_its_own_operations_and_after_the_last() {
        for (trim_every, expected) in [(2_500, 2), (1_000, 5), (5_000, 1), (5_001, 0)] {
            let (outcome, _, trims) = refused(0, 5_000, trim_every);
            assert_eq!((outcome.trims, trims), (expected, expected), "every {trim_every}");
        }
    }
}
