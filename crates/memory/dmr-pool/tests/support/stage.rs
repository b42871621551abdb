//! A pool and some streams, for programs by hand. Work runs as late as it may.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceResult,
    StreamId, UseTokens, UseTrackingExt,
};
use dmr_pool::PoolConfig;
use dmr_sim::{Policy, Universe};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

use super::witness::{Reporter, Witness};
use super::{MIB, Pool, Upstream, pool_with, rig, trim_completely};

pub(crate) struct Stage {
    pub(crate) pool: Pool,
    leases: [StreamLease; 3],
    /// The observer of the pool; without one, blocks are reported to the simulator here.
    witness: Option<Arc<Witness>>,
    pub(crate) rig: Rig,
}

/// All the memory of a pool that [`tight`] has made.
pub(crate) const ALL: usize = 2 << 20;

/// No more than [`ALL`].
pub(crate) fn tight() -> PoolConfig {
    PoolConfig::fast().with_growth(2 * MIB).with_maximum_size(2 * MIB)
}

impl Stage {
    pub(crate) fn new(upstream: Upstream, config: PoolConfig) -> Self {
        Self::on(rig(Policy::Lazy, 0, 256 * MIB), upstream, config)
    }

    /// One whose pool is observed.
    pub(crate) fn observed(upstream: Upstream, config: PoolConfig) -> Self {
        let rig = rig(Policy::Lazy, 0, 256 * MIB);
        let witness = Witness::new(&rig);
        Self::with(rig, upstream, config, Some(witness))
    }

    pub(crate) fn on(rig: Rig, upstream: Upstream, config: PoolConfig) -> Self {
        Self::with(rig, upstream, config, None)
    }

    fn with(
        rig: Rig,
        upstream: Upstream,
        config: PoolConfig,
        witness: Option<Arc<Witness>>,
    ) -> Self {
        let observer = witness.clone().map(|witness| witness as _);
        let pool = pool_with(upstream, &rig, config, observer);
        let leases = [rig.stream(), rig.stream(), rig.stream()];
        let stage = Self { pool, leases, witness, rig };
        // The kernels are loaded, and upstream has made what it makes once.
        let [a, ..] = stage.streams();
        let block = stage.allocate(a, 4096);
        stage.fill(a, &block, 1);
        stage.check(a, &block, 1);
        stage.free(block);
        trim_completely(&stage.rig, &stage.pool);
        stage
    }

    pub(crate) fn universe(&self) -> &Universe {
        self.rig.universe()
    }

    /// Drops the pool of a program with planted faults, and reads what is found then.
    pub(crate) fn end_with_findings(self) {
        let Self { pool, leases, rig, .. } = self;
        drop((pool, leases));
        let _ = rig.universe().reports();
    }

    pub(crate) fn streams(&self) -> [StreamId; 3] {
        [0, 1, 2].map(|index| self.leases[index].id())
    }

    pub(crate) fn try_allocate(
        &self,
        stream: StreamId,
        bytes: usize,
    ) -> ResourceResult<DeviceBlock> {
        let block = self.pool.allocate(bytes, stream, AllocTag::new("block"))?;
        self.reporter().allocated(block.ptr(), bytes);
        Ok(block)
    }

    pub(crate) fn allocate(&self, stream: StreamId, bytes: usize) -> DeviceBlock {
        self.try_allocate(stream, bytes).expect("memory")
    }

    pub(crate) fn free(&self, block: DeviceBlock) {
        self.reporter().freed(block.ptr());
        self.free_in_window(block);
    }

    /// Work of an open window may follow.
    pub(crate) fn free_in_window(&self, block: DeviceBlock) {
        self.pool.deallocate(block).expect("a free makes no driver call that matters");
    }

    /// Unrecorded.
    pub(crate) fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) {
        let pattern = u32::from_le_bytes([byte; 4]);
        self.rig.ops().fill_pattern(block, 0..block.bytes(), pattern, stream).unwrap();
        self.reporter().works(stream, block.ptr());
    }

    /// Unrecorded.
    pub(crate) fn check(&self, stream: StreamId, block: &DeviceBlock, byte: u8) {
        let pattern = u32::from_le_bytes([byte; 4]);
        self.rig.ops().check_pattern(block, 0..block.bytes(), pattern, stream, 0).unwrap();
        self.reporter().works(stream, block.ptr());
    }

    fn reporter(&self) -> Reporter<'_> {
        Reporter { rig: &self.rig, witness: self.witness.as_deref() }
    }

    /// Returns the observer of the pool.
    pub(crate) fn witness(&self) -> &Witness {
        self.witness.as_ref().expect("the pool is observed")
    }

    pub(crate) fn open(&self, stream: StreamId, block: &DeviceBlock, access: Access) -> UseTokens {
        self.pool.prepare_uses(&[BlockUse::new(block.id(), access)], stream).unwrap()
    }

    pub(crate) fn write(&self, stream: StreamId, block: &DeviceBlock, byte: u8) {
        let tokens = self.open(stream, block, Access::Write);
        self.fill(stream, block, byte);
        self.pool.finish_uses(tokens).unwrap();
    }

    pub(crate) fn read(&self, stream: StreamId, block: &DeviceBlock, byte: u8) {
        let tokens = self.open(stream, block, Access::Read);
        self.check(stream, block, byte);
        self.pool.finish_uses(tokens).unwrap();
    }

    /// Allocates, fills without recording, and deallocates.
    pub(crate) fn pass(&self, stream: StreamId, bytes: usize, byte: u8) -> u64 {
        let block = self.allocate(stream, bytes);
        let at = block.ptr();
        self.fill(stream, &block, byte);
        self.check(stream, &block, byte);
        self.free(block);
        at
    }

    /// Returns the number of calls of a driver function that `act` makes.
    pub(crate) fn calls(&self, call: &str, act: impl FnOnce()) -> u64 {
        let before = self.universe().calls().count(call);
        act();
        self.universe().calls().count(call) - before
    }

    /// Everything was in order, and goes back.
    pub(crate) fn end(self) {
        assert_eq!(self.pool.usage().outstanding(), 0);
        trim_completely(&self.rig, &self.pool);
        assert_eq!(self.pool.usage().reserved, 0);
        let Self { pool, leases, witness, rig } = self;
        drop((pool, leases));
        if let Some(witness) = witness {
            witness.assert_settled();
        }
        rig.assert_clean();
    }
}
