//! Kernels as PTX: the programs of a module, and a launch of one of their kernels on the simulated
//! memory.

use std::io::Write;
use std::sync::Arc;

use dmr_ptx::{
    Access, AccessError, Checks, FaultKind, GlobalMemory, Launch, Limits, LoadError, Program,
    Qualifier,
};

use crate::abi::*;
use crate::access::KernelSite;
use crate::kernel::{Footprint, Kernel, KernelArgs, KernelMemory};

/// The program of a module, the addresses of its variables, and the settings of its launches.
pub(crate) struct Loaded {
    pub(crate) program: Arc<Program>,
    pub(crate) globals: Vec<u64>,
    pub(crate) checks: Checks,
    pub(crate) limits: Limits,
}

impl Loaded {
    /// Returns the kernel at this place of the program, or the reason why the interpreter cannot
    /// run it.
    pub(crate) fn kernel(self: &Arc<Self>, place: usize) -> Result<Kernel, LoadError> {
        if let Some(refusal) = self.program.kernels().get(place).and_then(|it| it.refusal.clone()) {
            return Err(refusal);
        }
        let loaded = Arc::clone(self);
        let body = move |args: &KernelArgs, memory: &mut KernelMemory<'_>| {
            memory.set_places(&loaded.program);
            loaded.run(place, args, memory);
        };
        Ok(Kernel { footprint: Arc::new(|_| Footprint::recorded()), body: Arc::new(body) })
    }

    fn run(&self, place: usize, args: &KernelArgs, memory: &mut KernelMemory<'_>) {
        let Some(kernel) = self.program.kernels().get(place) else { return };
        let mut params = vec![0; kernel.param_bytes];
        for (index, param) in kernel.params.iter().enumerate() {
            if let Some(into) = params.get_mut(param.offset..param.offset + param.bytes) {
                let bytes = args.bytes(index);
                let known = bytes.len().min(into.len());
                into[..known].copy_from_slice(&bytes[..known]);
            }
        }
        let mut launch = Launch::new(&self.program, kernel, args.grid(), args.block());
        launch.cluster = args.cluster().or(kernel.required_cluster).unwrap_or([1; 3]);
        launch.is_cooperative = args.is_cooperative();
        launch.shared_bytes = args.shared_bytes();
        launch.params = &params;
        launch.globals = &self.globals;
        launch.checks = self.checks;
        launch.limits = self.limits;
        let printed = match launch.run(&mut Global(memory)) {
            Ok(finished) => {
                memory.takes(finished.nanoseconds);
                finished.printed
            }
            Err(fault) => {
                for fault in std::iter::once(&fault).chain(&fault.end) {
                    let message = format!("{}: {fault}", kernel.name);
                    match code_of(&fault.kind) {
                        Some(code) => memory.fault_by(code, message),
                        None => memory.report_fault(message),
                    }
                }
                fault.printed
            }
        };
        // As the driver does; a program that has closed its output does not see it.
        let _ = std::io::stdout().write_all(&printed);
    }
}

/// Returns the sticky error of a fault that the hardware has as well; `None` for findings of the
/// interpreter.
fn code_of(fault: &FaultKind) -> Option<Code> {
    match fault {
        FaultKind::Race { .. }
        | FaultKind::Uninitialised { .. }
        | FaultKind::DivergentBarrier(_)
        | FaultKind::DivergentWarp(_) => None,
        FaultKind::Misaligned { .. } => Some(ERROR_MISALIGNED_ADDRESS),
        FaultKind::OutOfBounds { .. } | FaultKind::Memory { .. } => Some(ERROR_ILLEGAL_ADDRESS),
        // Beyond the local memory of a thread.
        FaultKind::StackOverflow(_) => Some(ERROR_ILLEGAL_ADDRESS),
        FaultKind::Assertion(_) => Some(ERROR_ASSERT),
        FaultKind::IllegalInstruction(_) => Some(ERROR_ILLEGAL_INSTRUCTION),
        FaultKind::NoProgress(_) | FaultKind::InstructionLimit(_) => Some(ERROR_LAUNCH_TIMEOUT),
        _ => Some(ERROR_LAUNCH_FAILED),
    }
}

/// The memory of a launch, as the interpreter sees it.
struct Global<'a, 'b>(&'a mut KernelMemory<'b>);

impl Global<'_, '_> {
    /// Makes an access: at once, or lane by lane if not all of its bytes are in one block. Accesses
    /// outside of live memory do nothing; they are findings of the launch.
    fn access(
        &mut self,
        access: &Access,
        mut part: impl FnMut(&mut KernelMemory<'_>, u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), AccessError> {
        let bytes = access.bytes as usize;
        let lane = access.lane_bytes as usize;
        let first = access.first_thread + access.lanes.trailing_zeros() % 32;
        let site = KernelSite::new(access.block, first, access.instruction);
        self.0.at_lanes(site, access.lane_bytes);
        if !part(self.0, access.address, 0..bytes) && lane > 0 && lane < bytes {
            for skipped in (0..bytes).step_by(lane) {
                let at = access.address.wrapping_add(skipped as u64);
                part(self.0, at, skipped..(skipped + lane).min(bytes));
            }
        }
        if !self.0.is_faulted() {
            return Ok(());
        }
        let message = format!("illegal access to memory at {:#x}", access.address);
        Err(AccessError::new(0, message))
    }
}

impl GlobalMemory for Global<'_, '_> {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        into.fill(0);
        let is_atomic = is_atomic(access);
        self.access(access, |memory, at, range| match is_atomic {
            true => memory.read_atomic(at, &mut into[range]),
            false => memory.try_read(at, &mut into[range]),
        })
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        let is_atomic = is_atomic(access);
        self.access(access, |memory, at, range| match is_atomic {
            true => memory.write_atomic(at, &bytes[range]),
            false => memory.try_write(at, &bytes[range]),
        })
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        self.access(access, |memory, at, range| memory.change(at, range.len(), change))
    }

    fn undefine(&mut self, access: &Access) {
        self.0.undefine(access.address, u64::from(access.bytes));
    }
}

fn is_atomic(access: &Access) -> bool {
    matches!(access.qualifier, Qualifier::Volatile | Qualifier::Atomic(_))
}
