//! Forks a process whose threads work on a stack, and makes every call in the child.

#![cfg(all(target_os = "linux", not(loom)))]
#![cfg(all(feature = "budget", feature = "direct", feature = "logging", feature = "pool"))]
#![allow(unsafe_code, reason = "forks")]
#![allow(clippy::print_stderr, reason = "the times of a long run")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use dmr::dmr_buffer::failures::take_drop_failures;
use dmr::dmr_buffer::pinned::{reap_pinned, try_reap_pinned};
use dmr::dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr::dmr_core::{
    Access, AllocTag, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError,
    ResourceResult, StreamId, StreamPoolId, Usage, UseTrackingExt, VirtualMemory,
};
use dmr_launch::{LaunchRecorder, PreparedLaunch};
use dmr_streams::{Completed, DeviceContext, DriverVersion, StreamLease, StreamPool};
use dmr_testkit::{Rig, block_on};

/// The number of forks of each stack, unless `DMR_FORKS` sets it.
const FORKS: usize = 40;
const THREADS: usize = 3;
/// A child that takes longer than this hangs.
const SECONDS: u32 = 20;
const TAG: AllocTag = AllocTag::new("forks");

/// A call beside those of the trait. In a child it must return `true`.
pub(crate) struct Ask {
    name: &'static str,
    call: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Ask {
    pub(crate) fn new(name: &'static str, call: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { name, call: Box::new(call) }
    }
}

/// The stack that the threads work on, and that the child has.
pub(crate) struct Stack {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
    asks: Vec<Ask>,
}

impl Stack {
    pub(crate) fn new(rig: &Rig, resource: Arc<dyn DeviceMemoryResource>, asks: Vec<Ask>) -> Self {
        Self { resource, streams: Arc::clone(rig.streams()), asks }
    }

    fn tracks(&self) -> bool {
        self.resource.supports_block_use_tracking()
    }
}

impl DeviceContext for Stack {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// Results that tell whether a call was refused because this is a forked child.
pub(crate) trait IsRefused {
    fn is_refused(&self) -> bool;
}

impl IsRefused for ResourceError {
    fn is_refused(&self) -> bool {
        matches!(self, Self::ForkedProcess { .. })
    }
}

impl IsRefused for Box<DeallocateError> {
    fn is_refused(&self) -> bool {
        self.error.is_refused()
    }
}

impl IsRefused for BufferError {
    fn is_refused(&self) -> bool {
        matches!(self, Self::Resource(error) if error.is_refused())
    }
}

impl IsRefused for dmr_launch::PrepareError {
    fn is_refused(&self) -> bool {
        matches!(self, Self::Resource { source, .. } if source.is_refused())
    }
}

pub(crate) fn refused<T, E: IsRefused>(result: Result<T, E>) -> bool {
    result.is_err_and(|error| error.is_refused())
}

/// The properties that were fixed when the stack was made, and the ids of its streams: readable in
/// a child too.
#[derive(Debug, PartialEq, Eq)]
struct Fixed {
    device: (usize, usize, String, u64, DriverVersion),
    pools: (StreamPoolId, StreamPoolId),
    can_track: bool,
    page_bytes: Option<u64>,
    alignment: usize,
    streams: (usize, usize),
    ids: [StreamId; 4],
}

impl Fixed {
    fn read(stack: &Stack, held: &Held) -> ResourceResult<Self> {
        let resource = &stack.resource;
        let streams = &stack.streams;
        let lease = &held.lease;
        let device = streams.device();
        let ordinals = (resource.device_ordinal(), device.ordinal());
        let name = device.name().to_owned();
        let version = device.driver_version();
        let default = streams.default_stream();
        assert!(streams.same_stream(default, StreamId::DEFAULT)?);
        Ok(Self {
            device: (ordinals.0, ordinals.1, name, device.total_memory(), version),
            pools: (resource.stream_pool(), streams.id()),
            can_track: resource.supports_block_use_tracking(),
            page_bytes: resource.virtual_memory().map(VirtualMemory::granularity),
            alignment: held.block.alignment(),
            streams: (streams.max_streams(), streams.max_slots()),
            ids: [
                default,
                lease.id(),
                streams.resolve_id(lease.id())?,
                streams.permanent(lease.id())?,
            ],
        })
    }
}

/// The values that the main thread holds at each fork.
struct Held {
    lease: StreamLease,
    block: DeviceBlock,
    buffer: DeviceBuffer<u32>,
    pinned: PinnedBuffer<u32>,
    /// With an open window, where uses are tracked.
    launch: Option<PreparedLaunch>,
    waiting: Completed,
}

/// Forks while threads allocate, use, free, reap, lease streams and ask.
pub(crate) fn fork_under_load(make: impl FnOnce(&Rig) -> Stack) {
    let rig = Rig::simulated();
    let stack = make(&rig);
    let held = hold(&stack);
    let fixed = Fixed::read(&stack, &held).unwrap();
    let forks = std::env::var("DMR_FORKS").map_or(FORKS, |forks| forks.parse().unwrap());
    let is_over = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        // Also if an assertion fails: the scope waits for the threads.
        let over = Over(&is_over);
        for thread in 0..THREADS {
            let stack = &stack;
            let is_over = &is_over;
            let rounds = &rounds;
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    work(stack, thread + rounds.fetch_add(1, Relaxed));
                }
            });
        }
        while rounds.load(Relaxed) < 2 * THREADS {
            std::thread::yield_now();
        }
        for nth in 0..forks {
            // SAFETY: the child makes calls on what it owns alone, and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork");
            if child == 0 {
                // SAFETY: the threads that borrow the stack are not in this process; it ends
                // before anything is dropped again.
                let (stack, held, rig) =
                    unsafe { (ptr::read(&stack), ptr::read(&held), ptr::read(&rig)) };
                be_the_child(stack, held, rig, &fixed);
            }
            let status = wait_for(child);
            let is_killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM;
            assert!(!is_killed, "fork {nth} of {:?}: the child hangs", stack.resource);
            assert_eq!(status, 0, "fork {nth} of {:?}: see above", stack.resource);
        }
        drop(over);
    });
    if forks > FORKS {
        let seconds = started.elapsed().as_secs_f64();
        let rounds = rounds.into_inner();
        eprintln!("{forks} forks in {seconds:.1} s, {rounds} rounds of work: {:?}", stack.resource);
    }
    // The parent is as it was.
    let Held { lease, block, buffer, pinned, launch, waiting } = held;
    block_on(waiting).unwrap();
    drop((launch, buffer, pinned));
    stack.resource.deallocate(block).unwrap();
    stack.resource.reap_pending().unwrap();
    reap_pinned(&stack).unwrap();
    assert_eq!(stack.resource.bytes_outstanding(), 0);
    drop((lease, stack));
    rig.assert_clean();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn hold(stack: &Stack) -> Held {
    let lease = stack.streams.acquire().unwrap();
    let block = stack.resource.allocate(1000, lease.id(), TAG).unwrap();
    let buffer = DeviceBuffer::zeroed(stack, &lease, 100).unwrap();
    let pinned = PinnedBuffer::zeroed(stack, &lease, 100).unwrap();
    let launch = stack.tracks().then(|| {
        let mut recorder = LaunchRecorder::new_strict(lease.id());
        recorder.read(&block);
        recorder.prepare(stack).unwrap()
    });
    let waiting = stack.streams.completed(&lease);
    Held { lease, block, buffer, pinned, launch, waiting }
}

