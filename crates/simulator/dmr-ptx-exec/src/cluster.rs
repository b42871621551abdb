//! Clusters of blocks: their barrier, and accesses of one block to the shared memory of another.
//!
//! An address of shared memory has the rank of its block plus one in bits 24 to 31, or zero for the
//! block of the thread. Races on the shared memory of another block are not checked.

use dmr_ptx_arith::{Lanes, Mask, lanes_of};

use super::block::{BlockState, ThreadBlock};
use super::code::{Op, Reg, Value};
use super::fault::FaultKind;
use super::interpreter::{Flow, Interpreter, Stop, wait};
use super::order::Row;
use super::warp::{LaneGroup, State, Warp};

/// The first address of shared memory that has the rank of a block.
pub(super) const RANKED: u64 = 1 << RANK_BITS;
const RANK_BITS: u32 = 24;
/// The bits of a rank plus one.
const RANK: u64 = 0xff;

/// The largest number of blocks of a cluster.
pub(super) const MOST_BLOCKS: u64 = 16;

/// A decoded instruction of clusters.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClusterInst {
    /// `barrier.cluster.arrive`; true if it releases.
    Arrive(bool),
    /// `barrier.cluster.wait`
    Wait,
    /// `mapa`: the address of the same place in the block of a rank.
    Map { dst: Reg, src: Value, rank: Value },
    /// `getctarank`: the rank of the block of an address.
    Rank { dst: Reg, src: Value },
}

/// The part of a block in the barrier of its cluster, by warps.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The lanes that have arrived.
    arrived: Vec<Mask>,
    /// The lanes whose arrival has completed, and that have not waited since.
    completed: Vec<Mask>,
    /// The row of the warps that have arrived, and the row when the barrier last completed.
    seen: Row,
    acquired: Row,
    /// True if a warp does something between its arrival and its wait.
    is_split: bool,
}

/// The cluster of the block that runs.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    /// The rank of the block.
    pub(super) rank: usize,
    /// The blocks of the cluster by their ranks; that of the block that runs is empty.
    pub(super) blocks: Vec<BlockState>,
}

impl Interpreter<'_> {
    pub(super) fn cluster_inst(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        inst: &ClusterInst,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        let number = warp.number as usize;
        match inst {
            ClusterInst::Arrive(releases) => {
                let arrivals = &mut block.cluster_arrivals;
                arrivals.reserve(number);
                let twice = mask & (arrivals.arrived[number] | arrivals.completed[number]);
                if twice != 0 {
                    let message = "the thread arrives at the barrier of the cluster again before it has waited";
                    return Err(Stop::invalid(message, twice));
                }
                arrivals.arrived[number] |= mask;
                let next = self.code.insts.get(self.pc as usize + 1).map(|inst| &inst.op);
                arrivals.is_split |= !matches!(next, Some(Op::Cluster(ClusterInst::Wait)));
                block.order.arrive(number, &mut arrivals.seen);
                if let Some(races) = &mut self.races {
                    races.fence(block.number as u32);
                }
                if *releases {
                    self.fence(block, warp, super::global::Scope::Cluster);
                }
            }
            ClusterInst::Wait => {
                warp.skip_others(group, mask);
                let arrivals = &mut block.cluster_arrivals;
                arrivals.reserve(number);
                let missing = mask & !(arrivals.arrived[number] | arrivals.completed[number]);
                if missing != 0 {
                    let message =
                        "the thread waits at the barrier of the cluster without an arrival";
                    return Err(Stop::invalid(message, missing));
                }
                if mask & !arrivals.completed[number] != 0 {
                    return Ok(wait(group, State::Cluster));
                }
                arrivals.completed[number] &= !mask;
                block.order.acquire(number, &arrivals.acquired);
                group.pc += 1;
                return Ok(Flow::Choose);
            }
            ClusterInst::Map { dst, src, rank } => {
                let ranks = *self.value(warp, group.base, *rank);
                let of = *self.value(warp, group.base, *src);
                let blocks = self.cluster.blocks.len().max(1) as u64;
                let bad = |&lane: &usize| ranks[lane] & 0xffff_ffff >= blocks;
                if let Some(lane) = lanes_of(mask).find(bad) {
                    let message = format!("rank {} in a cluster of {blocks} blocks", ranks[lane]);
                    return Err(Stop::new(FaultKind::Invalid(message), lane));
                }
                let place = |lane: usize| {
                    of[lane] & !(RANK << RANK_BITS) | ((ranks[lane] & RANK) + 1) << RANK_BITS
                };
                let value: Lanes = std::array::from_fn(place);
                warp.write(group.base, *dst, mask, &value);
            }
            ClusterInst::Rank { dst, src } => {
                let own = self.cluster.rank as u64 + 1;
                let rank = |address: u64| match address >> RANK_BITS & RANK {
                    0 => own - 1,
                    rank => rank - 1,
                };
                let value = self.value(warp, group.base, *src).map(rank);
                warp.write(group.base, *dst, mask, &value);
            }
        }
        Ok(Flow::Next)
    }

    /// Returns an address of shared memory without the rank, if that is the block's own.
    pub(super) fn own_address(&self, address: u64) -> u64 {
        let is_own = address >> RANK_BITS == self.cluster.rank as u64 + 1;
        if is_own { address & (RANKED - 1) } else { address }
    }

    /// Returns the addresses of the same place in the blocks of a mask.
    pub(super) fn in_blocks(&self, address: u64, ranks: u64) -> impl Iterator<Item = u64> + use<> {
        let own = self.cluster.rank as u64;
        let offset = self.own_address(address) & (RANKED - 1);
        let ranked =
            move |rank| if rank == own { offset } else { offset | (rank + 1) << RANK_BITS };
        (0..16).filter(move |rank| ranks >> rank & 1 != 0).map(ranked)
    }

    /// Calls `access` with the block whose shared memory an address is in, and with the offset
    /// there; an address beyond the cluster is out of bounds.
    pub(super) fn in_block<R: Default>(
        &mut self,
        block: &mut BlockState,
        place: (u64, usize),
        access: impl FnOnce(&mut Self, &mut BlockState, u64) -> Result<R, Box<Stop>>,
    ) -> Result<R, Box<Stop>> {
        let (address, lane) = place;
        let rank = (address >> RANK_BITS) as usize;
        let offset = address & (RANKED - 1);
        if rank == 0 || rank == self.cluster.rank + 1 {
            return access(self, block, offset);
        }
        let Some(block) = self.cluster.blocks.get_mut(rank - 1) else {
            if !self.checks.out_of_bounds {
                return Ok(R::default());
            }
            let message = format!("an address of shared memory beyond the cluster: {address:#x}");
            return Err(Stop::new(FaultKind::Invalid(message), lane));
        };
        let mut other = std::mem::take(block);
        let shadow = other.shadow.take();
        let result = access(self, &mut other, offset);
        other.shadow = shadow;
        self.cluster.blocks[rank - 1] = other;
        result
    }
}

