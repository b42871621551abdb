//! A kernel that runs without the lock, so that other threads can make calls that do not need its
//! memory.

use smallvec::SmallVec;

use crate::abi::Code;
use crate::access::clock::Epoch;
use crate::access::recording::Recording;
use crate::check::report::{Report, ReportKind};
use crate::host::callback;
use crate::kernel::body::KernelMemory;
use crate::machine::checks::CheckLog;
use crate::machine::operation::Launch;
use crate::machine::state::Machine;
use crate::memory::bytes::Memory;
use crate::memory::mapping::Reach;
use crate::memory::memory_map::MemoryMap;
use crate::memory::store::Store;

/// A launch that runs, with the parts of the machine that it uses.
pub(crate) struct RunningKernel {
    epoch: Epoch,
    /// The time at which it starts.
    start: u64,
    launch: Box<Launch>,
    device: usize,
    /// The devices whose memory it may access.
    peers: SmallVec<[usize; 2]>,
    store: Store,
    present: MemoryMap,
    log: CheckLog,
}

/// The accesses of a kernel that has run.
pub(crate) struct Accesses {
    /// Accesses outside of the declared footprint: addresses and bytes.
    outside: Vec<(u64, u64)>,
    recording: Recording,
    /// The sticky error if the device faults.
    fault: Option<Code>,
    panicked: bool,
}

impl RunningKernel {
    /// Runs the kernel.
    pub(crate) fn run(&mut self) -> Accesses {
        let Self { launch, present, log, .. } = self;
        let memory = Memory { store: &mut self.store, mappings: &present.mappings };
        let by = Reach { device: self.device, peers: Some(&self.peers) };
        let mut memory = match launch.ticket {
            Some(_) => KernelMemory::recorded(memory, present, log, by),
            None => KernelMemory::declared(memory, &launch.declared, &launch.reachable),
        };
        let body = &launch.kernel.body;
        let panicked = callback::run(|| body(&launch.args, &mut memory)).is_err();
        let (outside, recording, fault) = memory.into_accesses();
        Accesses { outside, recording, fault, panicked }
    }
}

impl Machine {
    /// Gives a kernel the memory, until [`kernel_done`](Self::kernel_done).
    pub(crate) fn kernel_begins(
        &mut self,
        epoch: Epoch,
        start: u64,
        launch: Box<Launch>,
    ) -> Box<RunningKernel> {
        self.runs_kernel = true;
        let stream = &self.streams[epoch.stream as usize];
        Box::new(RunningKernel {
            epoch,
            start,
            launch,
            device: stream.device,
            peers: self.contexts[stream.context as usize].reaches.clone(),
            store: std::mem::take(&mut self.store),
            present: std::mem::take(&mut self.present),
            log: std::mem::take(&mut self.log),
        })
    }

    /// Ends a kernel. If its footprint was recorded, the checks that have waited for it run.
    pub(crate) fn kernel_done(&mut self, kernel: Box<RunningKernel>, accesses: Accesses) {
        let RunningKernel { epoch, start, launch, device, store, present, log, .. } = *kernel;
        self.store = store;
        self.present = present;
        self.log = log;
        self.runs_kernel = false;
        if let Some(code) = accesses.fault {
            self.devices[device].lose(code, epoch);
        }
        let mut nanoseconds = launch.declared.nanoseconds.unwrap_or(5_000);
        match launch.ticket {
            Some(ticket) => {
                nanoseconds += accesses.recording.nanoseconds;
                let recording = Recording { panicked: accesses.panicked, ..accesses.recording };
                self.launch_recorded(ticket, recording);
            }
            None => {
                let mut report = |kind, address, bytes| {
                    let device = self.present.device_at(address);
                    let found = Report::new(kind, launch.origin.site(Some(epoch)));
                    self.report(found.about(device, address, bytes));
                };
                for (address, bytes) in accesses.outside {
                    report(ReportKind::OutsideFootprint, address, bytes);
                }
                if accesses.panicked {
                    report(ReportKind::KernelPanicked, 0, 0);
                }
            }
        }
        self.streams[epoch.stream as usize].executed = epoch.seq;
        self.note_end(epoch, start, nanoseconds);
    }
}
