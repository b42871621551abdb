//! F7: what is exported comes after all recorded uses, and its memory is freed once, after the work
//! of the consumer.

use cudarc::driver::result;
use dmr_arrow::{ArrowColumn, ColumnParts};
use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_streams::DeviceContext;
use dmr_testkit::{HeldStream, Rig};

use crate::support::consumer::{given, release};
use crate::support::{DeviceArray, Gpu};

fn values_of(array: &DeviceArray) -> u64 {
    // SAFETY: a column of numbers has two buffers.
    unsafe { array.array.buffers.add(1).read() }.addr() as u64
}

#[test]
fn a_consumer_that_waits_for_the_event_finds_the_bytes_of_slow_work() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let consumer = rig.device().context().new_stream().unwrap();
    let mut values = DeviceBuffer::<u32>::zeroed(&gpu, &home, 100).unwrap();
    let held = HeldStream::hold(rig.streams(), &home);
    values.fill(7, &home).unwrap();
    let column = ArrowColumn::of("x", values);
    // On a stream that has not done the work.
    let exported = column.export(&gpu, &other).unwrap();
    let (array, schema) = given(exported.array, exported.schema);
    assert_eq!(array.device_id, rig.ordinal() as i64);
    assert_eq!((array.device_type, array.reserved), (2, [0; 3]));
    let mut found = vec![0_u32; 100];
    // SAFETY: the event and the buffer are there until the release; the stream is waited for.
    unsafe {
        let event = array.sync_event.cast::<cudarc::driver::sys::CUevent>().read();
        let flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        result::stream::wait_event(consumer.cu_stream(), event, flags).unwrap();
        held.release();
        result::memcpy_dtoh_async(&mut found, values_of(&array), consumer.cu_stream()).unwrap();
        result::stream::synchronize(consumer.cu_stream()).unwrap();
    }
    assert_eq!(found, [7; 100]);
    drop(column);
    assert_eq!(gpu.resource().usage().live, 400, "the array has the memory");
    release(array, schema);
    assert_eq!(gpu.resource().usage().live, 0);
    drop((gpu, home, other, consumer, held));
    rig.assert_clean();
}

#[test]
fn a_release_waits_for_the_work_of_the_consumer() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let consumer = rig.device().context().new_stream().unwrap();
    let values = DeviceBuffer::<u32>::zeroed(&gpu, &home, 1 << 16).unwrap();
    let exported = ArrowColumn::of("x", values).export(&gpu, &home).unwrap();
    let (array, schema) = given(exported.array, exported.schema);
    home.stream().synchronize().unwrap();
    let bytes = 1 << 18;
    // SAFETY: both have the bytes; the target is freed at the end, after the copy.
    let target = unsafe {
        let target = result::malloc_sync(bytes).unwrap();
        result::memcpy_dtod_async(target, values_of(&array), bytes, consumer.cu_stream()).unwrap();
        target
    };
    // Not on the thread that has exported it, and without a context.
    let array = Sendable(array);
    std::thread::spawn(move || {
        let array = array;
        release(array.0, schema_of_nothing());
        assert!(result::ctx::get_current().unwrap().is_none(), "no context is left current");
    })
    .join()
    .unwrap();
    release(released(), schema);
    // The memory is used again: a race, if the copy was not waited for.
    let again = DeviceBuffer::<u32>::zeroed(&gpu, &home, 1 << 16).unwrap();
    drop(again);
    // SAFETY: allocated above; the copy was waited for.
    unsafe { result::free_sync(target) }.unwrap();
    drop((gpu, home, consumer));
    rig.assert_clean();
}

/// A struct that is passed to another thread.
struct Sendable(DeviceArray);

// SAFETY: the specification allows a release on any thread.
unsafe impl Send for Sendable {}

fn schema_of_nothing() -> crate::support::Schema {
    given(dmr_arrow::ArrowDeviceArray::released(), dmr_arrow::ArrowSchema::released()).1
}

fn released() -> DeviceArray {
    given(dmr_arrow::ArrowDeviceArray::released(), dmr_arrow::ArrowSchema::released()).0
}

