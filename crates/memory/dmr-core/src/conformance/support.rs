//! Support of the checks: the resource with its streams, and failure messages.

use std::any::Any;

use super::Harness;
use crate::{
    Access, AllocTag, BlockId, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, Usage, UseTokens, UseTrackingExt,
};

/// A size in bytes that every rounding changes.
pub(super) const ODD: usize = 1001;

/// A size in bytes at which work takes some time.
pub(super) const LARGE: usize = (256 << 10) + 1;

pub(super) const TAG: AllocTag = AllocTag::new("conformance");

/// Why a check failed.
#[derive(Debug)]
pub(super) struct Failure(String);

pub(super) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

/// Fails the check with a message, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::support::Failure::new(format!($($message)+)));
        }
    };
}
pub(super) use ensure;

/// Fails the check unless the result is an error of this kind.
macro_rules! ensure_refused {
    ($what:expr, $result:expr, $kind:pat $(if $guard:expr)?) => {
        match $result {
            Err($kind) $(if $guard)? => {}
            Err(other) => return Err($crate::conformance::support::Failure::new(
                format!("{} failed with the wrong kind of error: {other:?}", $what)
            )),
            Ok(_) => return Err($crate::conformance::support::Failure::new(
                format!("{} was accepted", $what)
            )),
        }
    };
}
pub(super) use ensure_refused;

/// The resource under test, with calls that say what failed.
pub(super) struct Subject<'a> {
    pub(super) harness: &'a dyn Harness,
    pub(super) resource: &'a dyn DeviceMemoryResource,
    pub(super) a: StreamId,
    pub(super) b: StreamId,
}

impl<'a> Subject<'a> {
    pub(super) fn new(harness: &'a dyn Harness) -> Outcome<Self> {
        let resource = harness.resource();
        let [a, b] = harness.streams();
        let outstanding = resource.usage().outstanding();
        ensure!(outstanding == 0, "a fresh resource has {outstanding} bytes outstanding");
        Ok(Self { harness, resource, a, b })
    }

    /// Ends a check: waits for all work, and fails if there was a race.
    pub(super) fn conclude(&self) -> Outcome {
        self.synchronize()?;
        self.harness.verdict().map_err(|race| Failure::new(format!("race: {race}")))
    }

    pub(super) fn allocate(&self, bytes: usize, stream: StreamId) -> Outcome<DeviceBlock> {
        let block = self.resource.allocate(bytes, stream, TAG);
        block.map_err(|e| failed(&format!("allocate({bytes}, {stream})"), e))
    }

    pub(super) fn deallocate(&self, block: DeviceBlock) -> Outcome {
        self.resource.deallocate(block).map(drop).map_err(|e| {
            let DeallocateError { error, block } = *e;
            failed(&format!("deallocate({block})"), error)
        })
    }

    pub(super) fn deallocate_all(&self, blocks: impl IntoIterator<Item = DeviceBlock>) -> Outcome {
        blocks.into_iter().try_for_each(|block| self.deallocate(block))
    }

    pub(super) fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> Outcome {
        self.harness.fill(stream, block, byte).map_err(|e| failed("fill", e))
    }

    /// Fails unless work on `stream` reads `byte` in the whole block.
    pub(super) fn expect(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> Outcome {
        match self.harness.check(stream, block, byte).map_err(|e| failed("check", e))? {
            None => Ok(()),
            Some(offset) => Err(Failure::new(format!(
                "{block} should be all {byte:#04x} on {stream}, byte {offset} is not"
            ))),
        }
    }

    pub(super) fn delay(&self, stream: StreamId) -> Outcome {
        self.harness.delay(stream).map_err(|e| failed("delay", e))
    }

    pub(super) fn synchronize(&self) -> Outcome {
        self.harness.synchronize().map_err(|e| failed("synchronize", e))
    }

    pub(super) fn try_reap(&self) -> Outcome<u64> {
        self.resource.try_reap().map_err(|e| failed("try_reap", e))
    }

    pub(super) fn reap_pending(&self) -> Outcome<u64> {
        self.resource.reap_pending().map_err(|e| failed("reap_pending", e))
    }

    /// Returns the accounting, and fails if its figures contradict each other.
    pub(super) fn usage(&self) -> Outcome<Usage> {
        let usage = self.resource.usage();
        let outstanding = self.resource.bytes_outstanding();
        ensure!(
            outstanding == usage.outstanding(),
            "bytes_outstanding is {outstanding}, but live + retired in {usage:?} is {}",
            usage.outstanding()
        );
        let difference = usage.total_allocated.checked_sub(usage.total_freed);
        ensure!(
            difference == Some(outstanding),
            "{outstanding} bytes are outstanding, which total_allocated - total_freed in \
             {usage:?} is not"
        );
        ensure!(usage.reserved >= usage.live, "less is reserved than is live: {usage:?}");
        Ok(usage)
    }

    pub(super) fn tracks(&self) -> bool {
        self.resource.supports_block_use_tracking()
    }

    pub(super) fn prepare(
        &self,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> Outcome<UseTokens> {
        let tokens = self.resource.prepare_block_use(block, stream, access);
        tokens.map_err(|e| failed(&format!("prepare_block_use({stream}, {access:?})"), e))
    }

    pub(super) fn prepare_all(&self, uses: &[BlockUse], stream: StreamId) -> Outcome<UseTokens> {
        let tokens = self.resource.prepare_uses(uses, stream);
        tokens.map_err(|e| failed(&format!("prepare_uses({stream})"), e))
    }

    pub(super) fn finish(&self, tokens: UseTokens) -> Outcome {
        self.resource.finish_uses(tokens).map_err(|e| failed("finish_uses", e))
    }

    pub(super) fn cancel(&self, tokens: UseTokens) -> Outcome {
        self.resource.cancel_uses(tokens).map_err(|e| failed("cancel_uses", e))
    }

    /// Prepares a use, submits `work`, and finishes the use.
    pub(super) fn used(
        &self,
        block: &DeviceBlock,
        stream: StreamId,
        access: Access,
        work: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let tokens = self.prepare(block.id(), stream, access)?;
        work()?;
        self.finish(tokens)
    }

    pub(super) fn record(&self, block: &DeviceBlock, stream: StreamId) -> Outcome {
        self.resource
            .record_block_use(block, stream)
            .map_err(|e| failed(&format!("record_block_use({stream})"), e))
    }

    /// Makes an allocation that must be refused. If it succeeds, deallocates the block.
    pub(super) fn refused(&self, bytes: usize, stream: StreamId) -> ResourceResult<()> {
        self.resource.allocate(bytes, stream, TAG).map(|block| {
            // The check fails anyway.
            let _ = self.resource.deallocate(block);
        })
    }
}

fn failed(what: &str, error: ResourceError) -> Failure {
    Failure::new(format!("{what} failed: {error}"))
}

/// Returns the message of a panic.
pub(super) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

/// Pseudo-random numbers, the same in every run.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}
