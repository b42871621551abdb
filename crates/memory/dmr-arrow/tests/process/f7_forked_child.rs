//! F7: in a forked child a release does nothing, and reaches no driver.

use dmr_arrow::{ArrowColumn, ExportedColumn};
use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_streams::DeviceContext;
use dmr_testkit::{Rig, exit_code};

use crate::support::{Gpu, Producer, Spec, taken};

#[test]
fn structs_that_are_dropped_in_a_forked_child_release_nothing() {
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let producer = Producer::new(&rig);
    let spec = Spec {
        format: "C".into(),
        length: 4,
        buffers: vec![None, Some(vec![9; 4])],
        ..Spec::default()
    };
    let mut made = producer.make(&spec);
    let (array, schema) = taken(&mut made.0, &mut made.1);
    // SAFETY: the structs are as the specification says.
    let column = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }.unwrap();
    let values = DeviceBuffer::<u8>::zeroed(&gpu, &home, 64).unwrap();
    let ExportedColumn { array, .. } = ArrowColumn::of("x", values).export(&gpu, &home).unwrap();
    // SAFETY: the child makes no call that needs another thread, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((array, column));
        let calls = dmr_sim::calls_of_forked_child();
        let is_quiet = calls == 0 && producer.releases.arrays() == 0;
        // SAFETY: ends the child.
        unsafe { libc::_exit(if is_quiet { 0 } else { 1 }) };
    }
    assert_eq!(exit_code(child), Some(0));
    assert_eq!(gpu.resource().usage().live, 64);
    drop((array, column));
    assert_eq!(gpu.resource().usage().live, 0);
    producer.releases.wait_for(1);
    drop((gpu, home, producer));
    rig.assert_clean();
}