impl Arrivals {
    /// Forgets all arrivals.
    pub(super) fn restart(&mut self) {
        self.arrived.fill(0);
        self.completed.fill(0);
        self.seen.clear();
        self.acquired.clear();
        self.is_split = false;
    }

    fn reserve(&mut self, warp: usize) {
        let warps = self.arrived.len().max(warp + 1);
        self.arrived.resize(warps, 0);
        self.completed.resize(warps, 0);
    }

    fn arrived(&self, warp: u32) -> Mask {
        self.arrived.get(warp as usize).copied().unwrap_or(0)
    }
}

/// Completes the barrier of a cluster if all its threads that run have arrived, and returns whether
/// it did.
pub(super) fn complete(interpreter: &mut Interpreter<'_>, blocks: &mut [ThreadBlock]) -> bool {
    let arrivals =
        |block: &ThreadBlock, warp: &Warp| block.state.cluster_arrivals.arrived(warp.number);
    let mut warps =
        blocks.iter().flat_map(|block| block.warps.iter().map(move |warp| (block, warp)));
    let is_used = warps.clone().any(|(block, warp)| arrivals(block, warp) != 0);
    if !is_used || !warps.all(|(block, warp)| warp.live & !arrivals(block, warp) == 0) {
        return false;
    }
    if let Some(races) = &mut interpreter.races {
        // Threads that have exited have not arrived.
        let has_exited =
            |block: &&ThreadBlock| block.warps.iter().any(|warp| warp.live != warp.lanes);
        blocks.iter().filter(has_exited).for_each(|block| races.fence(block.state.number as u32));
        blocks.iter().for_each(|block| races.acquire(block.state.number as u32));
    }
    for block in blocks {
        let BlockState { order, cluster_arrivals: arrivals, .. } = &mut block.state;
        let mut seen = std::mem::take(&mut arrivals.seen);
        for warp in block.warps.iter().filter(|warp| warp.live == 0) {
            order.arrive(warp.number as usize, &mut seen);
        }
        if !std::mem::take(&mut arrivals.is_split) {
            order.block();
            seen.clear();
        }
        arrivals.acquired = seen;
        for warp in &mut block.warps {
            arrivals.reserve(warp.number as usize);
            let arrived = std::mem::take(&mut arrivals.arrived[warp.number as usize]);
            let completed = &mut arrivals.completed[warp.number as usize];
            *completed |= arrived;
            for group in &mut warp.groups {
                if matches!(group.state, State::Cluster) && group.mask & !*completed == 0 {
                    *completed &= !group.mask;
                    order.acquire(warp.number as usize, &arrivals.acquired);
                    group.state = State::Ready;
                    group.pc += 1;
                }
            }
            warp.merge(LaneGroup::is_ready);
        }
    }
    true
}

/// Moves the other blocks of a cluster to `interpreter`, where the block of this rank reaches them,
/// or back.
pub(super) fn exchange(interpreter: &mut Interpreter<'_>, blocks: &mut [ThreadBlock], rank: usize) {
    interpreter.cluster.rank = rank;
    interpreter.cluster.blocks.resize_with(blocks.len(), BlockState::default);
    for (index, block) in blocks.iter_mut().enumerate().filter(|(index, _)| *index != rank) {
        std::mem::swap(&mut block.state, &mut interpreter.cluster.blocks[index]);
    }
}

/// Returns the index in the grid of the block that starts as number `number`: blocks of a cluster
/// start together.
pub(super) fn block_index(number: u64, grid: [u32; 3], cluster: [u32; 3]) -> [u32; 3] {
    let volume = cluster.iter().map(|&side| u64::from(side)).product::<u64>().max(1);
    let split = |number: u64, sides: [u32; 3]| {
        let [x, y, _] = sides.map(|side| u64::from(side.max(1)));
        [number % x, number / x % y, number / x / y].map(|at| at as u32)
    };
    let clusters = [0, 1, 2].map(|d| grid[d] / cluster[d].max(1));
    let of = split(number / volume, clusters);
    let within = split(number % volume, cluster);
    [0, 1, 2].map(|d| of[d] * cluster[d] + within[d])
}
