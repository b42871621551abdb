//! W6: A writes X and then has 10 ms of unrelated work; B reads X. When does B finish?

use std::time::{Duration, Instant};

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, UseTrackingExt};
use dmr_streams::PatternOps;
use serde_json::json;

use super::{NONE, Plan};
use crate::line::hundredths;
use crate::percentiles::{Percentiles, median};
use crate::work::{self, Event, Memory};
use crate::{BenchError, Line, Machine, stacks};

const BYTES: usize = 1 << 20;
const UNRELATED: Duration = Duration::from_millis(10);
const TAG: AllocTag = AllocTag::new("bench");

/// Every resource, and `none`: events by hand on memory that stays.
///
/// # Errors
///
/// The first error of any resource.
pub(super) fn lines(machine: &Machine, plan: &Plan) -> Result<Vec<Line>, BenchError> {
    let names = std::iter::once(NONE).chain(plan.resources.iter().map(String::as_str));
    names.map(|name| line(machine, plan, name)).collect()
}

fn line(machine: &Machine, plan: &Plan, name: &str) -> Result<Line, BenchError> {
    let device = machine.device();
    let streams = machine.streams()?;
    let stack = match name {
        NONE => None,
        name => Some(stacks::make(name, &streams)?),
    };
    let a = streams.acquire()?;
    let b = streams.acquire()?;
    let unrelated = PatternOps::new(streams.clone())?;
    let written = Event::new(device)?;
    let read = Event::new(device)?;
    let fixed = Memory::new(device, BYTES)?;
    let target = Memory::new(device, BYTES)?;
    // The first delay compiles its kernel.
    unrelated.delay(a.id(), 1)?;
    let spin = UNRELATED.as_nanos() as u64;
    let write = |ptr| {
        // SAFETY: the memory is freed after both streams have been waited for.
        unsafe { work::fill(device, ptr, 0x5A, BYTES, &a) }
    };
    let copy = |ptr| {
        // SAFETY: as above.
        unsafe { work::copy(device, target.ptr(), ptr, BYTES, &b) }
    };
    let mut of_b = Vec::new();
    let mut of_a = Vec::new();
    // The first round is not counted.
    for round in 0..=plan.rounds {
        let resource: Option<&dyn DeviceMemoryResource> = stack.as_ref().map(|it| &*it.resource);
        let block = resource.map(|it| it.allocate(BYTES, a.id(), TAG)).transpose()?;
        let ptr = block.as_ref().map_or(fixed.ptr(), |block| block.ptr());
        device.synchronize()?;
        let start = Instant::now();
        match (resource, &block) {
            (Some(resource), Some(block)) if resource.supports_block_use_tracking() => {
                let uses = |access| [BlockUse::new(block.id(), access)];
                let tokens = resource.prepare_uses(&uses(Access::Write), a.id())?;
                write(ptr)?;
                resource.finish_uses(tokens)?;
                unrelated.delay(a.id(), spin)?;
                let tokens = resource.prepare_uses(&uses(Access::Read), b.id())?;
                copy(ptr)?;
                resource.finish_uses(tokens)?;
            }
            _ => {
                write(ptr)?;
                written.record(a.stream())?;
                unrelated.delay(a.id(), spin)?;
                written.hold(b.stream())?;
                copy(ptr)?;
            }
        }
        read.record(b.stream())?;
        read.synchronize()?;
        let b_took = start.elapsed();
        streams.synchronize(a.id())?;
        let a_took = start.elapsed();
        if let (Some(resource), Some(block)) = (resource, block) {
            resource.deallocate(block)?;
            resource.reap_pending()?;
        }
        if round > 0 {
            of_b.push(b_took);
            of_a.push(a_took);
        }
    }
    let bad = target.read()?.iter().filter(|&&byte| byte != 0x5A).count();
    let nanoseconds =
        |all: &[Duration]| all.iter().map(|it| it.as_nanos() as f64).collect::<Vec<_>>();
    let b_ns = median(&nanoseconds(&of_b));
    let a_ns = median(&nanoseconds(&of_a));
    let mut samples: Vec<u32> = of_b.iter().map(|&it| super::pass::nanoseconds(it)).collect();
    let line = Line::new(name, "overlap", json!({ "size": BYTES, "unrelated_ns": spin }))
        .with("threads", 1)
        .with("streams", 2)
        .with("ops", of_b.len())
        .with("total_ns", of_b.iter().sum::<Duration>().as_nanos() as u64)
        .with("ns_per_op", hundredths(b_ns))
        .with("b_finished_ns", hundredths(b_ns))
        .with("a_finished_ns", hundredths(a_ns))
        .with_percentiles("", &Percentiles::of(&mut samples))
        .with("bad_bytes", bad)
        .with("simulated", machine.is_simulated());
    if bad > 0 {
        return Ok(line.with("error", format!("{bad} of {BYTES} bytes are wrong")));
    }
    Ok(line)
}
