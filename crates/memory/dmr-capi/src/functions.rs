//! The exported functions. Their documentation is that of the header, in the names of C.

use std::ffi::{c_char, c_void};

use dmr::dmr_core::{AllocTag, DeviceMemoryResource};
use dmr::dmr_streams::CurrentContext;

use crate::config::{self, Config};
use crate::entry::{call, call_on, call_on_block, with_last_error};
use crate::reports::{Block, Statistics, Usage, copy_text};
use crate::runtime::{Runtime, UseOf};
use crate::status::{Failure, Outcome, Status};
use crate::streams::Handle;
use crate::versioned::{check_size, read, write, write_element};
use crate::{Address, DMR_VERSION, RuntimeHandle, SpillableHandle, registry, spill};

/// The access of a use: the work reads the block.
pub const DMR_ACCESS_READ: u32 = 1;
/// The access of a use: the work writes the block. `DMR_ACCESS_READ | DMR_ACCESS_WRITE` for both.
pub const DMR_ACCESS_WRITE: u32 = 2;

/// Returns `DMR_VERSION` of the library that is loaded. Compare it with that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_version() -> u32 {
    DMR_VERSION
}

/// Returns the name of a status, such as `"out_of_memory"`; `"unknown"` for any other number. The
/// text stays for the life of the process.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_status_name(status: i32) -> *const c_char {
    Status::of_number(status).map_or(c"unknown", Status::name).as_ptr()
}

/// Copies the text of the last call of this thread that has failed into `buffer`, with a NUL. The
/// text is UTF-8; it is empty if no call has failed. A call that succeeds leaves it as it is.
///
/// Returns the bytes of the text without the NUL: if that is `bytes` or more, the text was cut.
/// With a null `buffer`, or 0 bytes, it copies nothing.
///
/// # Safety
///
/// `buffer` is null, or has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_last_error(buffer: *mut c_char, bytes: usize) -> usize {
    // SAFETY: the caller's obligation.
    with_last_error(|text| unsafe { copy_text(text, buffer, bytes) }).unwrap_or(0)
}

/// Sets the defaults of a configuration: device 0, the pool, no limit, no log. Pass
/// `sizeof(dmr_config)` as `size`.
///
/// Errors: `DMR_STATUS_INVALID_ARGUMENT` for a null pointer, or a size that no version has.
///
/// # Safety
///
/// `config` is null, or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_config_init(config: *mut Config, size: usize) -> Status {
    call(|| {
        if config.is_null() {
            return Err(Failure::null("config"));
        }
        check_size::<Config>(size)?;
        let default = config::default_config(size as u32);
        // SAFETY: the caller's obligation.
        unsafe { write_element(config.cast(), size, default) };
        Ok(())
    })
}

/// Makes a runtime: opens the device and its primary context. Writes its handle to `runtime`.
///
/// A process may have several, also of one device; each has memory of its own. The log is created
/// here.
///
/// Errors: `DMR_STATUS_INVALID_ARGUMENT` for a null pointer, a setting that is not one, settings
/// that exclude each other, a log that cannot be created, a struct of another version, or a larger
/// one in which something is set that this library does not have; `DMR_STATUS_NO_DEVICE`;
/// `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`; `DMR_STATUS_OTHER`, if the limit that
/// processes share cannot be joined. `runtime` is not written then.
///
/// # Safety
///
/// `config` is null, or of a `dmr_config` of the size that it says, whose strings end with a NUL.
/// `runtime` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_runtime_create(
    config: *const Config,
    runtime: *mut *mut RuntimeHandle,
) -> Status {
    call(|| {
        registry::claim_process()?;
        require(runtime, "runtime")?;
        // SAFETY: the caller's obligation.
        let config = unsafe { read(config, "config") }?;
        let _current = CurrentContext::keep();
        // SAFETY: as above.
        let gpu = unsafe { config.build() }?;
        // SAFETY: as above, and not null.
        unsafe { runtime.write(registry::add(Runtime::new(gpu))) };
        Ok(())
    })
}

