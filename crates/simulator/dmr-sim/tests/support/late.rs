//! Programs with a launch whose footprint is recorded, under every policy.

use cudarc::driver::sys::{CUfunction, CUstream};
use dmr_sim::{Footprint, KernelArgs, KernelMemory, Policy, Report, ReportKind, Universe};

use super::gpu::{self, Gpu, fill, malloc};

/// Each policy, the random one with some seeds.
pub(crate) fn schedules() -> impl Iterator<Item = (Policy, u64)> {
    let random = (0..20).map(|seed| (Policy::Random, seed));
    [(Policy::Eager, 0), (Policy::Lazy, 0)].into_iter().chain(random)
}

pub(crate) struct Machine {
    pub(crate) universe: Universe,
    pub(crate) gpu: Gpu,
    pub(crate) a: CUstream,
    pub(crate) b: CUstream,
    /// 64 bytes that are written and known to be so.
    pub(crate) block: u64,
    /// Reads 64 bytes at the first argument, and writes 64 bytes at the second; 0 for none.
    pub(crate) kernel: CUfunction,
}

pub(crate) fn read_and_write(args: &KernelArgs, memory: &mut KernelMemory<'_>) {
    let mut bytes = [0; 64];
    if args.u64(0) != 0 {
        memory.read(args.u64(0), &mut bytes);
    }
    if args.u64(1) != 0 {
        memory.write(args.u64(1), &bytes);
    }
}

pub(crate) fn machine((policy, seed): (Policy, u64)) -> Machine {
    let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
    let gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    gpu::sync_context().unwrap();
    let kernel = recorded(&universe, "read_and_write", read_and_write);
    Machine { universe, gpu, a, b, block, kernel }
}

/// Registers a kernel with two arguments, whose footprint is recorded.
pub(crate) fn recorded(
    universe: &Universe,
    name: &str,
    body: impl Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync + 'static,
) -> CUfunction {
    universe.register_kernel(name, |_| Footprint::recorded(), body);
    gpu::kernel(&gpu::ptx(name, &["u64"; 2]), name).unwrap()
}

/// Runs a program under every policy, and returns its findings, which are the same each time.
/// Without leaks.
pub(crate) fn findings(program: impl Fn(&Machine)) -> Vec<ReportKind> {
    let mut all: Vec<Vec<ReportKind>> = schedules()
        .map(|schedule| {
            let machine = machine(schedule);
            program(&machine);
            kinds(&machine)
        })
        .collect();
    all.dedup();
    assert_eq!(all.len(), 1, "differs by policy: {all:?}");
    all.remove(0)
}

pub(crate) fn reports(machine: &Machine) -> Vec<Report> {
    let mut reports = machine.universe.finish().reports;
    reports.retain(|report| report.kind != ReportKind::Leak);
    reports
}

pub(crate) fn kinds(machine: &Machine) -> Vec<ReportKind> {
    reports(machine).iter().map(|report| report.kind).collect()
}
