//! A replay that uses memory beside that of its graph.

use dmr_core::{ResourceError, StreamId};
use dmr_launch::{LaunchError, LaunchRecorder};
use dmr_streams::{KernelArg, TrackedMemory};

use crate::Graph;

/// One launch of a graph that uses memory beside what its capture has recorded: memory whose
/// addresses the captured work reads from a buffer, such as the pages of a cache.
///
/// From [`Graph::replay`]. Recording is as with a [`LaunchRecorder`]: it takes a snapshot, and the
/// replay is one use of all that the capture and the replay have recorded.
#[derive(Debug)]
#[must_use = "a replay does nothing until `launch`"]
pub struct Replay<'g> {
    graph: &'g Graph,
    // Not lent: it could be exchanged for one without the graph's uses.
    recorder: LaunchRecorder,
}

impl<'g> Replay<'g> {
    pub(crate) fn new(graph: &'g Graph, stream: StreamId) -> Self {
        Self { graph, recorder: graph.footprint.recorder(stream) }
    }

    /// Records that this replay reads this memory.
    pub fn read<M: TrackedMemory + ?Sized>(&mut self, memory: &M) -> KernelArg {
        self.recorder.read(memory)
    }

    /// Records that this replay overwrites this memory.
    pub fn write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.recorder.write(memory)
    }

    /// Records that this replay reads and writes this memory.
    pub fn read_write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.recorder.read_write(memory)
    }

    /// Launches the graph.
    ///
    /// # Errors
    ///
    /// As [`Graph::launch`].
    pub fn launch(self) -> Result<(), LaunchError<Box<ResourceError>>> {
        let Self { graph, recorder } = self;
        let has_uses = recorder.recorded_count() > 0;
        recorder.launch(&graph.context, |stream| graph.enqueue(stream, has_uses))
    }
}
