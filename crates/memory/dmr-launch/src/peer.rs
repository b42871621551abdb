//! Memory of another stream pool that a launch uses, such as memory of another device that it
//! accesses as a peer.

use dmr_core::{Access, BlockUse, StreamId};
use dmr_streams::{DeviceContext, KernelArg, MemoryOrigin, TrackedMemory};

use crate::LaunchRecorder;
use crate::peer_uses::PeerUses;

/// Memory of another device, or of another stream pool of the same device.
impl LaunchRecorder {
    /// Records that the launch reads memory of another stream pool: `owner` is the context of the
    /// memory, and `stream` a stream of its pool.
    ///
    /// The launch comes after the work that was submitted to `stream` so far and after all uses
    /// that a read there must come after. When the launch is finished, `stream` waits for it, and
    /// later uses of the memory, on any stream of its pool, are ordered after the launch.
    ///
    /// The kernel accesses the memory over the bus: the launch's device needs peer access, which
    /// the runtime enables (`DeviceRuntime::enable_peer_access`). A copy needs none.
    pub fn read_peer(
        &mut self,
        memory: &(impl TrackedMemory + ?Sized),
        owner: &(impl DeviceContext + ?Sized),
        stream: impl Into<StreamId>,
    ) -> KernelArg {
        self.record_peer(memory, Access::Read, owner, stream.into())
    }

    /// Records that the launch overwrites memory of another stream pool, as
    /// [`read_peer`](Self::read_peer) records a read.
    pub fn write_peer(
        &mut self,
        memory: &mut (impl TrackedMemory + ?Sized),
        owner: &(impl DeviceContext + ?Sized),
        stream: impl Into<StreamId>,
    ) -> KernelArg {
        self.record_peer(memory, Access::Write, owner, stream.into())
    }

    /// Records that the launch reads and writes memory of another stream pool, as
    /// [`read_peer`](Self::read_peer) records a read.
    pub fn read_write_peer(
        &mut self,
        memory: &mut (impl TrackedMemory + ?Sized),
        owner: &(impl DeviceContext + ?Sized),
        stream: impl Into<StreamId>,
    ) -> KernelArg {
        self.record_peer(memory, Access::ReadWrite, owner, stream.into())
    }

    fn record_peer(
        &mut self,
        memory: &(impl TrackedMemory + ?Sized),
        access: Access,
        owner: &(impl DeviceContext + ?Sized),
        stream: StreamId,
    ) -> KernelArg {
        self.uses.reject_read_only(memory, access, None);
        match memory.origin() {
            MemoryOrigin::Block(block) => {
                let used = BlockUse::of_bytes(block, access, memory.byte_range());
                PeerUses::add(&mut self.uses.peers, used, owner, stream);
            }
            MemoryOrigin::Empty => {}
            MemoryOrigin::External { name } => self.uses.skip_or_reject(name, None),
            _ => self.uses.skip_or_reject("pinned memory of another stream pool", None),
        }
        KernelArg::of(memory)
    }
}
