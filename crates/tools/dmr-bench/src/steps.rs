//! Single operations in a loop: what `cargo xtask bench` times and counts instructions of.

use std::hint::black_box;
use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource, UseTokens,
    UseTrackingExt,
};
use dmr_launch::LaunchRecorder;
use dmr_streams::{DeviceContext, StreamLease, StreamPool};

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

/// Makes every operation on every stack.
///
/// # Errors
///
/// Errors of making the stacks.
pub fn all(machine: &Machine) -> Result<Vec<Step>, BenchError> {
    recipes().into_iter().filter_map(|(_, make)| make(machine).transpose()).collect()
}

/// Makes one operation and nothing else.
///
/// # Errors
///
/// No operation has this name; errors of making its stack.
pub fn named(machine: &Machine, name: &str) -> Result<Step, BenchError> {
    let recipe = recipes().into_iter().find(|(known, _)| known == name);
    let step = recipe.map_or(Ok(None), |(_, make)| make(machine))?;
    step.ok_or_else(|| BenchError(format!("no step {name}: `dmr-bench list` names them")))
}

/// Makes an operation; `None` where the stack does not support it.
type Make = Box<dyn Fn(&Machine) -> Result<Option<Step>, BenchError>>;

/// The name of each operation, and how to make it.
fn recipes() -> Vec<(String, Make)> {
    let mut recipes: Vec<(String, Make)> = vec![("resolve_stream".to_owned(), Box::new(resolve))];
    let mut add = |step: &str, stack: String, make: fn(&Machine, &str) -> _| {
        let name = format!("{step}/{stack}");
        recipes.push((name, Box::new(move |machine| make(machine, &stack))));
    };
    for stack in stacks::names() {
        add("allocate_free", stack.to_owned(), allocate_free);
        add("allocate_free_lent", stack.to_owned(), allocate_free_lent);
        add("prepare_finish_1", stack.to_owned(), prepare_finish::<1>);
        add("prepare_finish_8", stack.to_owned(), prepare_finish::<8>);
        add("prepare_finish_parts_24", stack.to_owned(), prepare_finish_parts::<24>);
        add("launch_2", stack.to_owned(), launch);
        add("cross_stream", stack.to_owned(), cross_stream);
    }
    for stack in stacks::layered().filter(|name| stacks::parts(name).0 == BARE) {
        add("allocate_free", stack, allocate_free);
    }
    recipes
}

impl Step {
    /// Makes the operation once.
    ///
    /// Never inlined: `cargo xtask bench` counts the instructions that are executed below this
    /// function.
    ///
    /// # Errors
    ///
    /// The resource's.
    #[inline(never)]
    pub fn once(&mut self) -> Result<(), BenchError> {
        (self.repeat)()
    }
}

/// Resolves a stream id to its stream.
fn resolve(machine: &Machine) -> Result<Option<Step>, BenchError> {
    let streams = machine.streams()?;
    let lease = streams.acquire()?;
    let repeat = Box::new(move || {
        black_box(streams.resolve(black_box(lease.id()))?);
        Ok(())
    });
    Ok(Some(Step { name: "resolve_stream".to_owned(), leaves_rows: false, repeat }))
}

/// Allocates a block and frees it.
fn allocate_free(machine: &Machine, name: &str) -> Result<Option<Step>, BenchError> {
    let streams = machine.streams()?;
    let stack = stacks::make(name, &streams)?;
    let leaves_rows = stack.log.is_some();
    let lease = streams.acquire()?;
    let repeat = Box::new(move || {
        let block = stack.resource.allocate(BYTES, lease.id(), TAG)?;
        stack.resource.deallocate(black_box(block))?;
        Ok(())
    });
    Ok(Some(Step { name: format!("allocate_free/{name}"), leaves_rows, repeat }))
}

/// Allocates a block and frees it, on a stream that the program has in its hands.
fn allocate_free_lent(machine: &Machine, name: &str) -> Result<Option<Step>, BenchError> {
    let streams = machine.streams()?;
    let stack = stacks::make(name, &streams)?;
    let leaves_rows = stack.log.is_some();
    let lease = streams.acquire()?;
    drop(Arc::clone(lease.stream()));
    let repeat = Box::new(move || {
        let block = stack.resource.allocate(BYTES, lease.id(), TAG)?;
        stack.resource.deallocate(black_box(block))?;
        Ok(())
    });
    Ok(Some(Step { name: format!("allocate_free_lent/{name}"), leaves_rows, repeat }))
}

