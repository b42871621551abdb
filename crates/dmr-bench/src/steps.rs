//! Single operations in a loop: what `cargo xtask bench` times and counts instructions of.

use std::hint::black_box;
use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource};
use dmr_streams::StreamLease;

use crate::stacks::{self, BARE};
use crate::{BenchError, Machine};

const TAG: AllocTag = AllocTag::new("bench");
const BYTES: usize = 4096;

/// One operation, ready to be repeated.
pub struct Step {
    /// `allocate_free/direct`, for example.
    pub name: String,
    /// Its log is behind after a few thousand repetitions: not for long loops.
    pub leaves_rows: bool,
    repeat: Box<dyn FnMut() -> Result<(), BenchError>>,
}

/// Every operation on every stack.
///
/// # Errors
///
/// What making the stacks fails with.
pub fn all(machine: &Machine) -> Result<Vec<Step>, BenchError> {
    let mut steps = vec![resolve(machine)?];
    for name in stacks::names() {
        steps.push(allocate_free(machine, name)?);
        for blocks in [1, 8] {
            steps.extend(prepare_finish(machine, name, blocks)?);
        }
        steps.extend(cross_stream(machine, name)?);
    }
    for name in stacks::layered().filter(|name| stacks::parts(name).0 == BARE) {
        steps.push(allocate_free(machine, &name)?);
    }
    Ok(steps)
}

impl Step {
    /// Once.
    ///
    /// # Errors
    ///
    /// The resource's.
    pub fn once(&mut self) -> Result<(), BenchError> {
        (self.repeat)()
    }
}

/// A stream id to its stream.
fn resolve(machine: &Machine) -> Result<Step, BenchError> {
    let streams = machine.streams()?;
    let lease = streams.acquire()?;
    let repeat = Box::new(move || {
        black_box(streams.resolve(black_box(lease.id()))?);
        Ok(())
    });
    Ok(Step { name: "resolve_stream".to_owned(), leaves_rows: false, repeat })
}

/// A block, and its free.
fn allocate_free(machine: &Machine, name: &str) -> Result<Step, BenchError> {
    let streams = machine.streams()?;
    let stack = stacks::make(name, &streams)?;
    let leaves_rows = stack.log.is_some();
    let lease = streams.acquire()?;
    let repeat = Box::new(move || {
        let block = stack.resource.allocate(BYTES, lease.id(), TAG)?;
        stack.resource.deallocate(black_box(block))?;
        Ok(())
    });
    Ok(Step { name: format!("allocate_free/{name}"), leaves_rows, repeat })
}

/// Writes to so many blocks on their home stream; `None` where uses are not tracked.
fn prepare_finish(
    machine: &Machine,
    name: &str,
    blocks: usize,
) -> Result<Option<Step>, BenchError> {
    let streams = machine.streams()?;
    let resource = stacks::make(name, &streams)?.resource;
    if !resource.supports_block_use_tracking() {
        return Ok(None);
    }
    let lease = streams.acquire()?;
    let blocks = Blocks::new(resource, &lease, blocks)?;
    let step = format!("prepare_finish_{}/{name}", blocks.held.len());
    let uses: Vec<_> =
        blocks.held.iter().map(|block| BlockUse::new(block.id(), Access::Write)).collect();
    let repeat = Box::new(move || {
        let tokens = blocks.resource.prepare_uses(black_box(&uses), lease.id())?;
        Ok(blocks.resource.finish_uses(tokens)?)
    });
    Ok(Some(Step { name: step, leaves_rows: false, repeat }))
}

/// A block written on its home stream, read on another and freed: the resource's part of w5;
/// `None` where uses are not tracked.
fn cross_stream(machine: &Machine, name: &str) -> Result<Option<Step>, BenchError> {
    let streams = machine.streams()?;
    let resource = stacks::make(name, &streams)?.resource;
    if !resource.supports_block_use_tracking() {
        return Ok(None);
    }
    let (home, other) = (streams.acquire()?, streams.acquire()?);
    let repeat = Box::new(move || {
        let block = resource.allocate(BYTES, home.id(), TAG)?;
        for (access, stream) in [(Access::Write, home.id()), (Access::Read, other.id())] {
            let uses = [BlockUse::new(block.id(), access)];
            resource.finish_uses(resource.prepare_uses(black_box(&uses), stream)?)?;
        }
        resource.deallocate(black_box(block))?;
        Ok(())
    });
    Ok(Some(Step { name: format!("cross_stream/{name}"), repeat, leaves_rows: false }))
}

/// Given back in the end.
struct Blocks {
    resource: Arc<dyn DeviceMemoryResource>,
    held: Vec<DeviceBlock>,
}

impl Blocks {
    fn new(
        resource: Arc<dyn DeviceMemoryResource>,
        lease: &StreamLease,
        count: usize,
    ) -> Result<Self, BenchError> {
        let allocate = |_| resource.allocate(BYTES, lease.id(), TAG);
        let held = (0..count).map(allocate).collect::<Result<_, _>>()?;
        Ok(Self { resource, held })
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.held.drain(..) {
            // What cannot be given back is the resource's to report.
            let _ = self.resource.deallocate(block);
        }
    }
}