/// One round of what a program does. What is refused for lack of memory or streams is left out.
fn work(stack: &Stack, round: usize) {
    let resource = &stack.resource;
    let streams = &stack.streams;
    let Ok(lease) = streams.acquire() else { return };
    let Ok(other) = streams.next() else { return };
    let sizes = [100, 5000, 70_000, 3 << 20];
    for bytes in [sizes[round % 4], sizes[(round + 1) % 4]] {
        let Ok(block) = resource.allocate(bytes, lease.id(), TAG) else { continue };
        let id = block.id();
        if stack.tracks() {
            let uses = [BlockUse::new(id, Access::Write)];
            let tokens = resource.prepare_uses(&uses, other);
            // Every third block is deallocated while a window is open.
            if round.is_multiple_of(3) {
                resource.deallocate(block).unwrap();
                let _ = tokens.map(|tokens| resource.finish_uses(tokens));
            } else {
                let _ = tokens.map(|tokens| resource.finish_uses(tokens));
                let _ = resource.record_block_use(&block, other);
                resource.deallocate(block).unwrap();
            }
        } else {
            resource.deallocate(block).unwrap();
        }
        let _ = (resource.is_retired(id), resource.usage(), resource.bytes_outstanding());
    }
    let _ = if round.is_multiple_of(5) { resource.reap_pending() } else { resource.try_reap() };
    if let Ok(buffer) = DeviceBuffer::<u32>::zeroed(stack, &lease, 50)
        && let Ok(pinned) = PinnedBuffer::<u32>::zeroed(stack, &lease, 50)
    {
        let _ = pinned.copy_to_device(&mut { buffer }, &lease);
    }
    let _ = try_reap_pinned(stack);
    let waited = streams.completed(other);
    if round.is_multiple_of(2) {
        let _ = block_on(waited);
    }
    if let Some(ask) = stack.asks.get(round % stack.asks.len().max(1)) {
        (ask.call)();
    }
    let _ = AllocTag::intern("forks: at work");
}

