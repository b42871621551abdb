//! T8: each error of the library converts to `dmr::Error`, which keeps its message, its sources and
//! what is inside of it, and returns whether less memory would have worked.

#![cfg(all(feature = "budget", feature = "pool", feature = "spill"))]

use std::error::Error as _;

use dmr::cudarc::driver::{DriverError, sys};
use dmr::dmr_buffer::BufferError;
use dmr::dmr_slices::CudaSlices;
use dmr::dmr_spill::SpillError;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

/// The messages of an error and of its sources.
fn messages(error: &dyn std::error::Error) -> Vec<String> {
    let mut messages = vec![error.to_string()];
    let mut source = error.source();
    while let Some(error) = source {
        messages.push(error.to_string());
        source = error.source();
    }
    messages
}

/// Converts an error with `?`, and checks that its messages stay.
fn converted<E: std::error::Error>(error: E) -> dmr::Error
where
    dmr::Error: From<E>,
{
    fn convert<E>(error: E) -> dmr::Result
    where
        dmr::Error: From<E>,
    {
        Err(error)?
    }
    let before = messages(&error);
    let error = convert(error).unwrap_err();
    assert_eq!(messages(&error), before);
    error
}

fn on_a_runtime(test: impl FnOnce(&Rig, &DeviceRuntime)) {
    let rig = Rig::new();
    let builder = DeviceRuntime::builder(rig.ordinal()).budget_on(&Budget::new(64 << 20));
    let gpu = builder.pinned_budget(MIB as u64).spill().build().unwrap();
    test(&rig, &gpu);
    drop(gpu);
    rig.assert_clean();
}

fn driver_error(code: sys::CUresult) -> DriverError {
    DriverError(code)
}

#[test]
fn it_is_small_and_crosses_threads() {
    fn is_portable<E: std::error::Error + Send + Sync + 'static>() {}
    is_portable::<dmr::Error>();
    assert!(size_of::<dmr::Error>() <= 24, "{}", size_of::<dmr::Error>());
}

