//! A resident block: its warps, shared memory and barriers.

use std::collections::HashSet;

use dmr_ptx_arith::Mask;

use super::cluster::Arrivals as ClusterArrivals;
use super::code::BarrierKind;
use super::fault::{Checks, FaultKind};
use super::in_flight::Copies;
use super::interpreter::Faulted;
use super::order::{Order, Row};
use super::shadow::Shadow;
use super::warp::{LaneGroup, State, Warp};

/// The number of barriers of a block.
pub(super) const BARRIERS: u32 = 16;

/// The threads whose arrival completes a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Expected {
    /// All threads of the block that have not exited.
    #[default]
    Block,
    /// This many threads, in whole warps.
    Threads(u32),
}

/// The arrivals at a barrier since it last completed.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// For each warp, the lanes that have arrived.
    lanes: Vec<Mask>,
    expected: Expected,
    /// The number of arrived lanes whose predicate is true, and of those whose predicate is false.
    true_lanes: u32,
    false_lanes: u32,
    /// The row of the warps that arrive without waiting; empty if there are none.
    ahead: Row,
}

/// The state that the warps of a block share.
#[derive(Debug, Default)]
pub(super) struct BlockState {
    /// The number of the block in its grid.
    pub(super) number: u64,
    /// The index of the block in its grid.
    pub(super) index: [u32; 3],
    pub(super) shared: Vec<u8>,
    /// For each byte of shared memory, whether it has been written: 0 or 1.
    pub(super) written: Vec<u8>,
    pub(super) shadow: Option<Shadow>,
    pub(super) order: Order,
    /// The asynchronous copies that are in flight.
    pub(super) copies: Copies,
    pub(super) cluster_arrivals: ClusterArrivals,
    /// The `mbarrier` objects at which threads of other blocks have arrived.
    pub(super) visited: HashSet<u64>,
    barriers: Vec<Arrivals>,
    /// The barriers at which threads have arrived, by bits.
    arrived: u32,
}

impl BlockState {
    pub(super) fn new(shared: usize, warps: usize, checks: Checks) -> Self {
        let arrivals = Arrivals { lanes: vec![0; warps], ..Arrivals::default() };
        Self {
            number: 0,
            index: [0; 3],
            shared: vec![0; shared],
            written: vec![0; if checks.uninitialised { shared } else { 0 }],
            shadow: (checks.shared_races && shared > 0).then(|| Shadow::new(shared)),
            order: Order::new(warps),
            copies: Copies::default(),
            cluster_arrivals: ClusterArrivals::default(),
            visited: HashSet::new(),
            barriers: vec![arrivals; BARRIERS as usize],
            arrived: 0,
        }
    }

    /// Makes it the state of a block that starts.
    pub(super) fn restart(&mut self, number: u64, index: [u32; 3]) {
        self.number = number;
        self.index = index;
        self.shared.fill(0);
        self.written.fill(0);
        if !self.copies.is_empty() {
            self.copies = Copies::default();
        }
        self.cluster_arrivals.restart();
        self.visited.clear();
        if !self.order.restart() {
            let shared = self.shared.len();
            let warps = self.barriers[0].lanes.len();
            self.order = Order::new(warps);
            self.shadow = self.shadow.as_ref().map(|_| Shadow::new(shared));
        }
        while self.arrived != 0 {
            let id = self.arrived.trailing_zeros() as usize;
            let lanes = vec![0; self.barriers[id].lanes.len()];
            self.barriers[id] = Arrivals { lanes, ..Arrivals::default() };
            self.arrived &= self.arrived - 1;
        }
    }

    /// Returns the expected arrivals of a barrier that has pending ones.
    pub(super) fn expected(&self, id: u32) -> Option<Expected> {
        (self.arrived >> id & 1 != 0).then(|| self.barriers[id as usize].expected)
    }

    /// Records that a warp that has arrived at a barrier does not wait there.
    pub(super) fn go_ahead(&mut self, warp: u32, id: u32) {
        self.order.arrive(warp as usize, &mut self.barriers[id as usize].ahead);
    }

