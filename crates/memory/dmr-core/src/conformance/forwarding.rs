//! The check that an adaptor forwards every method: T5.

use std::sync::{Arc, Mutex};

use super::Harness;
use super::pages::missed_pages;
use super::support::{ODD, TAG};
use crate::resource::UNNAMED;
use crate::sync::lock;
use crate::{
    Access, AllocTag, BlockId, BlockState, BlockUse, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DriverAllocation, PeerAccess, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, UseTokens, UseTracking, VirtualMemory,
};

/// Puts an adaptor around a [`Spy`] and calls every method once: each call must reach the spy
/// exactly once. The adaptor may make other calls besides.
///
/// A method that an adaptor does not forward has the trait's own body: no uses are tracked, or the
/// result comes from `usage`. That looks right until the adaptor is stacked on a resource that
/// tracks uses. An adaptor that defers deallocations must have forwarded them by the end of
/// `reap_pending`.
///
/// The spy has [`VirtualMemory`], whose pages are only numbers, whether the harness's resource has
/// or not. One that does not hand it on is found as well: it has to be meant.
///
/// # Errors
///
/// The methods that did not reach the spy exactly once, or the call that failed.
pub fn check_forwarding<'a, R: DeviceMemoryResource>(
    harness: &'a dyn Harness,
    wrap: impl FnOnce(Spy<'a>) -> R,
) -> Result<(), String> {
    let calls = Calls::default();
    let outer = wrap(Spy { upstream: harness.resource(), calls: calls.clone() });
    let mut missed = Missed { calls, methods: Vec::new() };
    let [stream, other] = harness.streams();

    missed.once("device_ordinal", || outer.device_ordinal());
    missed.once("stream_pool", || outer.stream_pool());
    missed.once("usage", || outer.usage());
    missed.once("bytes_outstanding", || outer.bytes_outstanding());
    let tracks = missed.once("use_tracking", || outer.use_tracking().is_some());
    if tracks != harness.resource().use_tracking().is_some() {
        missed.methods.push(format!("use_tracking (tracks: {tracks})"));
    }
    let mut block = missed
        .once("allocate", || outer.allocate(ODD, stream, TAG))
        .map_err(|e| format!("allocate failed: {e}"))?;
    let id = block.id();
    missed.once("is_retired", || outer.is_retired(id));
    let uses = [BlockUse::new(id, Access::Read)];

    if let Some(tracking) = outer.use_tracking() {
        let mut tokens = UseTokens::new(other);
        for (close, name) in [(true, "finish"), (false, "cancel")] {
            let prepared = missed.once("prepare", || tracking.prepare(&uses, &mut tokens));
            let closed = prepared.and_then(|()| {
                missed.once(name, || match close {
                    true => tracking.finish(&mut tokens),
                    false => tracking.cancel(&mut tokens),
                })
            });
            closed.map_err(|e| format!("a use that is to {name} failed: {e}"))?;
            if !tokens.is_empty() {
                return Err(format!("{name} leaves {} windows in the tokens", tokens.len()));
            }
        }
    }

    let grown = missed.once("try_grow", || outer.try_grow(&mut block, 2 * ODD));
    grown.map_err(|e| format!("try_grow failed: {e}"))?;

    let block = missed.give_away(&outer, block)?;

    missed.methods.extend(missed_pages(&missed.calls, outer.virtual_memory()));

    let (freed, reaped) = missed.once("deallocate", || {
        let freed = outer.deallocate(block);
        (freed, outer.reap_pending())
    });
    freed.map(drop).map_err(|e| e.to_string())?;
    reaped.map_err(|e| format!("reap_pending failed: {e}"))?;
    let reaps = [
        missed.once("try_reap", || outer.try_reap()),
        missed.once("reap_pending", || outer.reap_pending()),
        missed.once("trim_to", || outer.trim_to(0)),
    ];
    // The harness may have one device, so the call may be refused.
    let _ = missed.once("allow_access", || outer.allow_access(outer.device_ordinal()));

    for reap in reaps {
        reap.map_err(|e| format!("reaping or trimming failed: {e}"))?;
    }
    missed.verdict()
}

