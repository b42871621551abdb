//! A kernel that runs without the lock, so that other threads can make calls that do not need its
//! memory.
//!
//! The kernel takes the memory out of the machine and puts it back at its end. Meanwhile a call
//! either needs no memory and no check (`runs_beside_kernels`), or waits.

use smallvec::SmallVec;

use crate::abi::Code;
use crate::access::{AddressRange, Epoch};
use crate::check::{Report, ReportKind};
use crate::host::callback;
use crate::kernel::{KernelMemory, Recording};
use crate::machine::{Launch, Machine};
use crate::memory::{Memory, MemoryState, Reach};

/// A launch that runs, with the parts of the machine that it uses.
pub(crate) struct RunningKernel {
    epoch: Epoch,
    /// The time at which it starts.
    start: u64,
    launch: Box<Launch>,
    device: usize,
    /// The devices whose memory it may access.
    peers: SmallVec<[usize; 2]>,
    memory: MemoryState,
}

/// The accesses of a kernel that has run.
pub(crate) struct Accesses {
    /// Accesses outside of the declared footprint.
    outside: Vec<AddressRange>,
    recording: Recording,
    /// The sticky error if the device faults.
    fault: Option<Code>,
    panicked: bool,
}

impl RunningKernel {
    /// Runs the kernel.
    pub(crate) fn run(&mut self) -> Accesses {
        let launch = &self.launch;
        let MemoryState { store, present, late_frees } = &mut self.memory;
        let memory = Memory { store, mappings: &present.mappings };
        let by = Reach { device: self.device, peers: Some(&self.peers) };
        let mut memory = match launch.ticket {
            Some(_) => KernelMemory::recorded(memory, present, late_frees, by),
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
        self.scheduler.runs_kernel = true;
        let stream = &self.streams[epoch.stream as usize];
        Box::new(RunningKernel {
            epoch,
            start,
            launch,
            device: stream.device,
            peers: self.contexts[stream.context as usize].reaches.clone(),
            memory: std::mem::take(&mut self.memory),
        })
    }

    /// Ends a kernel. If its footprint was recorded, the checks that have waited for it run.
    pub(crate) fn kernel_done(&mut self, kernel: RunningKernel, accesses: Accesses) {
        let RunningKernel { epoch, start, launch, device, memory, .. } = kernel;
        self.memory = memory;
        self.scheduler.runs_kernel = false;
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
                let site = launch.origin.site(Some(epoch));
                for bytes in accesses.outside {
                    let found = Report::new(ReportKind::OutsideFootprint, site.clone());
                    self.report(found.about(self.memory.present.device_at(bytes.start()), bytes));
                }
                if accesses.panicked {
                    self.report(Report::new(ReportKind::KernelPanicked, site));
                }
            }
        }
        self.streams[epoch.stream as usize].executed = epoch.seq;
        self.record_end(epoch, start, nanoseconds);
    }
}