/// Destroys a runtime: frees the blocks that are left, waits for the work of its streams, retires
/// them, and returns the memory to the driver. The log is complete afterwards.
///
/// After `DMR_STATUS_OK` the handle is unknown, and the streams may be destroyed. On a device that
/// is lost it succeeds, and touches no stream. After any other error the runtime still exists, with
/// the blocks that could not be freed: end the capture of its streams, for example, and call this
/// again. Blocks that were freed and streams that were retired stay so.
///
/// A call that another thread makes meanwhile ends as if it had come before, or with an error; it
/// may use its stream until it has returned.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_BUSY`;
/// `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_runtime_destroy(runtime: *mut RuntimeHandle) -> Status {
    call_on(runtime, |found| {
        found.close()?;
        registry::remove(runtime).map(drop)
    })
}

/// Ends the use of a stream: call it before the stream is destroyed. The runtime touches the stream
/// no more, and whatever needs its work waits for an event behind it. Does not wait for the work.
///
/// A stream that the runtime has not seen is fine. The legacy default stream need not be retired.
/// The blocks that were allocated on the stream stay, and can be freed and used.
///
/// If a stream was destroyed without this and a new one has its handle, calls with the handle
/// return `DMR_STATUS_STREAM_MISUSE`, as far as the driver tells the two apart. Call this with the
/// handle: it then waits for all work of the device, after which the handle is that of the new
/// stream. A stream that is destroyed without this while blocks were allocated or used on it is a
/// fault of the program: a later call may use the handle of a stream that does not exist.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_STREAM_MISUSE` for the per-thread default
/// stream; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_BUSY` if calls of other threads use the
/// stream for longer than a second; `DMR_STATUS_DEVICE_LOST`; `DMR_STATUS_DRIVER`;
/// `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `stream` is a `CUstream` that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_stream_retire(
    runtime: *mut RuntimeHandle,
    stream: *mut c_void,
) -> Status {
    call_on(runtime, |runtime| runtime.retire(Handle::new(stream)))
}

/// Allocates `bytes` bytes for work on `stream`, and writes their address, a multiple of 256, to
/// `address`. Their content is undefined. For 0 bytes the address is 0.
///
/// Work that is submitted to `stream` after this may use the memory. For work on another stream
/// call `dmr_wait_for_uses` before it is submitted, and `dmr_record_use` after.
///
/// `stream` is a `CUstream` of the device's primary context. The runtime adopts a stream when it is
/// first used, and keeps it until `dmr_stream_retire`. Null, and `CU_STREAM_LEGACY`, are the legacy
/// default stream.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_INVALID_ARGUMENT` for a null `address`;
/// `DMR_STATUS_OUT_OF_MEMORY`; `DMR_STATUS_OUT_OF_BUDGET`; `DMR_STATUS_STREAM_MISUSE` for the
/// per-thread default stream, a stream of another context, and a handle of a stream that was
/// destroyed without `dmr_stream_retire`; `DMR_STATUS_CAPACITY` for more than `max_streams`
/// streams; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DEVICE_LOST`; `DMR_STATUS_DRIVER`;
/// `DMR_STATUS_FORKED_PROCESS`. `address` is not written then.
///
/// # Safety
///
/// `stream` is a `CUstream` that was not destroyed, and is not until it is retired. `address` is
/// null, or the address of one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_allocate(
    runtime: *mut RuntimeHandle,
    bytes: usize,
    stream: *mut c_void,
    address: *mut Address,
) -> Status {
    call_on_block(runtime, |runtime| {
        require(address, "address")?;
        let allocated = runtime.allocate(bytes, Handle::new(stream), AllocTag::UNTAGGED)?;
        // SAFETY: the caller's obligation, and not null.
        unsafe { address.write(allocated) };
        Ok(())
    })
}

/// Allocates as `dmr_allocate` does, with a tag: the purpose of the memory, for statistics, the
/// log, errors and snapshots. A null tag is none.
///
/// The process keeps each different tag for good: 65,536 of them, of 128 bytes at most; more bytes
/// are cut, more tags become `"(other)"`. Each call with a tag takes a lock.
///
/// Errors: as `dmr_allocate`, and `DMR_STATUS_INVALID_ARGUMENT` for a tag that is not UTF-8.
///
/// # Safety
///
/// As `dmr_allocate`; `tag` is null, or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_allocate_tagged(
    runtime: *mut RuntimeHandle,
    bytes: usize,
    stream: *mut c_void,
    tag: *const c_char,
    address: *mut Address,
) -> Status {
    call_on_block(runtime, |runtime| {
        require(address, "address")?;
        // SAFETY: the caller's obligation.
        let tag = unsafe { tag_of(tag) }?;
        let allocated = runtime.allocate(bytes, Handle::new(stream), tag)?;
        // SAFETY: as above, and not null.
        unsafe { address.write(allocated) };
        Ok(())
    })
}

