//! A runtime with its blocks, by address, and the streams that the program has passed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dmr::dmr_arrow::{
    ArrowColumn, ArrowDeviceArray, ArrowSchema, ColumnBuffer, ColumnParts, ExportedColumn,
};
use dmr::dmr_buffer::DeviceBuffer;
use dmr::dmr_core::error::DeallocateError;
use dmr::dmr_core::{AllocTag, DeviceBlock, StreamId};
use dmr::dmr_launch::LaunchRecorder;
use dmr::dmr_streams::TrackedMemory;
use dmr::{DeviceRuntime, ShutdownError};

use crate::columns::Columns;
use crate::spill::{self, Spillables};
use crate::status::{Failure, Outcome, Status};
use crate::streams::{Handle, Streams};
use crate::tensors::Tensors;
use crate::{Address, AddressMap, ColumnHandle, SpillableHandle};

/// The time that a call waits for other threads: that record a use of the same block, or that
/// allocate while the runtime is closed.
const PATIENCE: Duration = Duration::from_secs(1);

/// A runtime.
pub(crate) struct Runtime {
    gpu: DeviceRuntime,
    streams: Streams,
    spillables: Spillables,
    columns: Columns,
    tensors: Tensors,
    /// The live blocks. A block is taken out before it is deallocated: as soon as it is, another
    /// thread may get its address. No entry is locked across a driver call.
    blocks: AddressMap<Address, Live>,
    /// Set while a thread closes the runtime: then nothing is allocated.
    is_closing: AtomicBool,
}

/// A live block.
pub(crate) struct Live {
    pub(crate) block: DeviceBlock,
    /// The stream that it was allocated on.
    pub(crate) stream: Handle,
}

/// The access of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UseOf {
    Read,
    Write,
    ReadAndWrite,
}

impl UseOf {
    /// Records in a launch that it uses the memory.
    pub(crate) fn record<M: TrackedMemory>(self, launch: &mut LaunchRecorder, memory: &mut M) {
        match self {
            Self::Read => launch.read(memory),
            Self::Write => launch.write(memory),
            Self::ReadAndWrite => launch.read_write(memory),
        };
    }
}

impl Runtime {
    pub(crate) fn new(gpu: DeviceRuntime) -> Self {
        Self {
            gpu,
            streams: Streams::default(),
            spillables: Spillables::default(),
            columns: Columns::default(),
            tensors: Tensors::default(),
            blocks: AddressMap::default(),
            is_closing: AtomicBool::new(false),
        }
    }

    pub(crate) fn gpu(&self) -> &DeviceRuntime {
        &self.gpu
    }

    /// Returns the live blocks.
    pub(crate) fn blocks(&self) -> &AddressMap<Address, Live> {
        &self.blocks
    }

    /// Allocates a block, and returns its address; 0 for zero bytes, which need no memory.
    pub(crate) fn allocate(&self, bytes: usize, stream: Handle, tag: AllocTag) -> Outcome<Address> {
        self.refuse_closing()?;
        let id = self.stream(stream)?;
        if bytes == 0 {
            return Ok(0);
        }
        let block = self
            .gpu
            .resource()
            .allocate(bytes, id, tag)
            .map_err(|error| Failure::from(error).about(stream))?;
        let address = block.ptr();
        let replaced = self.blocks.insert(address, Live { block, stream });
        debug_assert!(replaced.is_none(), "two live blocks have one address");
        Ok(address)
    }

    /// Allocates a buffer that may be spilled, and returns its handle.
    pub(crate) fn create_spillable(
        &self,
        bytes: usize,
        stream: Handle,
        tag: AllocTag,
    ) -> Outcome<*mut SpillableHandle> {
        self.refuse_closing()?;
        let id = self.stream(stream)?;
        let created = self.spillables.create(&self.gpu, bytes, id, tag);
        created.map_err(|error| error.about(stream))
    }

    /// Keeps a spillable buffer on the device, and returns its address.
    pub(crate) fn pin(&self, buffer: *const SpillableHandle, stream: Handle) -> Outcome<Address> {
        self.refuse_closing()?;
        let id = self.stream(stream)?;
        self.spillables.pin(buffer, id).map_err(|error| error.about(stream))
    }

    pub(crate) fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Returns the id of a stream, for a new tensor or a use of one.
    pub(crate) fn open_stream(&self, stream: Handle) -> Outcome<StreamId> {
        self.refuse_closing()?;
        self.stream(stream)
    }

    pub(crate) fn spillables(&self) -> &Spillables {
        &self.spillables
    }

    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Imports a column of another library.
    ///
    /// # Safety
    ///
    /// As [`Columns::import`].
    pub(crate) unsafe fn import_column(
        &self,
        array: *mut ArrowDeviceArray,
        schema: *mut ArrowSchema,
        stream: Handle,
    ) -> Outcome<*mut ColumnHandle> {
        self.refuse_closing()?;
        let id = self.stream(stream)?;
        // SAFETY: the caller's obligation.
        unsafe { self.columns.import(&self.gpu, id, array, schema) }
    }

