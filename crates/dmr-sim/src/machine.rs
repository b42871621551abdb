//! The state of one simulated machine: devices, contexts, streams, events, pools, modules.
//!
//! One lock guards all of it (see `session.rs`). How operations are submitted and run is in
//! `engine.rs`; what they do to memory, in `memory.rs`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread::ThreadId;

use smallvec::SmallVec;

use crate::abi::*;
use crate::address::AddressSpace;
use crate::clock::{Clock, Epoch};
use crate::driver_pool::DriverPool;
use crate::history::Origin;
use crate::kernel::{Footprint, Kernel, KernelArgs, Memory};
use crate::label::{self, CallStack};
use crate::ptx::Entry;
use crate::report::Site;
use crate::shadow::{Findings, Shadow};
use crate::store::Store;
use crate::universe::{HostOrder, Policy};
use crate::virtual_memory::VirtualMemory;
use crate::words::{Test, Value};

/// What a universe is built with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) devices: usize,
    pub(crate) capacity: u64,
    pub(crate) seed: u64,
    pub(crate) policy: Policy,
    pub(crate) host_order: HostOrder,
    pub(crate) call_sites: bool,
    /// What the devices answer instead of [`device_attribute`].
    pub(crate) attributes: BTreeMap<c_int, c_int>,
}

pub(crate) struct Machine {
    pub(crate) config: Config,
    pub(crate) random: fastrand::Rng,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Vec<Context>,
    /// Never shrinks: an index is a stream's component in every clock.
    pub(crate) streams: Vec<Stream>,
    pub(crate) per_thread: HashMap<(ThreadId, u32), u32>,
    pub(crate) events: HashMap<u32, Event>,
    pub(crate) next_event: u32,
    pub(crate) pools: Vec<DriverPool>,
    pub(crate) dead_pools: Vec<u32>,
    pub(crate) modules: HashMap<u32, Vec<Entry>>,
    /// Entries of modules that were asked for: module, and place in it.
    pub(crate) functions: Vec<(u32, usize)>,
    pub(crate) next_module: u32,
    pub(crate) captures: u32,
    pub(crate) kernels: HashMap<String, Kernel>,
    pub(crate) store: Store,
    pub(crate) shadow: Shadow,
    pub(crate) findings: Findings,
    pub(crate) virtual_memory: VirtualMemory,
    /// Pinned host memory that the simulator allocated: address to bytes.
    pub(crate) pinned: HashMap<u64, usize>,
    host: HostKnowledge,
    /// Operations submitted and not yet executed.
    pub(crate) queued: usize,
    pub(crate) host_calls_returned: u64,
    names: HashMap<&'static str, Arc<Origin>>,
}

pub(crate) struct Device {
    pub(crate) addresses: AddressSpace,
    /// Bytes taken from the device, by allocations and pools.
    pub(crate) used: u64,
    /// The pool that `cuMemAllocAsync` uses.
    pub(crate) current_pool: u32,
    pub(crate) primary: Option<u32>,
    /// The sticky error after which the device answers nothing else.
    pub(crate) lost: Option<Code>,
}

pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) retained: u32,
    pub(crate) legacy: u32,
    pub(crate) destroyed: bool,
    /// Devices whose memory its kernels may touch, its own among them.
    pub(crate) reaches: SmallVec<[usize; 2]>,
}

pub(crate) struct Stream {
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
    /// A host callback of this stream is running, on its own thread.
    pub(crate) calling_host: bool,
    /// What comes before the next operation, all operations so far included.
    pub(crate) clock: Clock,
    /// Virtual nanoseconds at which each executed operation ended.
    pub(crate) ended: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The null stream: ordered with every blocking stream of its context.
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
    /// Last recorded inside this capture.
    pub(crate) captured: Option<Capture>,
}

#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) epoch: Epoch,
    pub(crate) clock: Clock,
}

/// A submitted operation.
pub(crate) struct Op {
    /// What must have executed, besides what is before it on its stream.
    pub(crate) deps: SmallVec<[Epoch; 2]>,
    pub(crate) action: Action,
}

/// What an operation does when it executes.
pub(crate) enum Action {
    /// Nothing: it orders.
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
    /// Bytes that were taken from pageable host memory at the call.
    Write {
        to: u64,
        bytes: Box<[u8]>,
    },
    /// To pageable host memory, whose owner waits in the call.
    ReadOut {
        from: u64,
        to: HostPtr,
        len: u64,
    },
    /// Memory of `cuMemAlloc` that was freed on a stream.
    GiveBack {
        at: u64,
        bytes: u64,
    },
    /// To a word.
    WriteWord {
        at: u64,
        value: Value,
    },
    /// For a word: nothing behind it runs before the test holds.
    WaitWord {
        at: u64,
        test: Test,
        origin: Arc<Origin>,
    },
    Kernel(Box<Launch>),
    HostCall(HostCall),
}

pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) args: KernelArgs,
    /// What it says it touches.
    pub(crate) declared: Footprint,
    /// The part of it that is inside of allocations which the device can reach.
    pub(crate) reachable: Footprint,
    pub(crate) origin: Arc<Origin>,
}

/// A pointer into the calling program.
#[derive(Clone, Copy)]
pub(crate) struct HostPtr(pub(crate) *mut c_void);

// SAFETY: the pointer is only used while the program that passed it must keep it valid: until the
// call returns (pageable memory) or the operation has executed (callbacks), from any thread, as
// the driver's own threads do.
unsafe impl Send for HostPtr {}

#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: HostPtr,
}

impl HostCall {
    /// Calls the program's function.
    ///
    /// # Safety
    ///
    /// Once for each `cuLaunchHostFunc`, whose contract is that the function and its data are
    /// valid until then.
    pub(crate) unsafe fn run(self) {
        // SAFETY: by this function's contract.
        unsafe { (self.function)(self.data.0) };
    }
}