/// Frees the block at an address of `dmr_allocate`. Returns at once: the memory is used again after
/// the work that was submitted so far to the stream of its allocation, and after all recorded uses.
/// Address 0 is fine, and frees nothing.
///
/// Any thread may free it. Of two threads that free one address, one gets
/// `DMR_STATUS_UNKNOWN_ADDRESS`, unless the address was allocated again in between.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS`;
/// `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`. After an error
/// the block is still allocated: free it again later.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_free(runtime: *mut RuntimeHandle, address: Address) -> Status {
    call_on_block(runtime, |runtime| runtime.free(address, None))
}

/// Frees a block as `dmr_free` does, also after the work that was submitted so far to `stream`: for
/// a block whose last use was there.
///
/// The stream waits for the other recorded uses of the block. If it is the stream of the
/// allocation, this is `dmr_free`.
///
/// Errors: as `dmr_free` and `dmr_record_use`. After an error the block is still allocated, and the
/// use may be recorded.
///
/// # Safety
///
/// `stream` is a `CUstream` that was not destroyed, and is not until it is retired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_free_on(
    runtime: *mut RuntimeHandle,
    address: Address,
    stream: *mut c_void,
) -> Status {
    call_on_block(runtime, |runtime| runtime.free(address, Some(Handle::new(stream))))
}

/// Records that work which was submitted to `stream` so far uses the block at `address`: the memory
/// is not used again before that work is done, and `dmr_wait_for_uses` of other streams waits for
/// it. `access` is `DMR_ACCESS_READ`, `DMR_ACCESS_WRITE`, or both.
///
/// Call it after the work was submitted, and `dmr_wait_for_uses` before. The stream also waits here
/// for the uses that the work should have come after.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS`;
/// `DMR_STATUS_INVALID_ARGUMENT` for another `access`; `DMR_STATUS_USE_AFTER_FREE`;
/// `DMR_STATUS_UNSUPPORTED` for the direct backend; `DMR_STATUS_BUSY` if other threads record uses
/// of the block for longer than a second; and for the stream as `dmr_allocate`. After an error the
/// work may be unrecorded: synchronise the stream before the memory is freed.
///
/// # Safety
///
/// `stream` is a `CUstream` that was not destroyed, and is not until it is retired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_record_use(
    runtime: *mut RuntimeHandle,
    address: Address,
    stream: *mut c_void,
    access: u32,
) -> Status {
    call_on(runtime, |runtime| runtime.record(address, Handle::new(stream), use_of(access)?))
}

/// Makes `stream` wait for the work that a use of the block at `address` must come after: its
/// allocation, recorded writes, and for a `DMR_ACCESS_WRITE` recorded reads. Work that is submitted
/// to the stream afterwards comes after them. The calling thread does not wait.
///
/// Uses that are not recorded yet are not waited for: record a use before another thread, or
/// another stream, uses the block.
///
/// Errors: as `dmr_record_use`. After an error the stream may wait for some of the work.
///
/// # Safety
///
/// `stream` is a `CUstream` that was not destroyed, and is not until it is retired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_wait_for_uses(
    runtime: *mut RuntimeHandle,
    address: Address,
    stream: *mut c_void,
    access: u32,
) -> Status {
    call_on(runtime, |runtime| runtime.wait(address, Handle::new(stream), use_of(access)?))
}

/// Allocates a buffer of `bytes` bytes that may be moved to pinned host memory, coldest first, when
/// an allocation of the runtime finds too little memory. Writes its handle to `spillable`. The
/// configuration must have `spill`.
///
/// The buffer has no address of its own: `dmr_spillable_pin` returns the one that it has while it
/// is pinned. `stream` and `tag` are as for `dmr_allocate_tagged`.
///
/// Errors: as `dmr_allocate_tagged`; `DMR_STATUS_UNSUPPORTED` if the configuration has no `spill`,
/// or the backend records no uses; `DMR_STATUS_INVALID_ARGUMENT` for zero bytes.
///
/// # Safety
///
/// As `dmr_allocate_tagged`; `spillable` is null, or the address of a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_spillable_create(
    runtime: *mut RuntimeHandle,
    bytes: usize,
    stream: *mut c_void,
    tag: *const c_char,
    spillable: *mut *mut SpillableHandle,
) -> Status {
    call_on(runtime, |runtime| {
        require(spillable, "spillable")?;
        // SAFETY: the caller's obligation.
        let tag = unsafe { tag_of(tag) }?;
        let created = runtime.create_spillable(bytes, Handle::new(stream), tag)?;
        // SAFETY: as above, and not null.
        unsafe { spillable.write(created) };
        Ok(())
    })
}