#[test]
fn each_refusal_of_memory_is_out_of_memory() {
    on_a_runtime(|_, gpu| {
        let stream = gpu.streams().acquire().unwrap();
        let buffer = |len| DeviceBuffer::<u8>::uninit(gpu, &stream, len).unwrap_err();
        for error in [
            converted(buffer(128 * MIB)),  // the budget
            converted(buffer(1 << 45)),    // more than the device has
            converted(buffer(usize::MAX)), // rounded up
            converted(DeviceBuffer::<u64>::uninit(gpu, &stream, usize::MAX).unwrap_err()),
            converted(PinnedBuffer::<u8>::zeroed(gpu, &stream, 8 * MIB).unwrap_err()),
            converted(
                gpu.resource().allocate(128 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap_err(),
            ),
            converted(
                gpu.budget().unwrap().reserve(128 << 20, std::time::Duration::ZERO).unwrap_err(),
            ),
            converted(gpu.spill().unwrap().free(1).unwrap_err()),
        ] {
            assert!(error.is_out_of_memory(), "{error}");
        }
    });
}

#[test]
fn other_errors_are_not_out_of_memory() {
    on_a_runtime(|rig, gpu| {
        let stream = rig.stream(); // of another pool
        let x = DeviceBuffer::<u8>::uninit(gpu, &stream, 1).unwrap_err();
        assert!(matches!(converted(x).resource_error(), Some(ResourceError::StreamMisuse { .. })));
        let empty = gpu.resource().allocate(0, gpu.streams().default_stream(), AllocTag::UNTAGGED);
        for error in [
            converted(empty.unwrap_err()),
            converted(BufferError::EmptyChunks),
            converted(DeviceRuntime::builder(999).build().unwrap_err()),
            converted(driver_error(sys::CUresult::CUDA_ERROR_INVALID_VALUE)),
            converted(SpillError::Untracked),
            dmr::Error::other("a wrong plan"),
        ] {
            assert!(!error.is_out_of_memory(), "{error}");
        }
    });
}

/// The error of a closure, and the refusal of a launch, convert in one step.
#[test]
fn errors_of_launches_and_of_their_closures_convert() {
    fn launched(gpu: &DeviceRuntime, code: sys::CUresult) -> dmr::Result {
        let stream = gpu.streams().acquire()?;
        let mut x = DeviceBuffer::<u8>::uninit(gpu, &stream, 1)?;
        let mut launch = LaunchRecorder::new_strict(&stream);
        launch.write(&mut x);
        launch.launch(gpu, |_| -> dmr::Result<()> {
            gpu.streams().permanent(stream.id())?;
            Err(driver_error(code))?
        })?;
        Ok(())
    }
    on_a_runtime(|rig, gpu| {
        let short = launched(gpu, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY).unwrap_err();
        assert!(short.is_out_of_memory(), "{short}");
        let message = short.to_string();
        assert!(message.contains("retry with a new recorder"), "{message}");
        assert!(short.source().unwrap().to_string().contains("OUT_OF_MEMORY"), "{short:?}");
        let other = launched(gpu, sys::CUresult::CUDA_ERROR_INVALID_VALUE).unwrap_err();
        assert!(!other.is_out_of_memory(), "{other}");

        let refused = LaunchRecorder::new_strict(rig.stream().id()).prepare(gpu).unwrap_err();
        let error = converted(refused);
        assert!(matches!(error.resource_error(), Some(ResourceError::StreamMisuse { .. })));
        let enqueue = LaunchRecorder::new_strict(gpu.streams().default_stream())
            .launch(gpu, |_| Err::<(), _>(driver_error(sys::CUresult::CUDA_ERROR_INVALID_IMAGE)));
        converted(enqueue.unwrap_err());
    });
}

#[test]
fn a_block_that_was_not_deallocated_is_still_inside() {
    on_a_runtime(|rig, gpu| {
        let other = DeviceRuntime::builder(rig.ordinal()).build().unwrap();
        let stream = gpu.streams().acquire().unwrap();
        let block = gpu.resource().allocate(1000, stream.id(), AllocTag::UNTAGGED).unwrap();
        let error: dmr::Error = other.resource().deallocate(block).unwrap_err().into();
        let dmr::Error::Deallocate(refused) = error else { panic!("{error}") };
        gpu.resource().deallocate(refused.block).unwrap();
    });
}

/// The refusals that return a buffer or a slice: `?` drops it, as it does with any error.
#[test]
fn refusals_with_a_buffer_inside_convert_and_free_it() {
    on_a_runtime(|rig, gpu| {
        let other = DeviceRuntime::builder(rig.ordinal()).build().unwrap();
        let stream = other.streams().acquire().unwrap();
        let spill = |buffer| -> dmr::Result {
            let _ = gpu.spill().unwrap().insert::<u8>(buffer)?;
            Ok(())
        };
        let error = spill(DeviceBuffer::zeroed(&other, &stream, 1000).unwrap()).unwrap_err();
        assert!(matches!(&error, dmr::Error::Spill(_)), "{error}");
        assert_eq!(error.to_string(), SpillError::OtherPool.to_string());

        let give = |buffer: DeviceBuffer<u8>| -> dmr::Result {
            let _ = buffer.into_cuda_slice()?;
            Ok(())
        };
        let error = give(DeviceBuffer::zeroed(&other, &stream, 1000).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("a buffer was not given to cudarc: "), "{error}");
        assert!(error.source().is_some() && error.resource_error().is_some());

        let adopt = |stream: StreamId| -> dmr::Result {
            let slice = rig.stream().stream().alloc_zeros::<u8>(1000)?;
            let _ = CudaSlices::of(gpu).adopt(slice, stream, AllocTag::UNTAGGED)?;
            Ok(())
        };
        let error = adopt(stream.id()).unwrap_err();
        assert!(error.to_string().starts_with("a slice of cudarc was not adopted: "), "{error}");
        assert_eq!(other.resource().bytes_outstanding(), 0, "a buffer was lost");
    });
}

#[test]
fn a_restore_without_room_is_out_of_memory() {
    on_a_runtime(|_, gpu| {
        let stream = gpu.streams().acquire().unwrap();
        let budget = gpu.budget().unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(gpu, &stream, MIB / 2).unwrap();
        let spillable = gpu.spill().unwrap().insert(buffer).unwrap();
        gpu.spill().unwrap().free(1).unwrap();
        gpu.resource().reap_pending().unwrap();
        gpu.trim_to(0).unwrap();
        budget.set_limit(0);
        let error = converted(spillable.on_device(&stream).err().unwrap());
        assert!(error.is_out_of_memory(), "{error}");
        assert!(
            matches!(error.resource_error(), Some(ResourceError::OutOfBudget { .. })),
            "{error}"
        );
        budget.set_limit(64 << 20);
    });
}
