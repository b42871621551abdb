//! Programs whose streams are ordered by a word.
#![allow(unsafe_code)] // the driver is called directly

use cudarc::driver::sys::CUstream;
use dmr_sim::{Policy, ReportKind, Universe};

use super::gpu::{self, Gpu, copy, fill, kinds, malloc, sync};

pub(crate) fn with(policy: Policy, seed: u64) -> (Universe, Gpu) {
    let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// Each policy, the random one with some seeds.
pub(crate) fn schedules() -> impl Iterator<Item = (Policy, u64)> {
    [(Policy::Eager, 0), (Policy::Lazy, 0)]
        .into_iter()
        .chain((0..20).map(|seed| (Policy::Random, seed)))
}

/// A word of device memory that holds 0.
pub(crate) fn word() -> u64 {
    let at = malloc(8).unwrap();
    fill(at, 0, 8, gpu::LEGACY).unwrap();
    gpu::sync_context().unwrap();
    at
}

/// A program: a fill on one stream, a read on another, with a word in between as it says.
pub(crate) fn program(
    (policy, seed): (Policy, u64),
    between: impl FnOnce(CUstream, CUstream, u64),
) -> Vec<ReportKind> {
    let (universe, _gpu) = with(policy, seed);
    let a = gpu::stream();
    let b = gpu::stream();
    let data = malloc(64).unwrap();
    let target = malloc(64).unwrap();
    let word = word();
    fill(data, 7, 64, a).unwrap();
    between(a, b, word);
    copy(target, data, 64, b).unwrap();
    sync(b).unwrap();
    let found = kinds(&universe);
    if found.is_empty() {
        assert_eq!(gpu::read(target, 64).unwrap(), [7; 64], "{policy:?} {seed}");
    }
    let _ = universe.finish();
    found
}

pub(crate) const RACE: &[ReportKind] = &[ReportKind::ReadAfterWrite];
