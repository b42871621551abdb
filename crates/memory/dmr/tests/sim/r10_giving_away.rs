//! R10, simulated: cudarc's free of memory that was given away races with nothing, and no failing
//! driver call loses memory or data.

#![cfg(all(feature = "async", feature = "direct"))]
#![allow(unsafe_code, reason = "captures end in the driver")]

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::CUstreamCaptureMode;
use dmr::prelude::*;
use dmr_sim::{Policy, Universe};
use dmr_testkit::{Rig, for_each_driver_call};

const LEN: usize = 1 << 12;
const BACKENDS: [Backend; 3] = [Backend::Direct, Backend::DirectTracked, Backend::Async];

fn runtime(rig: &Rig, backend: Backend) -> DeviceRuntime {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    builder.backend(backend).build().unwrap()
}

#[test]
fn neither_the_slice_nor_its_free_races_with_the_uses_of_the_buffer() {
    for backend in BACKENDS {
        for seed in 0..20 {
            let universe = Universe::builder().policy(Policy::Random).seed(seed).build().unwrap();
            let rig = Rig::in_universe(&universe);
            let runtime = runtime(&rig, backend);
            let tracks = runtime.resource().supports_block_use_tracking();
            let [home, other] = [(); 2].map(|()| runtime.streams().acquire().unwrap());
            let elsewhere = if tracks { &other } else { &home };
            for is_read in [false, true] {
                let mut buffer = DeviceBuffer::<u8>::zeroed(&runtime, &home, LEN).unwrap();
                let mut copy = DeviceBuffer::<u8>::zeroed(&runtime, &home, LEN).unwrap();
                buffer.fill(3, elsewhere).unwrap();
                copy.copy_from(&buffer, elsewhere).unwrap();
                let slice = buffer.into_cuda_slice().unwrap();
                if is_read {
                    let third = rig.device().context().new_stream().unwrap();
                    assert_eq!(third.clone_dtoh(&slice).unwrap(), [3; LEN]);
                }
                drop(slice);
                // It may have the address of the slice.
                let mut next = DeviceBuffer::<u8>::uninit(&runtime, &home, LEN).unwrap();
                next.fill(4, &home).unwrap();
                assert_eq!(copy.to_host(elsewhere).unwrap(), [3; LEN], "{backend:?}");
            }
            runtime.resource().reap_pending().unwrap();
            drop((home, other, runtime));
            rig.assert_clean();
        }
    }
}

#[test]
fn nothing_waits_on_the_host() {
    for backend in BACKENDS {
        let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
        let rig = Rig::in_universe(&universe);
        let runtime = runtime(&rig, backend);
        let home = runtime.streams().acquire().unwrap();
        let mut buffer = DeviceBuffer::<u8>::uninit(&runtime, &home, LEN).unwrap();
        buffer.fill(1, &home).unwrap();
        rig.universe().reset_calls();
        let slice = buffer.into_cuda_slice().unwrap();
        let calls = rig.universe().calls();
        for call in
            ["cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree_v2"]
        {
            assert_eq!(calls.count(call), 0, "{backend:?}: {calls:?}");
        }
        drop((slice, home, runtime));
        rig.assert_clean();
    }
}

#[test]
fn while_the_home_stream_captures_the_buffer_is_returned() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    for backend in [Backend::DirectTracked, Backend::Async] {
        let rig = Rig::in_universe(&universe);
        let runtime = runtime(&rig, backend);
        let home = runtime.streams().acquire().unwrap();
        let buffer = DeviceBuffer::from_host(&runtime, &home, &[1u8; LEN]).unwrap();
        let on = home.stream();
        on.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let refused = buffer.into_cuda_slice().unwrap_err();
        assert!(matches!(refused.error, ResourceError::StreamCapturing { .. }), "{refused}");
        // SAFETY: the stream is alive.
        unsafe { result::stream::end_capture(on.cu_stream()) }.expect("the capture goes on");
        assert_eq!(refused.buffer.to_host(&home).unwrap(), [1; LEN]);
        drop((refused, home, runtime));
        rig.assert_clean();
    }
}

#[test]
fn no_driver_call_that_fails_loses_memory_or_data() {
    for backend in BACKENDS {
        let prepare = |rig: &Rig| {
            let runtime = runtime(rig, backend);
            let [home, other] = [(); 2].map(|()| runtime.streams().acquire().unwrap());
            let tracks = runtime.resource().supports_block_use_tracking();
            let mut buffer = DeviceBuffer::<u8>::zeroed(&runtime, &home, LEN).unwrap();
            buffer.fill(2, if tracks { &other } else { &home }).unwrap();
            (runtime, home, other, buffer)
        };
        let failed = for_each_driver_call(999, prepare, |rig, (runtime, home, other, buffer)| {
            let before = format!("{buffer:?}");
            let given = buffer.into_cuda_slice().or_else(|refused| {
                assert_eq!(format!("{:?}", refused.buffer), before);
                refused.buffer.into_cuda_slice()
            });
            let slice = given.expect("only one driver call fails");
            // On the slice's own stream: cudarc does not return the error of a wait of another one,
            // and goes on.
            let read = || slice.stream().clone_dtoh(&slice);
            assert_eq!(read().or_else(|_| read()).unwrap(), [2; LEN], "{backend:?}");
            assert_eq!(runtime.resource().bytes_outstanding(), 0);
            drop(slice);
            let _ = rig.device().context().check_err();
            drop((home, other, runtime));
            let races = rig.universe().reports();
            assert!(races.is_empty(), "{races:?}");
        });
        assert!(failed >= 5, "{backend:?}: {failed} calls were failed");
    }
}