struct Missed {
    calls: Calls,
    methods: Vec<String>,
}

impl Missed {
    fn once<T>(&mut self, method: &'static str, call: impl FnOnce() -> T) -> T {
        let before = self.calls.count(method);
        let result = call();
        let calls = self.calls.count(method) - before;
        if calls != 1 {
            self.methods.push(format!("{method} ({calls} calls)"));
        }
        result
    }

    /// Gives a block away, which the spy refuses, and returns it.
    fn give_away(
        &mut self,
        outer: &dyn DeviceMemoryResource,
        block: DeviceBlock,
    ) -> Result<DeviceBlock, String> {
        let id = block.id();
        let before = self.calls.count("give_away");
        let given = outer.give_away(block);
        let calls = self.calls.count("give_away") - before;
        let Err(refused) = given else {
            return Err("a block that is refused is given away".into());
        };
        let DeallocateError { error, block, .. } = *refused;
        match error {
            // A layer that cannot give blocks away names itself.
            ResourceError::NotGivenAway { resource, .. }
                if if calls == 1 { resource == SPY } else { resource != UNNAMED } => {}
            error => self.methods.push(format!("give_away ({calls} calls, {error})")),
        }
        if block.id() == id { Ok(block) } else { Err(format!("{block} is not the block")) }
    }

    fn verdict(self) -> Result<(), String> {
        if self.methods.is_empty() {
            return Ok(());
        }
        Err(format!("not forwarded exactly once: {}", self.methods.join(", ")))
    }
}

/// The name of a spy in its errors.
const SPY: &str = "the spy";

/// A resource that counts its calls and forwards them to another.
#[derive(Debug)]
pub struct Spy<'a> {
    upstream: &'a dyn DeviceMemoryResource,
    pub(super) calls: Calls,
}

/// The names of the methods that were called on a spy.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(Arc<Mutex<Vec<&'static str>>>);

impl Calls {
    pub(super) fn count(&self, method: &str) -> usize {
        let calls = lock(&self.0);
        calls.iter().filter(|call| **call == method).count()
    }

    pub(super) fn add(&self, method: &'static str) {
        lock(&self.0).push(method);
    }
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for Spy<'_> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.calls.add("allocate");
        self.upstream.allocate(bytes, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.calls.add("deallocate");
        self.upstream.deallocate(block)
    }

    /// Refuses, without a call of the upstream resource.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        self.calls.add("give_away");
        let refused = ResourceError::not_given_away(&block, SPY);
        Err(DeallocateError::new(refused, block))
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.calls.add("try_grow");
        self.upstream.try_grow(block, bytes)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.calls.add("is_retired");
        self.upstream.is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.calls.add("device_ordinal");
        self.upstream.device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.calls.add("stream_pool");
        self.upstream.stream_pool()
    }

    fn bytes_outstanding(&self) -> u64 {
        self.calls.add("bytes_outstanding");
        self.upstream.bytes_outstanding()
    }

    fn usage(&self) -> Usage {
        self.calls.add("usage");
        self.upstream.usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.calls.add("try_reap");
        self.upstream.try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.calls.add("reap_pending");
        self.upstream.reap_pending()
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.calls.add("trim_to");
        self.upstream.trim_to(keep_bytes)
    }

    /// Grants it, without a call of the upstream resource.
    fn allow_access(&self, _: usize) -> ResourceResult<PeerAccess> {
        self.calls.add("allow_access");
        Ok(PeerAccess::Granted)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.calls.add("use_tracking");
        self.upstream.use_tracking().map(|_| self as _)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl Spy<'_> {
    fn tracking(&self, tokens: &UseTokens) -> ResourceResult<&dyn UseTracking> {
        self.upstream.use_tracking().ok_or_else(|| ResourceError::not_tracked(tokens.stream()))
    }
}

impl UseTracking for Spy<'_> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.calls.add("prepare");
        self.tracking(tokens)?.prepare(uses, tokens)
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.calls.add("finish");
        self.tracking(tokens)?.finish(tokens)
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.calls.add("cancel");
        self.tracking(tokens)?.cancel(tokens)
    }
}
