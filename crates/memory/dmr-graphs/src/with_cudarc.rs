//! The part of the interface that names cudarc's types: the feature `cudarc`.

use cudarc::driver::CudaGraph;
use dmr_launch::Footprint;
use dmr_streams::DeviceContext;

use crate::Graph;

impl Graph {
    /// Takes over a graph of cudarc, as [`adopt_raw`](Self::adopt_raw) does.
    ///
    /// # Safety
    ///
    /// As [`capture`](Self::capture). The graph is of the context's device, and holds the only
    /// reference to its executable graph.
    pub unsafe fn adopt<C>(ctx: &C, graph: CudaGraph, footprint: Footprint) -> Self
    where
        C: DeviceContext + ?Sized,
    {
        let handle = graph.cu_graph_exec().cast();
        // SAFETY: the caller's obligations; the owner is the graph.
        unsafe { Self::adopt_raw(ctx, handle, AdoptedGraph(graph), footprint) }
    }
}

/// A graph of cudarc that is only kept, and dropped.
struct AdoptedGraph(#[allow(dead_code, reason = "it is dropped")] CudaGraph);

// SAFETY: a pair of handles, which any thread may destroy, and a stream, which can be sent.
unsafe impl Send for AdoptedGraph {}

// SAFETY: nothing is done with a reference to it.
unsafe impl Sync for AdoptedGraph {}
