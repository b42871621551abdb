//! F6: each field that can be checked is, and the error has its name and the path to it.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use dmr_arrow::{ArrowColumn, ColumnError};
use dmr_testkit::Rig;

use crate::support::{DeviceArray, Gpu, Producer, Schema, Spec, taken};

fn numbers(format: &str, length: usize) -> Spec {
    Spec {
        format: format.into(),
        length,
        buffers: vec![None, Some(vec![0; 8 * length.max(1)])],
        ..Spec::default()
    }
}

fn of(format: &str, buffers: usize, children: Vec<Spec>) -> Spec {
    Spec {
        format: format.into(),
        length: 2,
        buffers: vec![None; buffers],
        children,
        ..Spec::default()
    }
}

/// A struct of numbers and of a list of numbers with a dictionary.
fn nested() -> Spec {
    let mut index = numbers("i", 4);
    index.dictionary = Some(Box::new(numbers("l", 5)));
    let mut list = of("+l", 2, vec![index]);
    list.buffers[1] = Some(vec![0; 12]);
    of("+s", 1, vec![numbers("g", 2), list])
}

#[track_caller]
fn refuse(spec: &Spec, expected: &str, change: impl FnOnce(&mut DeviceArray, &mut Schema)) {
    refuse_then(spec, expected, change, || ());
}

/// Checks that a changed column is refused, and takes the change back before it is released.
#[track_caller]
fn refuse_then(
    spec: &Spec,
    expected: &str,
    change: impl FnOnce(&mut DeviceArray, &mut Schema),
    restore: impl FnOnce(),
) {
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let producer = Producer::new(&rig);
    let (mut array, mut schema) = producer.make(spec);
    // What a change takes away is given back, for the release.
    // SAFETY: bytes of structs that are there.
    let kept = unsafe { (ptr::read(&array), ptr::read(&schema)) };
    change(&mut array, &mut schema);
    let (of, taken_schema) = taken(&mut array, &mut schema);
    // SAFETY: what is changed is refused before it is used.
    let refused = unsafe { ArrowColumn::import(&gpu, home.id(), of, taken_schema) };
    let refused = refused.expect_err(expected);
    let text = refused.error.to_string();
    let is_of_a_field = matches!(refused.error, ColumnError::Invalid { .. });
    let dmr_arrow::ColumnImportError { array, schema, .. } = *refused;
    std::mem::forget((array, schema));
    restore();
    let mut kept = kept;
    drop(taken(&mut kept.0, &mut kept.1));
    assert_eq!(producer.releases.arrays(), 1);
    assert!(text.starts_with(expected) && is_of_a_field, "{text}");
}

#[test]
fn numbers_of_an_array() {
    let spec = numbers("i", 5);
    refuse(&spec, "ArrowArray.length is -1: it must be 0 or more", |it, _| it.array.length = -1);
    refuse(&spec, "ArrowArray.offset is -7", |it, _| it.array.offset = -7);
    refuse(&spec, "ArrowArray.offset is 9223372036854775807", |it, _| it.array.offset = i64::MAX);
    refuse(&spec, "ArrowArray.offset is 0: it must be smaller", |it, _| it.array.length = i64::MAX);
    refuse(&spec, "ArrowArray.null_count is 6", |it, _| it.array.null_count = 6);
    refuse(&spec, "ArrowArray.null_count is -2", |it, _| it.array.null_count = -2);
    refuse(&spec, "ArrowArray.n_buffers is 3: it must be 2", |it, _| it.array.n_buffers = 3);
    refuse(&spec, "ArrowArray.n_children is 1: it must be 0", |it, _| it.array.n_children = 1);
    refuse(&spec, "ArrowSchema.n_children is -1: it must be 0", |_, of| of.n_children = -1);
    refuse(&numbers("d:76,1,256", 0), "ArrowArray.length is too large", |it, _| {
        it.array.length = i64::MAX / 16;
    });
}

#[test]
fn pointers_of_an_array() {
    let spec = numbers("i", 5);
    refuse(&spec, "ArrowArray.buffers is null: it must have 2", |it, _| {
        it.array.buffers = ptr::null_mut();
    });
    // SAFETY: the array has two buffers.
    let set = |it: &mut DeviceArray, index: usize, at: usize| unsafe {
        it.array.buffers.add(index).write(ptr::without_provenance::<c_void>(at));
    };
    refuse(&spec, "ArrowArray.buffers[1] is null", |it, _| set(it, 1, 0));
    refuse(&spec, "ArrowArray.buffers[1] is 0xff", |it, _| set(it, 1, usize::MAX - 3));
    // Memory that is not there, or not the driver's.
    refuse(&spec, "ArrowArray.buffers[1] 20 bytes at 0x10 cannot be adopted", |it, _| {
        set(it, 1, 16)
    });
    refuse(&spec, "ArrowArray.buffers[0] is null, but some rows are null", |it, _| {
        it.array.null_count = 1;
    });
    refuse(&nested(), "ArrowArray.children[1].children[0].buffers[1] is null", |it, _| {
        // SAFETY: the children are there.
        unsafe {
            let list = it.array.children.add(1).read();
            let index = (*list).children.read();
            (*index).buffers.add(1).write(ptr::null());
        }
    });
}