    /// Counts lanes of a warp that arrive at a barrier, below [`BARRIERS`]; `holds` are those whose
    /// predicate is true.
    pub(super) fn arrive(
        &mut self,
        warp: u32,
        mask: Mask,
        id: u32,
        expected: Expected,
        holds: Mask,
    ) -> Result<(), FaultKind> {
        let Some(barrier) = self.barriers.get_mut(id as usize) else { return Ok(()) };
        if let Expected::Threads(threads) = expected
            && (threads == 0 || threads % 32 != 0)
        {
            let message =
                format!("barrier {id} for {threads} threads: not a multiple of the warp size");
            return Err(FaultKind::IllegalInstruction(message));
        }
        if self.arrived >> id & 1 != 0 && barrier.expected != expected {
            let message = format!("barrier {id} is used with different numbers of threads");
            return Err(FaultKind::DivergentBarrier(message));
        }
        barrier.expected = expected;
        barrier.lanes[warp as usize] |= mask;
        barrier.true_lanes += (mask & holds).count_ones();
        barrier.false_lanes += (mask & !holds).count_ones();
        self.arrived |= 1 << id;
        Ok(())
    }
}

/// A block with the state of all its threads.
#[derive(Debug)]
pub(super) struct ThreadBlock {
    pub(super) state: BlockState,
    pub(super) warps: Vec<Warp>,
}

impl ThreadBlock {
    pub(super) fn is_finished(&self) -> bool {
        self.warps.iter().all(|warp| warp.live == 0)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.warps.iter().any(Warp::is_ready)
    }

    /// Completes the barriers at which every expected thread has arrived.
    ///
    /// It is called after each slice of a warp and not at an arrival, because the last thread that
    /// others wait for may also exit.
    pub(super) fn complete_barriers(&mut self, checks: Checks) -> Result<(), Box<Faulted>> {
        let mut rest = self.state.arrived;
        while rest != 0 {
            let id = rest.trailing_zeros();
            rest &= rest - 1;
            if self.is_complete(id) {
                if checks.divergence {
                    self.check_barrier(id)?;
                }
                self.release(id);
            }
        }
        Ok(())
    }

    /// Returns whether all lanes of the expected warps have arrived or exited. A barrier for a
    /// number of threads counts whole warps, as the device does.
    fn is_complete(&self, id: u32) -> bool {
        let barrier = &self.state.barriers[id as usize];
        let complete = |warp: &Warp| warp.live & !barrier.lanes[warp.number as usize] == 0;
        match barrier.expected {
            Expected::Block => self.warps.iter().all(complete),
            Expected::Threads(threads) => {
                let arrived =
                    |warp: &&Warp| barrier.lanes[warp.number as usize] != 0 && complete(warp);
                self.warps.iter().filter(arrived).count() as u32 * 32 >= threads
            }
        }
    }

    /// Refuses a barrier that a warp reached in parts. Threads that have exited are not waited for.
    fn check_barrier(&self, id: u32) -> Result<(), Box<Faulted>> {
        for warp in &self.warps {
            let mut first: Option<u32> = None;
            for group in &warp.groups {
                let State::Barrier { id: at, barrier } = &group.state else { continue };
                if *at != id {
                    continue;
                }
                let thread = warp.number * 32 + group.mask.trailing_zeros();
                if barrier.aligned && first.is_some_and(|first| first != group.pc) {
                    let kind = FaultKind::DivergentBarrier(format!(
                        "threads of one warp reach barrier {id} at different instructions"
                    ));
                    return Err(Box::new(Faulted { kind, thread, pc: group.pc }));
                }
                first = Some(group.pc);
            }
        }
        Ok(())
    }

    /// Makes a fault at the first waiting group.
    fn waiting(&self, kind: FaultKind) -> Faulted {
        let mut groups =
            self.warps.iter().flat_map(|warp| warp.groups.iter().map(move |f| (warp, f)));
        let found = groups.find(|(_, group)| !group.is_ready());
        let (thread, pc) =
            found.map_or((0, 0), |(warp, f)| (warp.number * 32 + f.mask.trailing_zeros(), f.pc));
        Faulted { kind, thread, pc }
    }

