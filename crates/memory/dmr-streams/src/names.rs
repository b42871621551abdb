//! Names of the pool's streams, for the timeline of Nsight Systems.

use cudarc::driver::CudaStream;

/// Names the stream of a slot: `dmr stream 3`.
#[cfg(feature = "nvtx")]
pub(crate) fn name_stream(stream: &CudaStream, slot: usize) {
    let name = format!("dmr stream {slot}");
    // SAFETY: the stream is alive for as long as it is borrowed.
    unsafe { dmr_nvtx::name_stream(stream.cu_stream().cast(), &name) };
}

#[cfg(not(feature = "nvtx"))]
pub(crate) fn name_stream(_: &CudaStream, _: usize) {}
