//! R10: adopting, freeing and giving back wait for nothing on the host, and lose nothing if a
//! driver call fails.

#![allow(unsafe_code, reason = "captures end in the driver")]

use crate::context::Context;
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, result};
use dmr_buffer::DeviceBuffer;
use dmr_core::error::StreamProblem;
use dmr_core::{Access, BlockUse, ResourceError};
use dmr_sim::{Policy, Universe};
use dmr_slices::CudaSlices;
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, for_each_driver_call};

const LEN: usize = 1 << 12;

fn lazy() -> Rig {
    let universe = Universe::builder().policy(Policy::Lazy).devices(2).build();
    Rig::in_universe(&universe.expect("the simulator"))
}

#[test]
fn nothing_waits_on_the_host() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let own = rig.device().context().new_stream().unwrap();
    let slices = [(); 2].map(|()| own.clone_htod(&[1u8; LEN]).unwrap());
    rig.universe().reset_calls();
    let [mut x, mut y] = slices.map(|slice| DeviceBuffer::adopt(&ctx, &home, slice).unwrap());
    x.fill(2, &away).unwrap();
    y.fill(2, &away).unwrap();
    let slice = x.into_cuda_slice().unwrap();
    drop((slice, y));
    let calls = rig.universe().calls();
    for call in ["cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventQuery"] {
        assert_eq!(calls.count(call), 0, "{calls:?}");
    }
    assert_eq!(calls.count("cuMemFreeAsync"), 2);
    drop((home, away, own));
    ctx.assert_clean(rig);
}

#[test]
fn slices_of_another_context_and_on_a_stream_that_captures_are_returned() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let context = CudaContext::new(rig.universe().ordinal(1)).unwrap();
    let slice = context.default_stream().clone_htod(&[1u8; LEN]).unwrap();
    let refused = DeviceBuffer::adopt(&ctx, &home, slice).unwrap_err();
    let problem = StreamProblem::OtherContext;
    assert!(
        matches!(refused.error, ResourceError::StreamMisuse { problem: p, .. } if p == problem)
    );
    drop((refused, context));
    let own = rig.device().context().new_stream().unwrap();
    let slice = own.clone_htod(&[1u8; LEN]).unwrap();
    own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let refused = DeviceBuffer::adopt(&ctx, &home, slice).unwrap_err();
    assert!(matches!(refused.error, ResourceError::StreamCapturing { .. }), "{refused}");
    // SAFETY: the stream is alive.
    let end_capture = || unsafe { result::stream::end_capture(own.cu_stream()) };
    end_capture().expect("the capture goes on");
    let x = DeviceBuffer::adopt(&ctx, &home, refused.slice).unwrap();
    own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let refused = x.into_cuda_slice().unwrap_err();
    assert!(matches!(refused.error, ResourceError::StreamCapturing { .. }), "{refused}");
    end_capture().expect("the capture goes on");
    drop((refused, own, home));
    ctx.assert_clean(rig);
}

/// The slice's stream would not wait for a use that another thread prepares and finishes meanwhile.
#[test]
fn a_use_that_is_prepared_while_a_slice_is_given_back_is_refused() {
    let given_back_while = |held: Option<u64>| {
        let rig = lazy();
        let ctx = Context::tracked(&rig);
        let home = rig.stream();
        let away = rig.stream();
        let own = rig.device().context().new_stream().unwrap();
        let slice = own.clone_htod(&[1u8; LEN]).unwrap();
        let mut x = DeviceBuffer::adopt(&ctx, &home, slice).unwrap();
        x.fill(2, &away).unwrap();
        let write = [BlockUse::new(x.block().unwrap().id(), Access::Write)];
        rig.universe().reset_calls();
        let given = std::thread::scope(|scope| {
            let hold = held.map(|call| rig.universe().hold_call_number(call));
            let given = scope.spawn(|| x.into_cuda_slice());
            if let Some(hold) = hold {
                hold.wait_until_held();
                let refused = rig.streams().uses().prepare(&write, home.id());
                let is_stale = matches!(refused, Err(ResourceError::UseAfterFree { .. }));
                assert!(is_stale, "call {held:?}: {refused:?}");
                hold.release();
            }
            given.join().unwrap().unwrap()
        });
        let calls = rig.universe().calls().total();
        assert_eq!(own.clone_dtoh(&given).unwrap(), [2; LEN]);
        drop((given, home, away, own));
        ctx.assert_clean(rig);
        calls
    };
    let calls = given_back_while(None);
    assert!(calls > 2, "{calls}");
    for call in 1..=calls {
        given_back_while(Some(call));
    }
}

