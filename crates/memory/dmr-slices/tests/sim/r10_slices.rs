//! R10: what is reported as freed is freed, and a driver call that fails loses neither memory nor
//! an error of the program.

#![allow(unsafe_code, reason = "gives blocks back as slices")]

use std::sync::Arc;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, DeviceMemoryResource, ResourceError, UseTrackingExt,
};
use dmr_slices::CudaSlices;
use dmr_streams::{DeviceContext, StreamPool};
use dmr_testkit::{Rig, for_each_driver_call};

const BYTES: usize = 1 << 12;
const TAG: AllocTag = AllocTag::new("slices");
const FREE: &str = "cuMemFreeAsync";
const UNKNOWN: i32 = 999;

/// The streams are all that adopted slices need of a context.
struct Streams(Arc<StreamPool>);

impl DeviceContext for Streams {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        unreachable!("slices have a resource of their own")
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.0
    }
}

fn slices(rig: &Rig) -> CudaSlices {
    CudaSlices::of(&Streams(Arc::clone(rig.streams())))
}

#[test]
fn a_block_whose_free_the_driver_refuses_stays_in_the_error() {
    let rig = Rig::simulated();
    let slices = slices(&rig);
    let home = rig.stream();
    let own = rig.device().context().new_stream().unwrap();
    let adopted = slices.adopt(own.alloc_zeros::<u8>(BYTES).unwrap(), home.id(), TAG).unwrap();
    let made = slices.resource().allocate(BYTES, home.id(), TAG).unwrap();
    for block in [adopted, made] {
        let before = slices.resource().usage();
        rig.universe().fail_nth(FREE, 1, UNKNOWN);
        let refused = slices.resource().deallocate(block).unwrap_err();
        assert!(matches!(refused.error, ResourceError::Driver { .. }), "{refused}");
        assert_eq!(slices.resource().usage(), before);
        assert!(rig.device().context().check_err().is_ok(), "no error is left for other users");
        assert_eq!(slices.resource().deallocate(refused.block).unwrap(), BlockState::Freed);
    }
    assert_eq!(slices.resource().usage().outstanding(), 0);
    drop((slices, home, own));
    rig.assert_clean();
}

#[test]
fn a_retired_block_whose_free_the_driver_refuses_stays_retired() {
    let rig = Rig::simulated();
    let slices = slices(&rig);
    let home = rig.stream();
    let memory = slices.resource();
    let block = memory.allocate(BYTES, home.id(), TAG).unwrap();
    let open = memory.prepare_uses(&[BlockUse::new(block.id(), Access::Write)], home.id()).unwrap();
    assert_eq!(memory.deallocate(block).unwrap(), BlockState::Retired);
    memory.finish_uses(open).unwrap();
    rig.universe().fail_nth(FREE, 1, UNKNOWN);
    assert!(memory.try_reap().is_err());
    assert_eq!(memory.usage().retired, BYTES as u64);
    assert_eq!(memory.try_reap(), Ok(BYTES as u64));
    drop((slices, home));
    rig.assert_clean();
}

#[test]
fn an_allocation_that_fails_loses_no_memory_and_no_error_of_the_program() {
    let prepare = |rig: &Rig| (slices(rig), rig.stream());
    let failed = for_each_driver_call(UNKNOWN, prepare, |rig, (slices, home)| {
        let context = rig.device().context();
        let earlier = DriverError(CUresult::CUDA_ERROR_NOT_FOUND);
        context.record_err(Err::<(), _>(earlier));
        let memory = slices.resource();
        let allocate = || memory.allocate(BYTES, home.id(), TAG);
        let block = allocate().or_else(|_| allocate()).expect("only one driver call fails");
        let freed = memory.deallocate(block).or_else(|refused| memory.deallocate(refused.block));
        assert_eq!(freed.expect("only one driver call fails"), BlockState::Freed);
        assert_eq!(context.check_err(), Err(earlier));
        rig.universe().clear_faults();
        drop((slices, home));
        rig.verdict().unwrap();
    });
    assert!(failed >= 4, "{failed} calls were failed");
}

#[test]
fn a_slice_of_more_elements_than_the_block_has_is_refused_with_the_block() {
    let rig = Rig::simulated();
    let slices = slices(&rig);
    let home = rig.stream();
    let block = slices.resource().allocate(BYTES, home.id(), TAG).unwrap();
    // SAFETY: any bytes are a value of a `u32`.
    let give_back = |block, len| unsafe { slices.give_back::<u32>(block, len) };
    let refused = give_back(block, BYTES / 4 + 1).unwrap_err();
    assert!(matches!(refused.error, ResourceError::OutOfBounds { .. }), "{refused}");
    let refused = give_back(refused.block, usize::MAX).unwrap_err();
    assert_eq!(give_back(refused.block, BYTES / 4).unwrap().len(), BYTES / 4);
    drop((slices, home));
    rig.assert_clean();
}