    /// Exports a column.
    pub(crate) fn export_column(
        &self,
        column: *const ColumnHandle,
        stream: Handle,
    ) -> Outcome<ExportedColumn> {
        let id = self.stream(stream)?;
        self.columns.export(&self.gpu, column, id).map_err(|error| error.about(stream))
    }

    /// Makes a column of blocks, which are its own from then on; they stay live if that fails.
    pub(crate) fn create_column(
        &self,
        mut parts: ColumnParts,
        buffers: &[Address],
    ) -> Outcome<*mut ColumnHandle> {
        self.refuse_closing()?;
        let mut sizes = Vec::with_capacity(buffers.len());
        for (index, address) in buffers.iter().enumerate() {
            if *address != 0 && buffers[..index].contains(address) {
                return Err(unknown(*address));
            }
            sizes.push(match address {
                0 => None,
                _ => Some(self.blocks.get(address).ok_or_else(|| unknown(*address))?.block.bytes()),
            });
        }
        parts.check(&sizes)?;
        let mut taken = Vec::with_capacity(buffers.len());
        for address in buffers {
            taken.push(match address {
                0 => None,
                _ => {
                    let removed = self.blocks.remove(address).ok_or_else(|| unknown(*address))?;
                    Some(Taken { blocks: &self.blocks, live: Some(removed.1) })
                }
            });
        }
        // From here on nothing fails: the sizes are those that were checked.
        parts.buffers = taken.into_iter().map(|it| it?.into_buffer(&self.gpu)).collect();
        Ok(self.columns.add(ArrowColumn::new(parts)?))
    }

    /// Makes a stream wait for what reads of a column must come after, or records a read.
    pub(crate) fn read_column(
        &self,
        column: *const ColumnHandle,
        stream: Handle,
        records: bool,
    ) -> Outcome<()> {
        let id = self.stream(stream)?;
        self.columns.read(&self.gpu, column, id, records).map_err(|error| error.about(stream))
    }

    /// Frees a block, after the work that was submitted so far to the stream it was allocated on
    /// and to `last`.
    pub(crate) fn free(&self, address: Address, last: Option<Handle>) -> Outcome<()> {
        if address == 0 {
            return Ok(());
        }
        let last = last.map(|stream| self.stream(stream)).transpose()?;
        let (_, live) = self.blocks.remove(&address).ok_or_else(|| unknown(address))?;
        let mut taken = Taken { blocks: &self.blocks, live: Some(live) };
        if let Some(last) = last {
            taken.record_last_use(&self.gpu, last).map_err(|error| about(error, address))?;
        }
        taken.deallocate(&self.gpu).map_err(|error| about(error, address))
    }

    /// Records work that was submitted to a stream: later uses of the block, and its free, come
    /// after it.
    pub(crate) fn record(&self, address: Address, stream: Handle, access: UseOf) -> Outcome<()> {
        let launch = self.launch(address, stream, access)?;
        let prepared = launch.prepare(&self.gpu).map_err(|error| about(error, address))?;
        prepared.finish().map_err(|error| about(error, address))
    }

    /// Makes a stream wait for the recorded uses that work with this access must come after.
    pub(crate) fn wait(&self, address: Address, stream: Handle, access: UseOf) -> Outcome<()> {
        let launch = self.launch(address, stream, access)?;
        let prepared = launch.prepare(&self.gpu).map_err(|error| about(error, address))?;
        // The waits stay on the stream.
        prepared.cancel().map_err(|error| about(error, address))
    }

    /// Retires a stream.
    pub(crate) fn retire(&self, stream: Handle) -> Outcome<()> {
        self.streams.retire(self.gpu.streams(), stream)
    }

    /// Frees all blocks, waits for the work of all streams, returns the memory to the driver and
    /// retires the streams. After an error the runtime can be used, and closed again.
    pub(crate) fn close(&self) -> Outcome<()> {
        if self.is_closing.swap(true, Ordering::Relaxed) {
            return Err(closing());
        }
        let closed = self.close_alone();
        self.is_closing.store(closed.is_ok(), Ordering::Relaxed);
        closed
    }

    fn close_alone(&self) -> Outcome<()> {
        if self.gpu.device().is_lost() {
            // The memory is gone with the context, and no stream is touched any more.
            return self.free_all();
        }
        let start = Instant::now();
        loop {
            self.free_all()?;
            match self.gpu.shutdown() {
                // A call that began before has allocated, or is freeing, a block.
                Err(ShutdownError::InUse { .. }) if start.elapsed() < PATIENCE => {
                    std::thread::yield_now();
                }
                done => break done?,
            }
        }
        self.streams.retire_all(self.gpu.streams())
    }

