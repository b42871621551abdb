//! The state of one simulated machine: devices, contexts, streams, events, pools, modules.
//!
//! One lock guards all of it (see `shared.rs`). `engine.rs` submits and executes operations
//! (`operation.rs`), `checks.rs` checks them; `transfers.rs` has their effects on memory.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::thread::ThreadId;

use smallvec::SmallVec;

use crate::abi::attributes::device_attribute;
use crate::abi::*;
use crate::access::{Clock, Epoch, GraphNode, Origin, Site};
use crate::check::{CheckLog, Findings, Shadow};
use crate::host::{CallStack, label};
use crate::kernel::{Kernels, Refusal};
use crate::machine::{
    Config, Declarations, EndTimes, GraphUsage, Graphs, HostClock, Objects, Op, Scheduler,
};
use crate::memory::{AddressSpace, DriverPool, MemoryState, VirtualMemory};

pub(crate) struct Machine {
    /// Lives as long as the universe; the first field, so that it is dropped before all user
    /// objects.
    pub(crate) alive: Arc<()>,
    pub(crate) config: Config,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Vec<Context>,
    /// All streams; never shrinks, because an index is a stream's component in every clock.
    pub(crate) streams: Vec<Stream>,
    pub(super) numbers: StreamNumbers,
    pub(crate) events: HashMap<u32, Event>,
    pub(crate) next_event: u32,
    pub(crate) pools: Vec<DriverPool>,
    pub(crate) dead_pools: Vec<u32>,
    pub(crate) kernels: Kernels,
    pub(crate) objects: Objects,
    pub(crate) graphs: Graphs,
    /// The node of a graph whose work is being submitted, and the launch of the graph.
    pub(super) node: Option<(GraphNode, Epoch)>,
    pub(crate) captures: u32,
    pub(crate) memory: MemoryState,
    pub(super) virtual_memory: VirtualMemory,
    /// Pinned host memory that the simulator has allocated, by address.
    pub(super) pinned: HashMap<u64, HostAllocation>,
    pub(crate) checks: Checks,
    pub(crate) refusals: Vec<Refusal>,
    /// The declarations of launches that are in force.
    pub(crate) declarations: Declarations,
    pub(crate) host: HostClock,
    pub(super) random: fastrand::Rng,
    pub(super) scheduler: Scheduler,
    names: HashMap<&'static str, Arc<Origin>>,
}

/// The state of the checks.
#[derive(Default)]
pub(crate) struct Checks {
    pub(crate) shadow: Shadow,
    pub(crate) findings: Findings,
    pub(crate) log: CheckLog<Machine>,
}

/// The numbers of streams, which handles have, and indices that streams can get again.
#[derive(Default)]
pub(crate) struct StreamNumbers {
    pub(super) index_of: HashMap<u32, u32>,
    last: u32,
    /// The streams that were destroyed, and whose index no new one has taken.
    retired: Vec<u32>,
    /// The default streams of threads, by context.
    pub(super) per_thread: HashMap<(ThreadId, u32), u32>,
}

pub(crate) struct Device {
    pub(crate) addresses: AddressSpace,
    /// Bytes of the device that allocations and pools have reserved.
    pub(crate) used: u64,
    /// The pool that `cuMemAllocAsync` uses.
    pub(crate) current_pool: u32,
    /// The primary context, while it is active.
    pub(crate) primary: Option<u32>,
    /// The number of times that the program has retained the primary context, without those
    /// released.
    pub(crate) retained: u32,
    /// The part of `used` that graphs have.
    pub(crate) graphs: GraphUsage,
    /// The sticky error that every later call returns.
    pub(crate) lost: Option<Code>,
    /// The operation whose fault that was.
    pub(crate) lost_by: Option<Epoch>,
}

impl Device {
    /// Makes the device lost by the fault of an operation, unless it is lost.
    pub(crate) fn lose(&mut self, code: Code, by: Epoch) {
        if self.lost.is_none() {
            self.lost = Some(code);
            self.lost_by = Some(by);
        }
    }
}

pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) legacy: u32,
    pub(crate) destroyed: bool,
    /// Devices whose memory its kernels may access, its own among them.
    pub(crate) reaches: SmallVec<[usize; 2]>,
}

pub(crate) struct Stream {
    /// No stream has that of another, also after its end.
    pub(crate) number: u32,
    pub(crate) context: u32,
    pub(crate) device: usize,
    pub(crate) kind: StreamKind,
    pub(crate) priority: c_int,
    pub(crate) destroyed: bool,
    pub(crate) capture: Option<Capture>,
    /// Operations `executed + 1 ..= submitted`, in order.
    pub(crate) queue: VecDeque<Op>,
    pub(crate) submitted: u64,
    pub(crate) executed: u64,
    /// `true` while a host callback of this stream runs, on its own thread.
    pub(crate) calling_host: bool,
    /// The operations that come before the next one, all of this stream included.
    pub(crate) clock: Clock,
    pub(crate) ended: EndTimes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The null stream, which is ordered with every blocking stream of its context.
    Legacy,
    Blocking,
    NonBlocking,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    pub(crate) id: u32,
    pub(crate) mode: c_int,
    pub(crate) origin: bool,
    pub(crate) by: ThreadId,
    pub(crate) invalidated: bool,
}

pub(crate) struct Event {
    pub(crate) context: u32,
    pub(crate) timed: bool,
    pub(crate) recorded: Option<Recorded>,
    /// The capture in which it was last recorded.
    pub(crate) captured: Option<Capture>,
}

#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) epoch: Epoch,
    pub(crate) clock: Clock,
}