#[test]
fn the_device() {
    let spec = numbers("i", 5);
    refuse(&spec, "ArrowDeviceArray.device_id is 77", |it, _| it.device_id = 77);
    refuse(&spec, "ArrowDeviceArray.device_type is 1", |it, _| it.device_type = 1);
    refuse(&spec, "ArrowDeviceArray.device_type is 10", |it, _| it.device_type = 10);
    refuse(&spec, "ArrowDeviceArray.reserved is not zero", |it, _| it.reserved[2] = 1);
    let mut none: *mut c_void = ptr::null_mut();
    let place = &raw mut none;
    refuse(&spec, "ArrowDeviceArray.sync_event is the address of a null event", |it, _| {
        it.sync_event = place.cast();
    });
}

#[test]
fn types_and_texts() {
    let spec = numbers("i", 5);
    refuse(&spec, "ArrowSchema.format is null", |_, of| of.format = ptr::null());
    refuse(&spec, "ArrowSchema.format is \"what\"", |_, of| of.format = c"what".as_ptr());
    refuse(&spec, "ArrowSchema.format is no UTF-8", |_, of| of.format = c"\xff".as_ptr());
    refuse(&spec, "ArrowSchema.name is no UTF-8", |_, of| of.name = c"\xff".as_ptr());
    let negative = [-1_i32];
    refuse(&spec, "ArrowSchema.metadata has the length -1", |_, of| {
        of.metadata = negative.as_ptr().cast();
    });
    let long = [1_i32, 1 << 30];
    refuse(&spec, "ArrowSchema.metadata is too long", |_, of| of.metadata = long.as_ptr().cast());
}

#[test]
fn released_structs_and_trees() {
    let spec = nested();
    refuse(&spec, "ArrowSchema.release is null", |_, of| of.release = None);
    refuse(&spec, "ArrowArray.release is null", |it, _| it.array.release = None);
    // SAFETY: the children are there, and what is taken away is not needed for the release.
    unsafe {
        refuse(&spec, "ArrowArray.children is null: it must have 2", |it, _| {
            it.array.children = ptr::null_mut();
        });
        refuse(&spec, "ArrowSchema.children is null", |_, of| of.children = ptr::null_mut());
        refuse(&spec, "ArrowSchema.dictionary is null, but the array has one", |it, _| {
            it.array.dictionary = it.array.children.read();
        });
        refuse(&spec, "ArrowArray.dictionary is null, but the schema has one", |_, of| {
            of.dictionary = of.children.read();
        });
        // As a library that has moved a child out.
        let moved = Cell::new(None);
        let move_out = |it: &mut DeviceArray, _: &mut Schema| {
            let child = it.array.children.add(1).read();
            moved.set((*child).release.take().map(|release| (child, release)));
        };
        refuse_then(&spec, "ArrowArray.children[1].release is null", move_out, || {
            let (child, release) = moved.take().unwrap();
            (*child).release = Some(release);
        });
    }
}

#[test]
fn children_of_each_type() {
    let short = |format: &str, least: usize| {
        let text = format!("ArrowArray.children[0].length is 1: it must be {least}");
        (of(format, 1, vec![numbers("i", 1)]), text)
    };
    for (spec, expected) in [short("+s", 2), short("+w:3", 6)] {
        refuse(&spec, &expected, |_, _| {});
    }
    let mut union = of("+us:0", 1, vec![numbers("i", 1)]);
    union.buffers[0] = Some(vec![0; 2]);
    refuse(&union, "ArrowArray.children[0].length is 1: it must be 2", |_, _| {});
    refuse(&union, "ArrowArray.null_count is 1: it must be 0", |it, _| it.array.null_count = 1);
    let mut map = of("+m", 2, vec![numbers("i", 1)]);
    map.buffers[1] = Some(vec![0; 12]);
    refuse(&map, "ArrowArray.children[0] must be a struct of a key and a value", |_, _| {});
    let runs = |ends: &str, values| of("+r", 0, vec![numbers(ends, 2), numbers("i", values)]);
    refuse(&runs("C", 2), "ArrowArray.children[0] must be of the type s, i or l", |_, _| {});
    refuse(&runs("i", 1), "ArrowArray.children[1] must have a value for each run", |_, _| {});
    let mut words = numbers("g", 2);
    words.dictionary = Some(Box::new(numbers("i", 1)));
    refuse(&words, "ArrowArray.dictionary is there, but indices of the type g", |_, _| {});
}

#[test]
fn sizes_that_are_in_device_memory() {
    let mut text = of("u", 3, vec![]);
    text.buffers[1] = Some([0, 1, -5].iter().flat_map(|it: &i32| it.to_ne_bytes()).collect());
    text.buffers[2] = Some(vec![1]);
    refuse(&text, "ArrowArray.buffers[2] has -5 bytes", |_, _| {});
    text.buffers[1] = Some([0, 1, 5].iter().flat_map(|it: &i32| it.to_ne_bytes()).collect());
    text.buffers[2] = None;
    refuse(&text, "ArrowArray.buffers[2] is null: it must have 5 bytes", |_, _| {});
    let mut views = of("vu", 3, vec![]);
    views.buffers = vec![None, Some(vec![0; 32]), Some(vec![1; 9])];
    refuse(&views, "ArrowArray.buffers[3] is null: it must have the sizes", |it, _| {
        // SAFETY: the array has four buffers.
        unsafe { it.array.buffers.add(3).write(ptr::null()) };
    });
}

#[test]
fn a_tree_that_is_too_deep() {
    let mut spec = numbers("i", 2);
    for _ in 0..70 {
        spec = of("+s", 1, vec![spec]);
    }
    let path = ".children[0]".repeat(65);
    refuse(&spec, &format!("ArrowSchema{path}.children is too deep"), |_, _| {});
}