    /// Lets the groups that wait at a barrier go on, and orders their threads.
    ///
    /// A barrier of the whole block advances the one stamp of the block. Otherwise the warps that
    /// wait are ordered with each other and behind those that arrived without waiting
    /// (`bar.arrive`), which are not ordered behind anything.
    fn release(&mut self, id: u32) {
        let barrier = &mut self.state.barriers[id as usize];
        let holds = barrier.true_lanes;
        let fails = barrier.false_lanes;
        let ahead = std::mem::take(&mut barrier.ahead);
        let is_whole =
            barrier.expected == Expected::Block || barrier.lanes.iter().all(|&lanes| lanes != 0);
        if is_whole && ahead.is_empty() {
            self.state.order.block();
        } else {
            let waits = |group: &LaneGroup| matches!(group.state, State::Barrier { id: at, .. } if at == id);
            let waiting = self.warps.iter().filter(|warp| warp.groups.iter().any(waits));
            let warps: Vec<usize> = waiting.map(|warp| warp.number as usize).collect();
            self.state.order.warps(&warps);
            warps.iter().for_each(|&warp| self.state.order.acquire(warp, &ahead));
        }
        barrier.lanes.fill(0);
        barrier.true_lanes = 0;
        barrier.false_lanes = 0;
        barrier.expected = Expected::Block;
        self.state.arrived &= !(1 << id);
        for warp in &mut self.warps {
            for index in 0..warp.groups.len() {
                let group = &mut warp.groups[index];
                let State::Barrier { id: at, barrier } = group.state else { continue };
                if at != id {
                    continue;
                }
                let result = match barrier.kind {
                    BarrierKind::Popc => u64::from(holds),
                    BarrierKind::And => u64::from(fails == 0),
                    BarrierKind::Or => u64::from(holds != 0),
                    BarrierKind::Sync | BarrierKind::Arrive => 0,
                };
                group.state = State::Ready;
                group.pc += 1;
                let base = group.base;
                let mask = group.mask;
                warp.write_uniform(base, barrier.dst, mask, result);
            }
            if warp.groups.len() > 1 {
                warp.merge(LaneGroup::is_ready);
            }
        }
    }

    /// Describes why no thread can run: a barrier or a warp operation that some threads never
    /// reach.
    pub(super) fn describe_stuck(&self) -> Faulted {
        let groups =
            || self.warps.iter().flat_map(|warp| warp.groups.iter().map(move |f| (warp, f)));
        for (warp, group) in groups() {
            let missing = match group.state {
                State::Members(members) => members,
                State::Warp => warp.lanes,
                State::Ready | State::Barrier { .. } | State::Cluster => continue,
            };
            let absent = (missing & !group.mask).trailing_zeros();
            let exited = if missing & !warp.live != 0 { ", and some have exited" } else { "" };
            let kind = FaultKind::DivergentWarp(format!(
                "lanes {:#010x} wait for lanes {missing:#010x}{exited}: lane {absent} never arrives",
                group.mask
            ));
            return Faulted {
                kind,
                thread: warp.number * 32 + group.mask.trailing_zeros(),
                pc: group.pc,
            };
        }
        let mut ids: Vec<u32> = groups()
            .filter_map(
                |(_, f)| if let State::Barrier { id, .. } = f.state { Some(id) } else { None },
            )
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let exited =
            self.warps.iter().map(|warp| (warp.lanes & !warp.live).count_ones()).sum::<u32>();
        let at_cluster = |(_, f): (&Warp, &LaneGroup)| matches!(f.state, State::Cluster);
        let message = if ids.is_empty() && groups().any(at_cluster) {
            "threads wait at the barrier of the cluster, which others never reach".to_owned()
        } else if ids.len() > 1 {
            format!("threads of the block wait at different barriers, {ids:?}")
        } else {
            format!(
                "threads wait at barrier {ids:?}, which too few threads reach; {exited} threads have exited"
            )
        };
        self.waiting(FaultKind::DivergentBarrier(message))
    }
}