/// An allocation of `cuMemHostAlloc`.
#[derive(Clone, Copy)]
pub(crate) struct HostAllocation {
    pub(crate) bytes: usize,
    pub(crate) flags: u32,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        let device = |device| Device {
            addresses: AddressSpace::of_device(device),
            used: 0,
            current_pool: device as u32,
            primary: None,
            retained: 0,
            graphs: GraphUsage::default(),
            lost: None,
            lost_by: None,
        };
        let findings = Findings::without(config.ignored.clone());
        Self {
            alive: Arc::new(()),
            devices: (0..config.devices).map(device).collect(),
            contexts: Vec::new(),
            streams: Vec::new(),
            numbers: StreamNumbers::default(),
            events: HashMap::new(),
            next_event: 0,
            pools: (0..config.devices).map(|device| DriverPool::new(device, 0)).collect(),
            dead_pools: Vec::new(),
            kernels: Kernels::default(),
            objects: Objects::default(),
            graphs: Graphs::default(),
            node: None,
            captures: 0,
            memory: MemoryState::default(),
            virtual_memory: VirtualMemory::default(),
            pinned: HashMap::new(),
            checks: Checks { findings, ..Checks::default() },
            refusals: Vec::new(),
            declarations: Declarations::default(),
            host: HostClock::new(config.host_order),
            random: fastrand::Rng::with_seed(config.seed),
            scheduler: Scheduler::default(),
            names: HashMap::new(),
            config,
        }
    }

    pub(crate) fn count_call(&mut self) {
        self.scheduler.calls += 1;
    }

    /// Returns the value of a `CUdevice_attribute`.
    pub(crate) fn attribute(&self, attribute: c_int) -> Outcome<c_int> {
        let set = self.config.attributes.get(&attribute);
        set.map_or_else(|| device_attribute(attribute), |value| Ok(*value))
    }

    /// Returns an error unless the devices support these attributes.
    pub(crate) fn require(&self, attributes: &[c_int]) -> Outcome {
        let can = |&attribute: &c_int| self.attribute(attribute).is_ok_and(|value| value != 0);
        if attributes.iter().all(can) { Ok(()) } else { Err(ERROR_NOT_SUPPORTED) }
    }

    /// Returns whether `device` can access the memory of `peer`, another device.
    pub(crate) fn has_peer_path(&self, device: usize, peer: usize) -> bool {
        device != peer && self.config.peer_paths
    }

    /// Makes a context of `device`, with its legacy stream.
    pub(crate) fn new_context(&mut self, device: usize) -> u32 {
        let context = self.contexts.len() as u32;
        let legacy = self.new_stream(context, device, StreamKind::Legacy, 0);
        let reaches = SmallVec::from_slice(&[device]);
        self.contexts.push(Context { device, legacy, destroyed: false, reaches });
        context
    }

    pub(crate) fn new_stream(
        &mut self,
        context: u32,
        device: usize,
        kind: StreamKind,
        priority: c_int,
    ) -> u32 {
        self.numbers.last += 1;
        let mut stream = Stream {
            number: self.numbers.last,
            context,
            device,
            kind,
            priority,
            destroyed: false,
            capture: None,
            queue: VecDeque::new(),
            submitted: 0,
            executed: 0,
            calling_host: false,
            clock: Clock::default(),
            ended: EndTimes::default(),
        };
        let index = match self.take_retired(context) {
            Some(index) => {
                // Its operations are numbered on, because they are in the clocks and in the
                // history.
                let old = &mut self.streams[index as usize];
                stream.submitted = old.submitted;
                stream.executed = old.executed;
                std::mem::swap(&mut stream.ended, &mut old.ended);
                *old = stream;
                index
            }
            None => {
                self.streams.push(stream);
                self.streams.len() as u32 - 1
            }
        };
        self.numbers.index_of.insert(self.numbers.last, index);
        index
    }

    /// Ends a stream, whose pending work still executes.
    pub(crate) fn retire_stream(&mut self, index: u32) {
        let stream = &mut self.streams[index as usize];
        stream.destroyed = true;
        self.numbers.index_of.remove(&stream.number);
        self.objects.stream_attributes.retain(|&(of, _), _| of != index);
        self.numbers.retired.push(index);
    }

    /// Takes the index of a destroyed stream whose work the calling thread has found complete. What
    /// is submitted to a stream that this thread makes comes after that work in any case, so no
    /// race is missed.
    fn take_retired(&mut self, context: u32) -> Option<u32> {
        let is_free = |&index: &u32| {
            let stream = &self.streams[index as usize];
            stream.context == context
                && stream.capture.is_none()
                && stream.executed == stream.submitted
                && self.host_has_found(self.last(index))
        };
        let at = self.numbers.retired.iter().position(is_free)?;
        Some(self.numbers.retired.swap_remove(at))
    }

    pub(crate) fn event(&mut self, index: u32) -> Outcome<&mut Event> {
        self.events.get_mut(&index).ok_or(ERROR_INVALID_HANDLE)
    }

    pub(crate) fn pool(&mut self, index: u32) -> Outcome<&mut DriverPool> {
        if self.dead_pools.contains(&index) {
            return Err(ERROR_INVALID_VALUE);
        }
        self.pools.get_mut(index as usize).ok_or(ERROR_INVALID_VALUE)
    }

    /// Returns the description of the operation that this thread submits now.
    pub(crate) fn origin(&mut self, operation: &'static str) -> Arc<Origin> {
        let (label, stack) = self.place();
        let plain = self.names.entry(operation).or_insert_with(|| {
            let operation = operation.into();
            let label = None;
            let stack = None;
            let node = None;
            let declaration = None;
            Arc::new(Origin { operation, label, stack, node, declaration })
        });
        let node = self.node;
        if label.is_none() && stack.is_none() && node.is_none() {
            return plain.clone();
        }
        let operation = plain.operation.clone();
        let declaration = None;
        Arc::new(Origin { operation, label, stack, node, declaration })
    }

    /// Returns the description of a kernel launch that this thread submits now.
    pub(crate) fn kernel_origin(&self, name: &str) -> Arc<Origin> {
        let (label, stack) = self.place();
        let operation = format!("kernel {name}").into();
        Arc::new(Origin { operation, label, stack, node: self.node, declaration: None })
    }

    /// Returns the description of a call of this thread that names no stream.
    pub(crate) fn site(&mut self, operation: &'static str) -> Site {
        self.origin(operation).site(None)
    }

    fn place(&self) -> (Option<Arc<str>>, Option<Arc<CallStack>>) {
        (
            label::current(self.config.thread_names),
            CallStack::capture(self.config.frames).map(Arc::new),
        )
    }
}