/// Makes every call, drops everything, and ends the process: with 0 if all was as it must be.
fn be_the_child(stack: Stack, held: Held, rig: Rig, fixed: &Fixed) -> ! {
    // SAFETY: ends this process if it hangs.
    unsafe { libc::alarm(SECONDS) };
    let wrong = catch_unwind(AssertUnwindSafe(|| {
        calls_of_a_child(stack, held, rig, fixed)
            .into_iter()
            .find(|(_, right)| !right)
            .map(|it| it.0)
    }));
    let code = match wrong {
        Ok(None) => 0,
        Ok(Some(name)) => {
            let text = format!("in a forked child: {name}\n");
            // SAFETY: writes bytes that are there. (Rust's own locks may be held.)
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            1
        }
        Err(_) => 2,
    };
    // SAFETY: ends the child, without the parent's handlers.
    unsafe { libc::_exit(code) }
}

/// The calls, and whether each did what it must.
fn calls_of_a_child(
    stack: Stack,
    held: Held,
    rig: Rig,
    fixed: &Fixed,
) -> Vec<(&'static str, bool)> {
    let mut calls = Vec::new();
    calls.push(("what is fixed", Fixed::read(&stack, &held).as_ref() == Ok(fixed)));
    let Held { lease, block, mut buffer, mut pinned, launch, mut waiting } = held;
    let resource = &stack.resource;
    let streams = &stack.streams;
    let stream = lease.id();
    let id = block.id();
    calls.push(("usage", resource.usage() == Usage::default()));
    calls.push(("bytes outstanding", resource.bytes_outstanding() == 0));
    calls.push(("is retired", !resource.is_retired(id)));
    calls.push(("debug", !format!("{resource:?} {streams:?}").is_empty()));
    for ask in &stack.asks {
        calls.push((ask.name, (ask.call)()));
    }
    calls.push(("allocate", refused(resource.allocate(100, stream, TAG))));
    calls.push(("allocate much", refused(resource.allocate(1 << 30, stream, TAG))));
    calls.push(("try_reap", refused(resource.try_reap())));
    calls.push(("reap_pending", refused(resource.reap_pending())));
    if stack.tracks() {
        let uses = [BlockUse::new(id, Access::Read)];
        calls.push(("prepare", refused(resource.prepare_uses(&uses, stream))));
        calls.push(("prepare one", refused(resource.prepare_block_use(id, stream, Access::Read))));
        calls.push(("record", refused(resource.record_block_use(&block, stream))));
    }
    calls.push(("acquire", refused(streams.acquire())));
    calls.push(("wait for a stream", refused(streams.acquire_timeout(std::time::Duration::MAX))));
    calls.push(("next", refused(streams.next())));
    calls.push(("synchronize", refused(streams.synchronize_until(std::time::Instant::now()))));
    calls.push(("synchronize", refused(streams.synchronize(stream))));
    calls.push(("adopt", refused(streams.adopt_legacy())));
    calls.push(("memory info", refused(rig.device().memory_info())));
    calls.push(("uuid", refused(rig.device().uuid())));
    calls.push(("buffer", refused(DeviceBuffer::<u32>::zeroed(&stack, stream, 10))));
    calls.push(("buffer to host", refused(buffer.to_host(stream))));
    calls.push(("pinned", refused(PinnedBuffer::<u32>::zeroed(&stack, stream, 10))));
    calls.push(("pinned slice", refused(pinned.as_slice())));
    calls.push(("pinned copy", refused(pinned.copy_to_device(&mut buffer, stream))));
    calls.push(("a wait of the parent", refused(block_on(&mut waiting))));
    calls.push(("completed", refused(block_on(streams.completed(stream)))));
    calls.push(("to host, awaited", refused(block_on(buffer.to_host_async(stream)))));
    calls.push(("reap pinned", refused(try_reap_pinned(&stack))));
    calls.push(("reap pinned and wait", refused(reap_pinned(&stack))));
    calls.push(("drop failures", take_drop_failures().is_empty()));
    let mut recorder = LaunchRecorder::new_permissive(stream);
    recorder.read(&block);
    if stack.tracks() {
        calls.push(("prepare", refused(recorder.prepare(&stack))));
    }
    calls.push(("intern", AllocTag::intern("forks: a child") == AllocTag::new("forks: a child")));
    calls.push(("deallocate", refused(resource.deallocate(block))));
    drop((launch, buffer, pinned, waiting, lease));
    drop((stack, rig));
    calls.push(("calls that reach the driver", dmr_sim::calls_of_forked_child() == 0));
    calls
}

fn wait_for(child: libc::pid_t) -> libc::c_int {
    let mut status = -1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}
