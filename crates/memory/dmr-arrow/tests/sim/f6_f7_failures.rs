//! F6, F7: whichever driver call fails, an array is released once, and nothing is lost.

use dmr_arrow::{ArrowColumn, ColumnImportError, ExportedColumn};
use dmr_buffer::failures::take_drop_failures;
use dmr_core::DeviceMemoryResource;
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

use crate::support::consumer::assert_same;
use crate::support::{Gpu, Producer, Spec, taken};

const UNKNOWN: i32 = 999;

fn nested() -> Spec {
    let texts = Spec {
        format: "u".into(),
        length: 3,
        null_count: 1,
        buffers: vec![
            Some(vec![5]),
            Some([0, 2, 2, 5].iter().flat_map(|it: &i32| it.to_ne_bytes()).collect()),
            Some(b"abcde".to_vec()),
        ],
        ..Spec::default()
    };
    let numbers = Spec {
        format: "s".into(),
        length: 3,
        buffers: vec![None, Some(vec![1, 0, 2, 0, 3, 0])],
        ..Spec::default()
    };
    Spec {
        format: "+s".into(),
        length: 3,
        buffers: vec![None],
        children: vec![texts, numbers],
        ..Spec::default()
    }
}

/// Imports a column, again with the structs of the error if that has failed.
fn import(gpu: &Gpu, producer: &Producer, on: dmr_core::StreamId, spec: &Spec) -> ArrowColumn {
    let mut made = producer.make(spec);
    let (mut array, mut schema) = taken(&mut made.0, &mut made.1);
    for _ in 0..2 {
        // SAFETY: the structs are as the specification says.
        match unsafe { ArrowColumn::import(gpu, on, array, schema) } {
            Ok(column) => return column,
            Err(refused) => {
                let ColumnImportError { array: back, schema: of, .. } = *refused;
                assert!(!back.is_released() && !of.is_released());
                assert_eq!(producer.releases.arrays(), 0);
                array = back;
                schema = of;
            }
        }
    }
    panic!("only one driver call fails")
}

fn export(column: &ArrowColumn, gpu: &Gpu, on: dmr_core::StreamId) -> ExportedColumn {
    let export = || column.export(gpu, on);
    export().or_else(|_| export()).expect("only one driver call fails")
}

#[test]
fn a_column_whose_import_fails_at_any_step_is_released_once() {
    let spec = nested();
    let mut steps = 0;
    for failing in 1.. {
        let rig = Rig::simulated();
        let gpu = Gpu::new(&rig);
        let home = rig.stream();
        let other = rig.stream();
        let producer = Producer::new(&rig);
        let mut made = producer.make(&spec);
        let (array, schema) = taken(&mut made.0, &mut made.1);
        let before = rig.universe().calls().total();
        rig.universe().fail_call_number(failing, UNKNOWN);
        // SAFETY: the structs are as the specification says.
        let imported = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) };
        let calls = rig.universe().calls().total() - before;
        rig.universe().clear_faults();
        let imported = imported.or_else(|refused| {
            steps += 1;
            assert_eq!((producer.releases.arrays(), producer.releases.schemas()), (0, 0));
            let ColumnImportError { array, schema, .. } = *refused;
            // SAFETY: as above.
            unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }
        });
        let column = imported.unwrap();
        assert_same(&column, &spec, other.id());
        drop(column);
        producer.releases.wait_for(1);
        assert_eq!(producer.releases.schemas(), 3, "one for each column of the tree");
        drop((gpu, home, other, producer));
        rig.assert_clean();
        if calls < failing {
            break;
        }
    }
    assert!(steps >= 8, "{steps} imports were refused");
}

#[test]
fn memory_whose_export_or_release_fails_at_any_step_is_freed_once() {
    let spec = nested();
    let mut steps = 0;
    for failing in 1.. {
        let rig = Rig::simulated();
        let gpu = Gpu::new(&rig);
        let home = rig.stream();
        let producer = Producer::new(&rig);
        let column = import(&gpu, &producer, home.id(), &spec);
        let before = rig.universe().calls().total();
        rig.universe().fail_call_number(failing, UNKNOWN);
        let exported = export(&column, &gpu, home.id());
        drop(column);
        drop(exported);
        let calls = rig.universe().calls().total() - before;
        rig.universe().clear_faults();
        // cudarc keeps the error of the producer's event, whose destruction may have been failed.
        let _ = rig.device().context().check_err();
        // What could not be waited for is freed with the next export.
        let next = import(&gpu, &producer, home.id(), &spec);
        drop(export(&next, &gpu, home.id()));
        drop(next);
        // A buffer whose drop was refused is kept there.
        for failed in take_drop_failures() {
            failed.retry().expect("only one driver call fails");
        }
        producer.releases.wait_for(2);
        assert_eq!(gpu.resource().usage().outstanding(), 0);
        drop((gpu, home, producer));
        rig.assert_clean();
        if calls < failing {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 8, "{steps} calls were failed");
}

#[test]
fn structs_are_dropped_in_every_order() {
    let spec = nested();
    for order in orders() {
        let rig = Rig::simulated();
        let gpu = Gpu::new(&rig);
        let home = rig.stream();
        let producer = Producer::new(&rig);
        let column = import(&gpu, &producer, home.id(), &spec);
        let exported = export(&column, &gpu, home.id());
        let releases = producer.releases.clone();
        let mut parts: [Option<Box<dyn std::any::Any>>; 4] = [
            Some(Box::new(column)),
            Some(Box::new(exported)),
            Some(Box::new((gpu, home))),
            Some(Box::new(producer)),
        ];
        for part in order {
            drop(parts[part].take());
        }
        releases.wait_for(1);
        rig.assert_clean();
    }
}

/// Returns all orders of four.
fn orders() -> Vec<[usize; 4]> {
    let mut all = Vec::new();
    for number in 0..256 {
        let order = [number / 64, number / 16 % 4, number / 4 % 4, number % 4];
        if (0..4).all(|part| order.contains(&part)) {
            all.push(order);
        }
    }
    assert_eq!(all.len(), 24);
    all
}