/// What host threads know to be complete.
struct HostKnowledge {
    order: HostOrder,
    shared: Clock,
    per_thread: HashMap<ThreadId, Clock>,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        let device = |device| Device {
            addresses: AddressSpace::of_device(device),
            used: 0,
            current_pool: device as u32,
            primary: None,
            lost: None,
        };
        let host = HostKnowledge {
            order: config.host_order,
            shared: Clock::default(),
            per_thread: HashMap::new(),
        };
        Self {
            random: fastrand::Rng::with_seed(config.seed),
            devices: (0..config.devices).map(device).collect(),
            contexts: Vec::new(),
            streams: Vec::new(),
            per_thread: HashMap::new(),
            events: HashMap::new(),
            next_event: 0,
            pools: (0..config.devices).map(|device| DriverPool::new(device, 0)).collect(),
            dead_pools: Vec::new(),
            modules: HashMap::new(),
            functions: Vec::new(),
            next_module: 0,
            captures: 0,
            kernels: crate::kernel::built_in(),
            store: Store::default(),
            shadow: Shadow::default(),
            findings: Findings::default(),
            virtual_memory: VirtualMemory::default(),
            pinned: HashMap::new(),
            host,
            queued: 0,
            host_calls_returned: 0,
            names: HashMap::new(),
            config,
        }
    }

    /// The memory as work sees it.
    pub(crate) fn memory(&mut self) -> Memory<'_> {
        Memory { store: &mut self.store, mappings: &self.shadow.mappings }
    }

    /// What the devices answer for a `CUdevice_attribute`.
    pub(crate) fn attribute(&self, attribute: c_int) -> Outcome<c_int> {
        let set = self.config.attributes.get(&attribute);
        set.map_or_else(|| device_attribute(attribute), |value| Ok(*value))
    }

    /// Refuses what these attributes say that the devices cannot do.
    pub(crate) fn require(&self, attributes: &[c_int]) -> Outcome {
        let can = |&attribute: &c_int| self.attribute(attribute).is_ok_and(|value| value != 0);
        if attributes.iter().all(can) { Ok(()) } else { Err(ERROR_NOT_SUPPORTED) }
    }

    /// A context of `device`, with its legacy stream.
    pub(crate) fn new_context(&mut self, device: usize) -> u32 {
        let context = self.contexts.len() as u32;
        let legacy = self.new_stream(context, device, StreamKind::Legacy, 0);
        let reaches = SmallVec::from_slice(&[device]);
        self.contexts.push(Context { device, retained: 1, legacy, destroyed: false, reaches });
        context
    }

    pub(crate) fn new_stream(
        &mut self,
        context: u32,
        device: usize,
        kind: StreamKind,
        priority: c_int,
    ) -> u32 {
        self.streams.push(Stream {
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
            ended: Vec::new(),
        });
        self.streams.len() as u32 - 1
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

    /// Describes the operation that this thread submits now.
    pub(crate) fn origin(&mut self, operation: &'static str) -> Arc<Origin> {
        let (label, stack) = self.place();
        let plain = self.names.entry(operation).or_insert_with(|| {
            Arc::new(Origin { operation: operation.into(), label: None, stack: None })
        });
        if label.is_none() && stack.is_none() {
            return plain.clone();
        }
        Arc::new(Origin { operation: plain.operation.clone(), label, stack })
    }

    /// Describes a kernel launch that this thread submits now.
    pub(crate) fn kernel_origin(&self, name: &str) -> Arc<Origin> {
        let (label, stack) = self.place();
        Arc::new(Origin { operation: format!("kernel {name}").into(), label, stack })
    }

    /// Describes a call of this thread that names no stream.
    pub(crate) fn site(&mut self, operation: &'static str) -> Site {
        self.origin(operation).site(None)
    }

    fn place(&self) -> (Option<Arc<str>>, Option<Arc<CallStack>>) {
        (label::current(), self.config.call_sites.then(|| Arc::new(CallStack::capture())))
    }

    /// What the calling host thread knows to be complete.
    pub(crate) fn host_clock(&self) -> Clock {
        self.host.clock().cloned().unwrap_or_default()
    }

    /// The calling host thread now knows all of `clock` to be complete.
    pub(crate) fn host_learns(&mut self, clock: &Clock) {
        let clock = self.shadow.words.up_to_date(clock);
        self.host.clock_mut().join(&clock);
    }

    /// All that comes after `epoch` comes after all of `gained`.
    pub(crate) fn join_behind(&mut self, epoch: Epoch, gained: &Clock) {
        let recorded = self.events.values_mut().filter_map(|event| event.recorded.as_mut());
        let streams = self.streams.iter_mut().map(|stream| &mut stream.clock);
        let host = std::iter::once(&mut self.host.shared).chain(self.host.per_thread.values_mut());
        for clock in streams.chain(recorded.map(|recorded| &mut recorded.clock)).chain(host) {
            if clock.covers(epoch) {
                clock.join(gained);
            }
        }
    }

    pub(crate) fn join_host_clock(&mut self, stream: u32) {
        if let Some(known) = self.host.clock() {
            self.streams[stream as usize].clock.join(known);
        }
    }
}

impl HostKnowledge {
    fn clock(&self) -> Option<&Clock> {
        match self.order {
            HostOrder::Linearised => Some(&self.shared),
            HostOrder::PerThread => self.per_thread.get(&std::thread::current().id()),
        }
    }

    fn clock_mut(&mut self) -> &mut Clock {
        match self.order {
            HostOrder::Linearised => &mut self.shared,
            HostOrder::PerThread => self.per_thread.entry(std::thread::current().id()).or_default(),
        }
    }
}