/// Keeps a spillable buffer on the device until `dmr_spillable_unpin`, and writes its address to
/// `address`. If it was spilled, memory is allocated on `stream`, which may spill others, and
/// filled by a copy there; otherwise `stream` is not used.
///
/// Use the address as that of a block of another stream: `dmr_wait_for_uses` before work is
/// submitted, `dmr_record_use` afterwards and before the buffer is unpinned. It is no address for
/// `dmr_free`, and `dmr_runtime_snapshot` does not list it. A buffer may be pinned more than once;
/// its address is the same until the last pin is taken back.
///
/// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no spillable buffer of the runtime;
/// for the stream and the memory as `dmr_allocate`. After an error the buffer is where it was.
///
/// # Safety
///
/// `stream` is a `CUstream` that was not destroyed, and is not until it is retired. `address` is
/// null, or the address of one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_spillable_pin(
    runtime: *mut RuntimeHandle,
    spillable: *mut SpillableHandle,
    stream: *mut c_void,
    address: *mut Address,
) -> Status {
    call_on(runtime, |runtime| {
        require(address, "address")?;
        let pinned = runtime.pin(spillable, Handle::new(stream))?;
        // SAFETY: the caller's obligation, and not null.
        unsafe { address.write(pinned) };
        Ok(())
    })
}

/// Takes back one pin of a spillable buffer. After the last one the buffer may be spilled, after
/// its recorded uses, and its address is unknown.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// spillable buffer of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for one that is not pinned;
/// `DMR_STATUS_FORKED_PROCESS`.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_spillable_unpin(
    runtime: *mut RuntimeHandle,
    spillable: *mut SpillableHandle,
) -> Status {
    call_on(runtime, |runtime| runtime.spillables().unpin(spillable))
}

/// Frees a spillable buffer that is not pinned, wherever it is, after its recorded uses. If the
/// driver refuses that, or a stream captures, the memory is freed by a later `dmr_runtime_reap`.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
/// spillable buffer of the runtime; `DMR_STATUS_BUSY` for one that is pinned;
/// `DMR_STATUS_FORKED_PROCESS`.
#[unsafe(no_mangle)]
pub extern "C" fn dmr_spillable_destroy(
    runtime: *mut RuntimeHandle,
    spillable: *mut SpillableHandle,
) -> Status {
    call_on(runtime, |runtime| runtime.spillables().destroy(spillable))
}

/// Writes the accounting of a runtime to `usage`, whose `size` and `version` the program has set.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a
/// struct of another version; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `usage` is null, or of a `dmr_usage` of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_runtime_usage(
    runtime: *mut RuntimeHandle,
    usage: *mut Usage,
) -> Status {
    // SAFETY: the caller's obligation.
    call_on(runtime, |runtime| unsafe { write(usage, Usage::of(runtime), "usage") })
}

/// Writes the counts of a runtime to `statistics`, whose `size` and `version` the program has set.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNSUPPORTED` if the configuration has no
/// `statistics`; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a struct of another version;
/// `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `statistics` is null, or of a `dmr_statistics` of the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_runtime_statistics(
    runtime: *mut RuntimeHandle,
    statistics: *mut Statistics,
) -> Status {
    call_on(runtime, |runtime| {
        let counts = Statistics::of(runtime)?;
        // SAFETY: the caller's obligation.
        unsafe { write(statistics, counts, "statistics") }
    })
}

