//! The driver calls that steps make: by name, so that each of them is held and failed about equally
//! often.

use crate::program::Step;
use crate::random::Random;
use crate::stack::Stack;

/// A driver call, and its weight. Calls that a step makes rarely are drawn more often.
type Weighted = (&'static str, u64);

const FIRST: &[Weighted] = &[("cuStreamIsCapturing", 1), ("cuCtxGetCurrent", 1)];
const USE: &[Weighted] = &[
    ("cuStreamIsCapturing", 1),
    ("cuCtxGetCurrent", 1),
    ("cuEventCreate", 6),
    ("cuEventRecord", 2),
    ("cuStreamWaitEvent", 4),
];
const CLOSE: &[Weighted] = &[("cuEventCreate", 6), ("cuEventRecord", 2)];
const EVENTS: &[Weighted] = &[
    ("cuEventCreate", 2),
    ("cuEventQuery", 4),
    ("cuEventRecord", 2),
    ("cuEventSynchronize", 4),
    ("cuStreamWaitEvent", 2),
];
const DIRECT: &[Weighted] = &[("cuMemAlloc_v2", 4), ("cuMemFree_v2", 6), ("cuMemGetInfo_v2", 3)];
const ASYNC: &[Weighted] = &[
    ("cuMemAllocFromPoolAsync", 4),
    ("cuMemFreeAsync", 6),
    ("cuMemPoolGetAttribute", 3),
    ("cuMemPoolTrimTo", 3),
];
const PAGES: &[Weighted] = &[
    ("cuMemAddressReserve", 4),
    ("cuMemCreate", 6),
    ("cuMemMap", 8),
    ("cuMemSetAccess", 8),
    ("cuMemUnmap", 12),
    ("cuMemRelease", 4),
];
const KERNELS: &[Weighted] = &[
    ("cuLaunchKernel", 2),
    ("cuMemsetD32Async", 2),
    ("cuMemcpyDtoHAsync_v2", 1),
    ("cuStreamSynchronize", 2),
];
const COPIES: &[Weighted] =
    &[("cuMemcpyDtoHAsync_v2", 6), ("cuMemcpyHtoDAsync_v2", 6), ("cuMemsetD32Async", 2)];
const PINNED: &[Weighted] = &[("cuMemHostAlloc", 6), ("cuMemFreeHost", 2)];
const STREAMS: &[Weighted] = &[("cuStreamCreateWithPriority", 2), ("cuStreamGetCtx", 1)];
const ALL: [&[Weighted]; 11] =
    [FIRST, USE, CLOSE, EVENTS, DIRECT, ASYNC, PAGES, KERNELS, COPIES, PINNED, STREAMS];

/// Returns the name, if it is a driver call that can be held or failed.
#[must_use]
pub fn find(name: &str) -> Option<&'static str> {
    ALL.into_iter().flatten().map(|(call, _)| *call).find(|call| *call == name)
}

/// Draws a driver call that this step can make on this stack; `None` for a step that makes none.
pub(crate) fn draw(random: &mut Random, stack: Stack, step: &Step) -> Option<&'static str> {
    let groups = groups(stack, step);
    let calls = || groups.iter().copied().flatten();
    let all = calls().map(|(_, weight)| weight).sum();
    if all == 0 {
        return None;
    }
    let mut drawn = random.below(all);
    for (call, weight) in calls() {
        match drawn.checked_sub(*weight) {
            Some(rest) => drawn = rest,
            None => return Some(call),
        }
    }
    None
}

/// Returns whether a step of this kind seldom makes the calls that are drawn for it.
pub(crate) fn are_rare(step: &Step) -> bool {
    matches!(
        step,
        Step::Allocate { .. }
            | Step::Grow { .. }
            | Step::Reap
            | Step::ReapPending
            | Step::Trim { .. }
    )
}

/// Draws a driver call by which the stack reserves or returns memory. Also returns whether it
/// returns memory.
pub(crate) fn draw_memory(random: &mut Random, stack: Stack) -> (&'static str, bool) {
    const FREEING: [&str; 5] =
        ["cuMemUnmap", "cuMemRelease", "cuMemFree_v2", "cuMemFreeAsync", "cuMemPoolTrimTo"];
    let (call, _) = random.pick(memory(stack));
    (call, FREEING.contains(&call))
}

fn memory(stack: Stack) -> &'static [Weighted] {
    match stack {
        Stack::DirectTracked | Stack::PoolDirect | Stack::CallbackPool => DIRECT,
        Stack::Async | Stack::PoolAsync | Stack::GuardAsync => ASYNC,
        _ => PAGES,
    }
}

fn groups(stack: Stack, step: &Step) -> Vec<&'static [Weighted]> {
    let memory = memory(stack);
    let kernels: &[Weighted] = if stack == Stack::GuardAsync { KERNELS } else { &[] };
    match step {
        Step::Allocate { .. } => vec![FIRST, EVENTS, memory, memory, kernels],
        Step::Launch { .. } | Step::Copy { .. } | Step::Home { .. } | Step::Record { .. } => {
            vec![USE]
        }
        Step::Open { .. } | Step::OpenIdle { .. } => vec![USE],
        Step::Close { .. } | Step::Cancel { .. } => vec![FIRST, CLOSE],
        Step::Grow { .. } => vec![USE, memory],
        Step::Free { .. } | Step::FreePart { .. } => vec![USE, memory, kernels],
        Step::Reap | Step::ReapPending | Step::Trim { .. } => vec![EVENTS, memory, kernels],
        Step::Replace { .. } | Step::Adopt { .. } => vec![STREAMS],
        Step::Retire { .. } | Step::RetireAtOnce { .. } | Step::RetireWithin { .. } => {
            vec![FIRST, CLOSE]
        }
        Step::Pin { .. } => vec![FIRST, EVENTS, memory, PINNED],
        Step::FillCounterpart { .. } | Step::CopyToHost { .. } | Step::CopyToDevice { .. } => {
            vec![USE, COPIES]
        }
        Step::HostReads { .. } | Step::HostWrites { .. } => vec![EVENTS],
        Step::ReapPinned => vec![EVENTS, PINNED],
        Step::Narrow { .. }
        | Step::Synchronize { .. }
        | Step::Delay { .. }
        | Step::Capture { .. }
        | Step::EndCapture
        | Step::CaptureStream { .. }
        | Step::EndCaptureStream { .. }
        | Step::Unpin { .. }
        | Step::Fork => Vec::new(),
    }
}