#[test]
fn children_may_be_moved_out_and_released_apart_in_any_order() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    for keep in 0..4_usize {
        let children = (0..2).map(|nth| {
            ArrowColumn::of("n", DeviceBuffer::<i64>::zeroed(&gpu, &home, 10 + nth).unwrap())
        });
        let parts = ColumnParts {
            format: "+s".into(),
            length: 10,
            buffers: vec![None],
            children: children.collect(),
            ..ColumnParts::default()
        };
        let exported = ArrowColumn::new(parts).unwrap().export(&gpu, &home).unwrap();
        let (array, schema) = given(exported.array, exported.schema);
        assert_eq!(gpu.resource().usage().live, 80 + 88);
        let mut moved = Vec::new();
        for nth in (0..2).filter(|nth| keep & (1 << nth) != 0) {
            // SAFETY: the array has two children; one that is moved out is marked as released.
            unsafe {
                let child = array.array.children.add(nth).read();
                let mut place = Box::new(child.read());
                (*child).release = None;
                place.length += 0;
                moved.push(place);
            }
        }
        let event = array.sync_event;
        release(array, schema);
        let live = [0, 80, 88, 168][keep];
        assert_eq!(gpu.resource().usage().live, live);
        if keep != 0 {
            // SAFETY: the event is destroyed with the last struct.
            let event = unsafe { event.cast::<cudarc::driver::sys::CUevent>().read() };
            // SAFETY: as above.
            unsafe { result::event::query(event) }.unwrap();
        }
        for mut child in moved.into_iter().rev() {
            let release = child.release.unwrap();
            // SAFETY: not released.
            unsafe { release(&mut *child) };
            assert!(child.release.is_none());
        }
        assert_eq!(gpu.resource().usage().live, 0);
    }
    drop((gpu, home));
    rig.assert_clean();
}

#[test]
fn columns_are_exported_and_released_by_several_threads() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let column = ArrowColumn::of(
        "shared",
        DeviceBuffer::<u8>::from_host(&gpu, &rig.stream(), &[5; 777]).unwrap(),
    );
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let home = rig.stream();
                for _ in 0..20 {
                    let exported = column.export(&gpu, &home).unwrap();
                    drop((exported.schema, exported.array));
                }
            });
        }
    });
    assert_eq!(gpu.resource().usage().live, 777);
    drop(column);
    assert_eq!(gpu.resource().usage().live, 0);
    drop(gpu);
    rig.assert_clean();
}

#[test]
fn columns_are_nested_64_times_at_most_whatever_they_are_made_of() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let around = |column: &ArrowColumn| {
        let children = vec![column.clone()];
        let buffers = vec![None];
        ArrowColumn::new(ColumnParts {
            format: "+s".into(),
            buffers,
            children,
            ..ColumnParts::default()
        })
    };
    let empty = DeviceBuffer::<u8>::uninit(&gpu, &home, 0).unwrap();
    let mut deepest = ArrowColumn::of("x", empty);
    let mut levels = 0;
    let refused = loop {
        match around(&deepest) {
            Ok(around) => deepest = around,
            Err(refused) => break refused,
        }
        levels += 1;
        assert!(levels <= 64);
    };
    assert_eq!(levels, 64);
    assert!(refused.to_string().starts_with("ColumnParts.children are too deep"), "{refused}");
    // Those that can be made go out and come back.
    let exported = deepest.export(&gpu, &home).unwrap();
    // SAFETY: as they were exported.
    unsafe { ArrowColumn::import(&gpu, home.id(), exported.array, exported.schema) }.unwrap();
    drop((gpu, home, deepest));
    rig.assert_clean();
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_their_names() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let buffer =
        |bytes: usize| Some(DeviceBuffer::<u8>::zeroed(&gpu, &home, bytes).unwrap().into());
    let numbers = |length| ColumnParts {
        format: "i".into(),
        length,
        buffers: vec![None, buffer(40)],
        ..ColumnParts::default()
    };
    assert!(ArrowColumn::new(numbers(10)).is_ok());
    let child = ArrowColumn::new(numbers(10)).unwrap();
    let list = ColumnParts {
        format: "+w:3".into(),
        length: 4,
        buffers: vec![None],
        children: vec![child.clone()],
        ..ColumnParts::default()
    };
    let short = ColumnParts {
        format: "+l".into(),
        length: 2,
        buffers: vec![None, buffer(8)],
        children: vec![child.clone()],
        ..ColumnParts::default()
    };
    for (parts, field) in [
        (short, "ColumnParts.buffers[1] has 8 bytes: the rows need 12"),
        (numbers(11), "ColumnParts.buffers[1] has 40 bytes: the rows need 44"),
        (ColumnParts { offset: 1, ..numbers(10) }, "ColumnParts.buffers[1]"),
        (ColumnParts { null_count: Some(11), ..numbers(10) }, "ColumnParts.null_count"),
        (ColumnParts { null_count: Some(1), ..numbers(10) }, "ColumnParts.buffers[0]"),
        (ColumnParts { format: "q".into(), ..numbers(10) }, "ColumnParts.format"),
        (ColumnParts { name: "a\0b".into(), ..numbers(10) }, "ColumnParts.name"),
        (ColumnParts { buffers: vec![None], ..numbers(10) }, "ColumnParts.buffers"),
        (ColumnParts { children: vec![child], ..numbers(10) }, "ColumnParts.children"),
        (ColumnParts { length: usize::MAX, ..numbers(10) }, "ColumnParts.offset"),
        (list, "ColumnParts.children[0].length is 10: it must be 12 or more"),
    ] {
        let refused = ArrowColumn::new(parts).unwrap_err();
        assert!(refused.to_string().starts_with(field), "{refused}");
    }
    drop((gpu, home));
    rig.assert_clean();
}