#[test]
fn no_driver_call_that_fails_loses_a_slice_or_its_order() {
    let _alone = crate::ALONE.lock();
    let prepare = |rig: &Rig| {
        let own = rig.device().context().new_stream().unwrap();
        let slice = own.clone_htod(&[1u8; LEN]).unwrap();
        (Context::tracked(rig), rig.stream(), rig.stream(), slice, own)
    };
    let failed = for_each_driver_call(999, prepare, |rig, (ctx, home, away, slice, own)| {
        let adopted = DeviceBuffer::adopt(&ctx, &home, slice)
            .or_else(|refused| DeviceBuffer::adopt(&ctx, &home, refused.slice));
        let mut x = adopted.expect("only one driver call fails");
        x.fill(2, &away).or_else(|_| x.fill(2, &away)).unwrap();
        let given = x.into_cuda_slice().or_else(|refused| refused.buffer.into_cuda_slice());
        let slice = given.expect("only one driver call fails");
        let read = || own.clone_dtoh(&slice);
        assert_eq!(read().or_else(|_| read()).unwrap(), [2; LEN]);
        let again = DeviceBuffer::adopt(&ctx, &home, slice)
            .or_else(|refused| DeviceBuffer::adopt(&ctx, &home, refused.slice));
        drop(again.expect("only one driver call fails"));
        for failure in dmr_buffer::failures::take_drop_failures() {
            failure.retry().unwrap();
        }
        assert_eq!(CudaSlices::of(&ctx).resource().bytes_outstanding(), 0);
        let _ = rig.device().context().check_err();
        drop((ctx, home, away, own));
        let races = rig.universe().reports();
        assert!(races.is_empty(), "{races:?}");
    });
    assert!(failed >= 20, "{failed} calls were failed");
}

/// cudarc keeps errors in the `CudaContext` value of the stream, and a library may have one of its
/// own.
#[test]
fn a_slice_of_another_context_value_keeps_its_last_write_through_a_refusal() {
    for nth in 1..=3 {
        let rig = lazy();
        let ctx = Context::tracked(&rig);
        let home = rig.stream();
        let theirs = CudaContext::new(rig.ordinal()).unwrap();
        let [own, writer] = [(); 2].map(|()| theirs.new_stream().unwrap());
        let mut slice = own.alloc_zeros::<u8>(LEN).unwrap();
        writer.memset_zeros(&mut slice).unwrap();
        rig.universe().fail_nth("cuStreamWaitEvent", nth, 999);
        let refused = DeviceBuffer::adopt(&ctx, &home, slice).unwrap_err();
        assert!(matches!(refused.error, ResourceError::Driver { .. }), "wait {nth}: {refused}");
        assert!(rig.device().context().check_err().is_ok(), "wait {nth}");
        // cudarc frees it after the last write that it has recorded.
        drop((refused, own, writer, theirs, home));
        ctx.assert_clean(rig);
    }
}

#[test]
fn no_slice_of_another_context_value_is_given_back_without_its_last_write() {
    let mut refusals = 0;
    for nth in 1..=4 {
        let rig = lazy();
        let ctx = Context::tracked(&rig);
        let home = rig.stream();
        let theirs = CudaContext::new(rig.ordinal()).unwrap();
        let [own, other] = [(); 2].map(|()| theirs.new_stream().unwrap());
        let slice = own.alloc_zeros::<u8>(LEN).unwrap();
        let mut buffer = DeviceBuffer::adopt(&ctx, &home, slice).unwrap();
        buffer.fill(1, &home).unwrap();
        rig.universe().fail_nth("cuEventRecord", nth, 999);
        let given = buffer.into_cuda_slice().or_else(|refused| {
            refusals += 1;
            refused.buffer.into_cuda_slice()
        });
        rig.universe().clear_faults();
        let mut slice = given.expect("only one record fails");
        assert!(theirs.check_err().is_ok(), "record {nth}");
        other.memset_zeros(&mut slice).unwrap();
        drop((slice, own, other, theirs, home));
        ctx.assert_clean(rig);
    }
    assert!(refusals > 0);
}
