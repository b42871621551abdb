//! Operations of streams: what they come after, and their effect.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::access::{Clock, Epoch, Origin};
use crate::check::{Test, Ticket, Value};
use crate::kernel::{Footprint, Kernel, KernelArgs};
use crate::machine::{HostCall, HostPtr, References};
use crate::memory::address::is_host_range;

/// A submitted operation.
pub(crate) struct Op {
    /// Operations that must have executed, besides the earlier ones of its stream.
    pub(crate) deps: SmallVec<[Epoch; 2]>,
    pub(crate) action: Action,
    /// For an operation by which the host can learn, without a driver call, that the stream has
    /// come so far.
    pub(crate) seen_by_host: Option<Box<SeenByHost>>,
}

/// An operation by which the host can learn something.
pub(crate) struct SeenByHost {
    /// The operations that come before.
    pub(crate) before: Clock,
    /// The tick of the thread that runs such operations at which this one was submitted.
    pub(crate) tick: u64,
}

/// The effect of an operation.
pub(crate) enum Action {
    /// None: the operation only orders.
    Order,
    Fill {
        at: u64,
        len: u64,
        pattern: [u8; 4],
    },
    Copy {
        to: u64,
        from: u64,
        len: u64,
    },
    /// Bytes that were copied from pageable host memory during the call.
    Write {
        to: u64,
        bytes: Box<[u8]>,
    },
    /// A copy to pageable host memory, whose owner waits in the call.
    ReadOut {
        from: u64,
        to: HostPtr,
        len: u64,
    },
    /// A free of `cuMemAlloc` memory on a stream.
    GiveBack {
        at: u64,
        bytes: u64,
    },
    /// A write of a word.
    WriteWord {
        at: u64,
        value: Value,
    },
    /// A wait for a word: later operations of the stream run only when the test is true.
    WaitWord {
        at: u64,
        test: Test,
        origin: Arc<Origin>,
    },
    Kernel(Box<Launch>),
    HostCall(HostCall),
    /// None: the user objects of a graph live until it runs.
    #[expect(dead_code, reason = "they are dropped with it")]
    Keep(References),
    /// The parts of one memset or copy.
    Several(Vec<Action>),
}

impl Action {
    /// Returns whether the host can learn of it without a driver call: a host function, or a write
    /// to host memory of at most the bytes of a word, which the host may poll.
    pub(crate) fn is_seen_by_host(&self) -> bool {
        let is_word = |at: u64, bytes: u64| (1..=8).contains(&bytes) && is_host_range(at, bytes);
        match self {
            Self::HostCall(_) => true,
            Self::Fill { at, len, .. } => is_word(*at, *len),
            Self::Copy { to, len, .. } => is_word(*to, *len),
            Self::WriteWord { at, value } => is_word(*at, value.bytes()),
            Self::Kernel(launch) => {
                let mut writes = launch.declared.writes.iter().chain(&launch.declared.atomics);
                writes.any(|range| is_word(range.start(), range.len()))
            }
            _ => false,
        }
    }
}

pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) args: KernelArgs,
    /// The declared footprint.
    pub(crate) declared: Footprint,
    /// The part of it that is inside of allocations that the device can access.
    pub(crate) reachable: Footprint,
    /// For a footprint that is recorded: the place of its checks in the log.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) origin: Arc<Origin>,
}