/// Prepares and finishes writes to `BLOCKS` blocks on their home stream, one of two; `None` where
/// uses are not tracked.
fn prepare_finish<const BLOCKS: usize>(
    machine: &Machine,
    name: &str,
) -> Result<Option<Step>, BenchError> {
    let Some(Tracking { resource, streams }) = Tracking::new(machine, name)? else {
        return Ok(None);
    };
    let lease = streams.acquire()?;
    let second = streams.acquire()?;
    let blocks = Blocks::new(resource, &lease, BLOCKS)?;
    let uses: Vec<_> =
        blocks.held.iter().map(|block| BlockUse::new(block.id(), Access::Write)).collect();
    let repeat = Box::new(move || {
        // With one stream no event would be recorded.
        let _ = &second;
        let mut tokens = UseTokens::new(lease.id());
        if let Some(tracking) = blocks.resource.use_tracking() {
            tracking.prepare(black_box(&uses), &mut tokens)?;
            tracking.finish(&mut tokens)?;
        }
        Ok(())
    });
    Ok(Some(Step { name: format!("prepare_finish_{BLOCKS}/{name}"), leaves_rows: false, repeat }))
}

/// Prepares and finishes reads and writes of `PARTS` parts of one block on its home stream, as a
/// step over a paged cache does; `None` where uses are not tracked.
fn prepare_finish_parts<const PARTS: usize>(
    machine: &Machine,
    name: &str,
) -> Result<Option<Step>, BenchError> {
    let Some(Tracking { resource, streams }) = Tracking::new(machine, name)? else {
        return Ok(None);
    };
    let lease = streams.acquire()?;
    let second = streams.acquire()?;
    let blocks = Blocks::new(resource, &lease, 1)?;
    let block = blocks.held[0].id();
    let bytes = BYTES / PARTS;
    let part = |at| {
        let access = if at % 8 == 0 { Access::ReadWrite } else { Access::Read };
        let range = ByteRange::new(block.ptr() + (at * bytes) as u64, bytes);
        BlockUse::of_bytes(block, access, range)
    };
    let uses: Vec<_> = (0..PARTS).map(part).collect();
    let repeat = Box::new(move || {
        // With one stream no event would be recorded.
        let _ = &second;
        let mut tokens = UseTokens::new(lease.id());
        if let Some(tracking) = blocks.resource.use_tracking() {
            tracking.prepare(black_box(&uses), &mut tokens)?;
            tracking.finish(&mut tokens)?;
        }
        Ok(())
    });
    let name = format!("prepare_finish_parts_{PARTS}/{name}");
    Ok(Some(Step { name, leaves_rows: false, repeat }))
}

/// Records a launch that reads one block and writes another, all on one stream, and enqueues
/// nothing; `None` where uses are not tracked.
fn launch(machine: &Machine, name: &str) -> Result<Option<Step>, BenchError> {
    let Some(tracking) = Tracking::new(machine, name)? else {
        return Ok(None);
    };
    let lease = tracking.streams.acquire()?;
    let second = tracking.streams.acquire()?;
    let block = || Blocks::new(Arc::clone(&tracking.resource), &lease, 1);
    let from = block()?;
    let mut to = block()?;
    let repeat = Box::new(move || {
        // With one stream no event would be recorded.
        let _ = &second;
        let mut launch = LaunchRecorder::new_strict(lease.id());
        black_box((launch.read(&from.held[0]), launch.write(&mut to.held[0])));
        launch.launch(&tracking, |_| Ok::<_, BenchError>(())).map_err(BenchError::new)
    });
    Ok(Some(Step { name: format!("launch_2/{name}"), leaves_rows: false, repeat }))
}

/// Allocates a block, writes it on its home stream, reads it on another and frees it: the
/// resource's part of w5; `None` where uses are not tracked.
fn cross_stream(machine: &Machine, name: &str) -> Result<Option<Step>, BenchError> {
    let Some(Tracking { resource, streams }) = Tracking::new(machine, name)? else {
        return Ok(None);
    };
    let home = streams.acquire()?;
    let other = streams.acquire()?;
    let repeat = Box::new(move || {
        let block = resource.allocate(BYTES, home.id(), TAG)?;
        for (access, stream) in [(Access::Write, home.id()), (Access::Read, other.id())] {
            let uses = [BlockUse::new(block.id(), access)];
            let mut tokens = UseTokens::new(stream);
            if let Some(tracking) = resource.use_tracking() {
                tracking.prepare(black_box(&uses), &mut tokens)?;
                tracking.finish(&mut tokens)?;
            }
        }
        resource.deallocate(black_box(block))?;
        Ok(())
    });
    Ok(Some(Step { name: format!("cross_stream/{name}"), repeat, leaves_rows: false }))
}

/// A resource that tracks uses, and its streams.
struct Tracking {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl Tracking {
    /// Makes a stack; `None` where it does not track uses.
    fn new(machine: &Machine, name: &str) -> Result<Option<Self>, BenchError> {
        let streams = machine.streams()?;
        let resource = stacks::make(name, &streams)?.resource;
        Ok(resource.supports_block_use_tracking().then_some(Self { resource, streams }))
    }
}

impl DeviceContext for Tracking {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// Blocks that are freed on drop.
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
            // The resource reports a failure.
            let _ = self.resource.deallocate(block);
        }
    }
}
