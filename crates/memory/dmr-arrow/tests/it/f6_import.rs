//! F6: what is imported is ordered after its producer, tracked, and released once.

use dmr_arrow::{ArrowColumn, ColumnError, ColumnImportError};
use dmr_buffer::DeviceBuffer;
use dmr_core::{DeviceMemoryResource, ResourceError};
use dmr_external::ForeignBlocks;
use dmr_launch::LaunchRecorder;
use dmr_streams::DeviceContext;
use dmr_testkit::{HeldStream, Rig};

use crate::support::{Gpu, Producer, Spec, taken};

fn numbers(values: &[i32]) -> Spec {
    let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_ne_bytes()).collect();
    Spec {
        format: "i".into(),
        length: values.len(),
        buffers: vec![None, Some(bytes)],
        ..Spec::default()
    }
}

fn import(gpu: &Gpu, producer: &Producer, on: dmr_core::StreamId, spec: &Spec) -> ArrowColumn {
    let mut made = producer.make(spec);
    let (array, schema) = taken(&mut made.0, &mut made.1);
    // SAFETY: the structs are as the specification says.
    unsafe { ArrowColumn::import(gpu, on, array, schema) }.unwrap()
}

#[test]
fn a_launch_on_any_stream_finds_the_bytes_of_a_slow_producer() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let producer = Producer::new(&rig);
    let gate = rig.stream();
    let held = HeldStream::hold(rig.streams(), &gate);
    producer.stream.wait(&gate.stream().record_event(None).unwrap()).unwrap();
    // Numbers need no copy to the host, so this does not wait.
    let column = import(&gpu, &producer, home.id(), &numbers(&[3, 1, 4, 1, 5]));
    let mut copy = DeviceBuffer::<i32>::zeroed(&gpu, &other, 5).unwrap();
    copy.copy_from(column.values::<i32>().unwrap().unwrap(), &other).unwrap();
    assert_eq!(producer.releases.arrays(), 0);
    drop(column);
    assert_eq!(producer.releases.arrays(), 0, "the copy may be under way");
    held.release();
    assert_eq!(copy.to_host(&home).unwrap(), [3, 1, 4, 1, 5]);
    producer.releases.wait_for(1);
    assert_eq!(producer.releases.schemas(), 1);
    drop((gpu, home, other, producer, copy, held, gate));
    rig.assert_clean();
}

#[test]
fn views_have_the_type_and_the_rows_of_the_column() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let producer = Producer::new(&rig);
    let spec = Spec { length: 2, offset: 2, ..numbers(&[3, 1, 4, 1, 5]) };
    let column = import(&gpu, &producer, home.id(), &spec);
    assert_eq!(column.values::<i32>().unwrap().unwrap().to_host(&home).unwrap(), [4, 1]);
    let last = column.slice(1, 1).unwrap();
    assert_eq!(last.values::<i32>().unwrap().unwrap().to_host(&home).unwrap(), [1]);
    assert!(column.slice(1, 2).is_err() && column.slice(usize::MAX, 2).is_err());
    assert!(matches!(column.values::<u32>(), Err(ColumnError::OtherType { .. })));
    assert!(matches!(column.values::<f32>(), Err(ColumnError::OtherType { .. })));
    assert!(column.validity().unwrap().is_none());
    let empty = import(&gpu, &producer, home.id(), &numbers(&[]));
    assert!(empty.values::<i32>().unwrap().is_none());
    // Without memory there is nothing to keep.
    producer.releases.wait_for(1);
    drop((column, last, empty));
    producer.releases.wait_for(2);
    drop((gpu, home, producer));
    rig.assert_clean();
}

#[test]
fn buffers_that_overlap_are_one_block() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let producer = Producer::new(&rig);
    let spec = Spec {
        format: "+s".into(),
        length: 3,
        buffers: vec![None],
        children: vec![numbers(&[1, 2, 3, 4]), numbers(&[5, 6, 7])],
        ..Spec::default()
    };
    let (mut array, mut schema) = producer.make(&spec);
    // SAFETY: both children have two buffers.
    unsafe {
        let first = &**array.array.children;
        let second = &**array.array.children.add(1);
        second.buffers.add(1).write(first.buffers.add(1).read().byte_add(4));
    }
    let (array, schema) = taken(&mut array, &mut schema);
    // SAFETY: the structs are as the specification says.
    let column = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }.unwrap();
    assert_eq!(
        ForeignBlocks::of(&gpu).resource().usage().live,
        16,
        "the first child's bytes, once"
    );
    let mut launch = LaunchRecorder::new_strict(&other);
    for (child, expected) in column.children().iter().zip([&[1, 2, 3, 4][..], &[2, 3, 4]]) {
        launch.read(&child.values::<i32>().unwrap().unwrap());
        let found = child.values::<i32>().unwrap().unwrap().to_host(&other).unwrap();
        assert_eq!(found, expected);
    }
    launch.launch(&gpu, |_| Ok::<(), ResourceError>(())).unwrap();
    drop(column);
    producer.releases.wait_for(1);
    drop((gpu, home, other, producer));
    rig.assert_clean();
}

#[test]
fn a_refused_column_is_in_the_error_and_can_be_imported_again() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let producer = Producer::new(&rig);
    let (mut array, mut schema) = producer.make(&numbers(&[7]));
    array.device_id += 1;
    let (array, schema) = taken(&mut array, &mut schema);
    // SAFETY: the structs are as the specification says, except for the device.
    let refused = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }.unwrap_err();
    assert!(refused.to_string().contains("ArrowDeviceArray.device_id is "), "{refused}");
    let ColumnImportError { array, schema, .. } = *refused;
    assert!(!array.is_released() && !schema.is_released());
    assert_eq!((producer.releases.arrays(), producer.releases.schemas()), (0, 0));
    let (mut array, schema) = crate::support::consumer::given(array, schema);
    array.device_id -= 1;
    let mut schema = schema;
    let (array, schema) = taken(&mut array, &mut schema);
    // SAFETY: the structs are as the specification says.
    let column = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }.unwrap();
    assert_eq!(column.values::<i32>().unwrap().unwrap().to_host(&home).unwrap(), [7]);
    drop(column);
    producer.releases.wait_for(1);
    drop((gpu, home, producer));
    rig.assert_clean();
}

#[test]
fn columns_are_imported_and_dropped_by_several_threads() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let producers: Vec<_> = (0..4).map(|_| Producer::new(&rig)).collect();
    std::thread::scope(|scope| {
        for producer in &producers {
            scope.spawn(|| {
                let home = rig.stream();
                let other = rig.stream();
                for round in 0..20 {
                    let column = import(&gpu, producer, home.id(), &numbers(&[round; 33]));
                    let also = column.clone();
                    let scope = std::thread::spawn(move || drop(also));
                    let found = column.values::<i32>().unwrap().unwrap().to_host(&other).unwrap();
                    assert_eq!(found, [round; 33]);
                    drop(column);
                    scope.join().unwrap();
                }
            });
        }
    });
    for producer in &producers {
        producer.releases.wait_for(20);
    }
    drop((gpu, producers));
    rig.assert_clean();
}