    /// Frees all blocks. Returns the first error; the other blocks are freed all the same.
    fn free_all(&self) -> Outcome<()> {
        self.spillables.destroy_all();
        self.tensors.destroy_all();
        self.columns.destroy_all();
        let mut outcome = spill::free_again(&self.gpu);
        let addresses: Vec<Address> = self.blocks.iter().map(|live| *live.key()).collect();
        for address in addresses {
            match self.free(address, None) {
                // Another thread has freed it meanwhile.
                Err(failure) if failure.status == Status::UnknownAddress => {}
                freed => outcome = outcome.and(freed),
            }
        }
        outcome
    }

    fn stream(&self, stream: Handle) -> Outcome<StreamId> {
        self.streams.id(self.gpu.streams(), stream)
    }

    /// Returns the recorder of a launch that uses one block, or spillable buffer.
    fn launch(&self, address: Address, stream: Handle, access: UseOf) -> Outcome<LaunchRecorder> {
        let mut launch = recorder(self.stream(stream)?);
        if let Some(mut live) = self.blocks.get_mut(&address) {
            access.record(&mut launch, &mut live.block);
            return Ok(launch);
        }
        let is_known = self.spillables.record(&mut launch, address, access)
            || self.tensors.record(&mut launch, address, access);
        if is_known { Ok(launch) } else { Err(unknown(address)) }
    }

    fn refuse_closing(&self) -> Outcome<()> {
        if self.is_closing.load(Ordering::Relaxed) { Err(closing()) } else { Ok(()) }
    }
}

impl Drop for Runtime {
    /// Returns what calls of other threads have allocated while the runtime was closed.
    fn drop(&mut self) {
        let _ = self.free_all();
        let _ = self.gpu.shutdown();
    }
}

/// A block that was taken out of the map to be freed. Dropping this puts it back.
struct Taken<'r> {
    blocks: &'r AddressMap<Address, Live>,
    live: Option<Live>,
}

impl Taken<'_> {
    /// Records a use by the work that was submitted to a stream, unless the block is freed after
    /// that work as it is.
    fn record_last_use(&mut self, gpu: &DeviceRuntime, stream: StreamId) -> Outcome<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        let home = live.block.alloc_stream();
        // An error if the home stream was retired: then the stream is another one.
        if gpu.streams().same_stream(stream, home).unwrap_or(false) {
            return Ok(());
        }
        let mut launch = recorder(stream);
        launch.read_write(&mut live.block);
        Ok(launch.prepare(gpu)?.finish()?)
    }

    /// Makes a buffer of the block, which frees it.
    fn into_buffer(mut self, gpu: &DeviceRuntime) -> Option<ColumnBuffer> {
        let Live { block, .. } = self.live.take()?;
        Some(DeviceBuffer::from_block(gpu, block).into())
    }

    fn deallocate(mut self, gpu: &DeviceRuntime) -> Outcome<()> {
        let Some(Live { block, stream }) = self.live.take() else { return Ok(()) };
        let Err(failed) = gpu.resource().deallocate(block) else { return Ok(()) };
        let DeallocateError { error, block, .. } = *failed;
        self.live = Some(Live { block, stream });
        Err(error.into())
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.blocks.insert(live.block.ptr(), live);
        }
    }
}

/// Returns a recorder that waits for other threads that record a use of the same block.
pub(crate) fn recorder(stream: StreamId) -> LaunchRecorder {
    LaunchRecorder::new_strict(stream).with_timeout(PATIENCE)
}

fn closing() -> Failure {
    let text = "another thread is destroying this runtime: make no call of it meanwhile";
    Failure::new(Status::UnknownRuntime, text)
}

fn about(failure: impl Into<Failure>, address: Address) -> Failure {
    failure.into().about(format_args!("address {address:#x}"))
}

fn unknown(address: Address) -> Failure {
    let text = format!(
        "no live block of this runtime begins at {address:#x}: it was freed before, or is inside \
         of a block, or was not allocated from this runtime"
    );
    Failure::new(Status::UnknownAddress, text)
}

#[cfg(test)]
mod tests {
    use dmr::dmr_streams::Device;
    use dmr_sim::Universe;

    use super::*;

    /// A call of another thread may still have the runtime, whose streams the program destroys now.
    #[test]
    fn c5_a_closed_runtime_has_no_stream_of_the_program() {
        let universe = Universe::new().unwrap();
        let owner = Device::open(universe.ordinal(0)).unwrap();
        let stream = owner.context().new_stream().unwrap();
        let gpu = DeviceRuntime::builder(universe.ordinal(0)).build().unwrap();
        let runtime = Runtime::new(gpu);
        let handle = Handle::new(stream.cu_stream().cast());
        runtime.allocate(1000, handle, AllocTag::UNTAGGED).unwrap();
        let id = runtime.stream(handle).unwrap();
        runtime.close().unwrap();
        assert!(runtime.gpu.streams().enter(id).is_err(), "the stream was not retired");
        drop(stream);
        drop(runtime);
    }
}
