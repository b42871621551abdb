//! D9: a resource of the program's own that exchanges the block while it grows, which safe code can
//! do, does not make a buffer longer than its block.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::context::Context;
use dmr_buffer::{BufferError, DeviceBuffer};
use dmr_core::{DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, forward};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

const LEN: usize = 4096;
const SMALLER: usize = 256;

/// The end of `try_grow`, after the block was exchanged.
#[derive(Clone, Copy, Debug)]
enum End {
    Grown,
    NotGrown,
    Error,
    Panic,
}

/// Grows no block, and exchanges it for one of [`SMALLER`] bytes.
#[derive(Debug)]
struct Exchanging {
    upstream: DirectCudaResource,
    end: End,
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for Exchanging {
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let smaller = self.upstream.allocate(SMALLER, block.alloc_stream(), block.tag())?;
        self.upstream.deallocate(mem::replace(block, smaller)).expect("the block of a buffer");
        match self.end {
            End::Grown => Ok(true),
            End::NotGrown => Ok(false),
            End::Error => Err(ResourceError::out_of_bounds(block, 0, bytes)),
            End::Panic => panic!("a resource that panics"),
        }
    }

    forward!(
        upstream: allocate, deallocate, give_away, is_retired, device_ordinal, stream_pool, bytes_outstanding, usage, try_reap,
        reap_pending, trim_to, allow_access, use_tracking, virtual_memory,
    );
}

/// Returns the length of a buffer after a growth whose resource exchanges the block, and the result
/// of the growth.
fn grow(end: End) -> (usize, Option<Result<bool, BufferError>>) {
    let rig = Rig::new();
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    let ctx = Context::with(&rig, Arc::new(Exchanging { upstream, end }));
    let home = ctx.home();
    let mut buffer = DeviceBuffer::from_host(&ctx, home, &[7u8; LEN]).unwrap();
    let grown = catch_unwind(AssertUnwindSafe(|| buffer.try_grow(2 * LEN))).ok();
    let len = buffer.len();
    assert_eq!(buffer.capacity(), SMALLER, "{end:?}: the block was exchanged");
    assert!(len <= SMALLER, "{end:?}: {len} elements in a block of {SMALLER} bytes");
    // Every operation stays inside of the block.
    buffer.fill_bytes(9, home).unwrap();
    assert_eq!(buffer.to_host(home).unwrap(), vec![9; len], "{end:?}");
    drop(buffer);
    ctx.assert_clean(rig);
    (len, grown)
}

#[test]
fn a_growth_that_was_refused_leaves_as_many_elements_as_the_new_block_has_room_for() {
    let (len, grown) = grow(End::NotGrown);
    assert_eq!((len, grown.map(Result::ok)), (SMALLER, Some(Some(false))));
}

#[test]
fn a_growth_that_is_reported_and_did_not_happen_is_not_believed() {
    let (len, grown) = grow(End::Grown);
    assert_eq!((len, grown.map(Result::ok)), (SMALLER, Some(Some(false))));
}

#[test]
fn a_growth_that_failed_leaves_as_many_elements_as_the_new_block_has_room_for() {
    let (len, grown) = grow(End::Error);
    assert_eq!((len, grown.map(Result::ok)), (SMALLER, Some(None)));
}

#[test]
fn a_growth_that_panicked_leaves_no_elements() {
    let (len, grown) = grow(End::Panic);
    assert_eq!((len, grown.is_none()), (0, true));
}
