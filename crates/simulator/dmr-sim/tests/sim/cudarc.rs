//! cudarc's own safe interface, unmodified, on the simulated driver; and the race that its slices
//! hide.

use std::sync::Arc;

use crate::support::gpu;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use dmr_sim::{Footprint, ReportKind, Universe};

fn context() -> (Universe, Arc<CudaContext>) {
    let universe = Universe::new().unwrap();
    let context = CudaContext::new(universe.ordinal(0)).unwrap();
    (universe, context)
}

fn assert_clean(universe: &Universe) {
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn slices_carry_data_there_and_back() {
    let (universe, context) = context();
    for stream in [context.default_stream(), context.new_stream().unwrap()] {
        let host: Vec<f32> = (0..1000u16).map(f32::from).collect();
        let device = stream.clone_htod(&host).unwrap();
        let copied = stream.clone_dtod(&device).unwrap();
        assert_eq!(stream.clone_dtoh(&copied).unwrap(), host);
        let zeros = stream.alloc_zeros::<u32>(77).unwrap();
        assert_eq!(stream.clone_dtoh(&zeros).unwrap(), [0; 77]);
    }
    drop(context);
    assert_clean(&universe);
}

#[test]
fn views_name_parts_of_a_slice() {
    let (universe, context) = context();
    let stream = context.new_stream().unwrap();
    let mut device = stream.alloc_zeros::<u8>(10).unwrap();
    stream.memcpy_htod(&[1, 2, 3], &mut device.slice_mut(4..7)).unwrap();
    let got = stream.clone_dtoh(&device.slice(3..8)).unwrap();
    assert_eq!(got, [0, 1, 2, 3, 0]);
    drop(device);
    assert_clean(&universe);
}

#[test]
fn a_registered_kernel_is_launched_like_a_compiled_one() {
    let (universe, context) = context();
    universe.register_kernel(
        "scale",
        |arguments| {
            let bytes = u64::from(arguments.u32(2)) * 4;
            Footprint::new().reads(arguments.u64(0), bytes).writes(arguments.u64(0), bytes)
        },
        |arguments, memory| {
            for index in 0..u64::from(arguments.u32(2)) {
                let at = arguments.u64(0) + 4 * index;
                let mut word = [0; 4];
                memory.read(at, &mut word);
                let scaled = f32::from_le_bytes(word) * arguments.f32(1);
                memory.write(at, &scaled.to_le_bytes());
            }
        },
    );
    let stream = context.new_stream().unwrap();
    let module =
        context.load_module(Ptx::from_src(gpu::ptx("scale", &["u64", "f32", "u32"]))).unwrap();
    let scale = module.load_function("scale").unwrap();
    let mut data = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
    let factor = 2.5f32;
    let count = 3u32;
    let mut builder = stream.launch_builder(&scale);
    builder.arg(&mut data).arg(&factor).arg(&count);
    launch(builder);
    assert_eq!(stream.clone_dtoh(&data).unwrap(), [2.5, 5.0, 7.5]);
    drop(data);
    assert_clean(&universe);
}

#[allow(unsafe_code)]
fn launch(mut builder: cudarc::driver::LaunchArgs<'_>) {
    // SAFETY: the arguments match the parameters of the PTX, and the closure stays inside the
    // slice.
    unsafe { builder.launch(LaunchConfig::for_num_elems(3)) }.unwrap();
}

#[test]
fn cudarc_orders_one_reader_and_a_writer_on_two_streams() {
    let (universe, context) = context();
    let reader = context.new_stream().unwrap();
    let writer = context.new_stream().unwrap();
    let mut data = reader.clone_htod(&[1u8; 64]).unwrap();
    let mut copy = reader.alloc_zeros::<u8>(64).unwrap();
    reader.memcpy_dtod(&data, &mut copy).unwrap();
    writer.memset_zeros(&mut data).unwrap();
    assert_eq!(reader.clone_dtoh(&copy).unwrap(), [1; 64]);
    drop((data, copy));
    assert_clean(&universe);
}

/// One read event a slice, recorded anew by each reader: the writer waits for the last reader only.
#[test]
fn cudarcs_slice_loses_the_first_reader() {
    let (universe, context) = context();
    let streams = [(); 3].map(|()| context.new_stream().unwrap());
    let [slow, quick, writer] = &streams;
    let mut data = slow.clone_htod(&[1u8; 64]).unwrap();
    let mut first = slow.alloc_zeros::<u8>(64).unwrap();
    let mut second = quick.alloc_zeros::<u8>(64).unwrap();
    {
        let _label = dmr_sim::label("the first reader");
        slow.memcpy_dtod(&data, &mut first).unwrap();
    }
    quick.memcpy_dtod(&data, &mut second).unwrap();
    writer.memset_zeros(&mut data).unwrap();
    let reports = universe.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind, ReportKind::WriteAfterRead);
    let lost = reports[0].first.as_ref().unwrap();
    assert_eq!(lost.label.as_deref(), Some("the first reader"));
}
