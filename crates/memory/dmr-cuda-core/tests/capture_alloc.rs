//! A graph of cuda-async that allocates can be launched once, until its output is dropped.
#![allow(missing_docs)]
use std::sync::Arc;
use std::time::Duration;

use cuda_async::cuda_graph::CudaGraph;
use cuda_async::device_box::DeviceBox;
use cuda_async::device_operation::{DeviceOp, value, with_context};

#[test]
fn a_graph_that_allocates() {
    let context = cuda_core::Context::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let bytes = 1 << 20;
    let op = with_context(move |ctx| {
        // SAFETY: ordered on the stream.
        let ptr = unsafe { ctx.alloc_async(bytes) }.unwrap();
        let stream = Arc::clone(ctx.get_cuda_stream());
        // SAFETY: it was just allocated there.
        value(unsafe { DeviceBox::<[u8]>::from_raw_parts(ptr, bytes, stream) })
    });
    let mut graph = CudaGraph::capture(Arc::clone(&stream), op).unwrap();
    let output = graph.take_output().unwrap();
    let launch = || graph.launch().sync_on(&stream);
    launch().unwrap();
    // The output is the memory of the first launch: the driver refuses a second one.
    assert!(launch().is_err());
    drop(output);
    // cuda-core's worker frees it.
    std::thread::sleep(Duration::from_millis(20));
    launch().unwrap();
    assert!(launch().is_err());
}