/// Writes the live blocks of a runtime to the array `blocks` of `capacity` elements, in no order,
/// and their number to `count`. Pass `sizeof(dmr_block)` as `size`. If there are more blocks than
/// `capacity`, the first ones are written; with a capacity of 0, `blocks` may be null.
///
/// Blocks that other threads allocate or free during the call may be there or not.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a
/// size that no version has; `DMR_STATUS_FORKED_PROCESS`.
///
/// # Safety
///
/// `blocks` has `capacity` elements of `size` bytes. `count` is null, or the address of a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_runtime_snapshot(
    runtime: *mut RuntimeHandle,
    blocks: *mut Block,
    size: usize,
    capacity: usize,
    count: *mut usize,
) -> Status {
    call_on(runtime, |runtime| {
        require(count, "count")?;
        check_size::<Block>(size)?;
        if capacity > 0 {
            require(blocks, "blocks")?;
        }
        let mut found = 0;
        for live in runtime.blocks() {
            if found < capacity {
                // SAFETY: the caller's obligation; the element is one of `capacity`.
                let element = unsafe { blocks.cast::<u8>().add(found * size) };
                // SAFETY: as above.
                unsafe { write_element(element, size, Block::of(&live)) };
            }
            found += 1;
        }
        // SAFETY: as above, and not null.
        unsafe { count.write(found) };
        Ok(())
    })
}

/// Frees the retired blocks whose work is done, and, if `wait` is not 0, waits for the work of the
/// others and frees them. Writes their bytes to `bytes`, unless that is null.
///
/// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`. Blocks
/// that could not be freed are still retired: call it again.
///
/// # Safety
///
/// `bytes` is null, or the address of a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_runtime_reap(
    runtime: *mut RuntimeHandle,
    wait: i32,
    bytes: *mut u64,
) -> Status {
    call_on(runtime, |runtime| {
        spill::free_again(runtime.gpu())?;
        let resource = runtime.gpu().resource();
        let reaped = match wait {
            0 => resource.try_reap()?,
            _ => resource.reap_pending()?,
        };
        // SAFETY: the caller's obligation.
        unsafe { write_number(bytes, reaped) };
        Ok(())
    })
}

/// Returns unused memory to the driver while more than `keep_bytes` bytes are reserved. Writes the
/// returned bytes to `bytes`, unless that is null. Does not wait for the device: call
/// `dmr_runtime_reap` with `wait` before, to include memory that it still uses.
///
/// Errors: as `dmr_runtime_reap`. The rest is still reserved: call it again.
///
/// # Safety
///
/// `bytes` is null, or the address of a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmr_runtime_trim(
    runtime: *mut RuntimeHandle,
    keep_bytes: u64,
    bytes: *mut u64,
) -> Status {
    call_on(runtime, |runtime| {
        let trimmed = runtime.gpu().trim_to(keep_bytes)?;
        // SAFETY: the caller's obligation.
        unsafe { write_number(bytes, trimmed) };
        Ok(())
    })
}

/// # Safety
///
/// `tag` is null, or a string that ends with a NUL.
pub(crate) unsafe fn tag_of(tag: *const c_char) -> Outcome<AllocTag> {
    // SAFETY: the caller's obligation.
    let Some(tag) = (unsafe { config::text(tag) }) else { return Ok(AllocTag::UNTAGGED) };
    let text = "`tag` is no UTF-8 text: pass one that is";
    let name = tag.to_str().map_err(|_| Failure::new(Status::InvalidArgument, text))?;
    Ok(AllocTag::intern(name))
}

fn use_of(access: u32) -> Outcome<UseOf> {
    const READ_WRITE: u32 = DMR_ACCESS_READ | DMR_ACCESS_WRITE;
    match access {
        DMR_ACCESS_READ => Ok(UseOf::Read),
        DMR_ACCESS_WRITE => Ok(UseOf::Write),
        READ_WRITE => Ok(UseOf::ReadAndWrite),
        other => {
            let text =
                format!("access {other} is none: pass DMR_ACCESS_READ, DMR_ACCESS_WRITE or both");
            Err(Failure::new(Status::InvalidArgument, text))
        }
    }
}

pub(crate) fn require<T>(pointer: *mut T, argument: &str) -> Outcome<()> {
    if pointer.is_null() { Err(Failure::null(argument)) } else { Ok(()) }
}

/// # Safety
///
/// `to` is null, or the address of a number.
pub(crate) unsafe fn write_number(to: *mut u64, number: u64) {
    if !to.is_null() {
        // SAFETY: the caller's obligation.
        unsafe { to.write(number) };
    }
}
