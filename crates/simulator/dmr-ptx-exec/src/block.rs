//! A resident block: its warps, shared memory and barriers.

use std::collections::HashSet;

use dmr_ptx_arith::Mask;

use super::cluster::Arrivals as ClusterArrivals;
use super::code::BarrierKind;
use super::core::Faulted;
use super::fault::{Checks, FaultKind};
use super::in_flight::Copies;
use super::order::{Order, Row};
use super::shadow::Shadow;
use super::warp::{Fragment, State, Warp};

/// The number of barriers of a block.
pub(super) const BARRIERS: u32 = 16;

/// The arrivals at a barrier since it last completed.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// For each warp, the lanes that have arrived.
    lanes: Vec<Mask>,
    /// The number of threads that complete it; `None` for all.
    threads: Option<u32>,
    /// The number of arrived lanes whose predicate is true, and of those whose predicate is false.
    true_lanes: u32,
    false_lanes: u32,
    /// The row of the warps that arrive without waiting; empty if there are none.
    ahead: Row,
}

/// The state that the warps of a block share.
#[derive(Debug, Default)]
pub(super) struct Common {
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

impl Common {
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

    /// Returns the number of threads that a barrier is for at which some have arrived; `None` for
    /// all of the block.
    pub(super) fn waits_for(&self, id: u32) -> Option<Option<u32>> {
        (self.arrived >> id & 1 != 0).then(|| self.barriers[id as usize].threads)
    }

    /// Notes that a warp that has arrived at a barrier does not wait there.
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
        threads: Option<u32>,
        holds: Mask,
    ) -> Result<(), FaultKind> {
        let Some(barrier) = self.barriers.get_mut(id as usize) else { return Ok(()) };
        if let Some(threads) = threads
            && (threads == 0 || threads % 32 != 0)
        {
            let message =
                format!("barrier {id} for {threads} threads: not a multiple of the warp size");
            return Err(FaultKind::IllegalInstruction(message));
        }
        if self.arrived >> id & 1 != 0 && barrier.threads != threads {
            let message = format!("barrier {id} is used with different numbers of threads");
            return Err(FaultKind::DivergentBarrier(message));
        }
        barrier.threads = threads;
        barrier.lanes[warp as usize] |= mask;
        barrier.true_lanes += (mask & holds).count_ones();
        barrier.false_lanes += (mask & !holds).count_ones();
        self.arrived |= 1 << id;
        Ok(())
    }
}

/// A block with the state of all its threads.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) common: Common,
    pub(super) warps: Vec<Warp>,
}

impl Block {
    pub(super) fn is_finished(&self) -> bool {
        self.warps.iter().all(|warp| warp.live == 0)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.warps.iter().any(Warp::is_ready)
    }

    /// Completes the barriers at which every expected thread has arrived.
    pub(super) fn complete_barriers(&mut self, checks: Checks) -> Result<(), Box<Faulted>> {
        let mut rest = self.common.arrived;
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

    fn is_complete(&self, id: u32) -> bool {
        let barrier = &self.common.barriers[id as usize];
        let complete = |warp: &Warp| warp.live & !barrier.lanes[warp.number as usize] == 0;
        match barrier.threads {
            None => self.warps.iter().all(complete),
            Some(threads) => {
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
            for fragment in &warp.fragments {
                let State::Barrier { id: at, barrier } = &fragment.state else { continue };
                if *at != id {
                    continue;
                }
                let thread = warp.number * 32 + fragment.mask.trailing_zeros();
                if barrier.aligned && first.is_some_and(|first| first != fragment.pc) {
                    let kind = FaultKind::DivergentBarrier(format!(
                        "threads of one warp reach barrier {id} at different instructions"
                    ));
                    return Err(Box::new(Faulted { kind, thread, pc: fragment.pc }));
                }
                first = Some(fragment.pc);
            }
        }
        Ok(())
    }

    /// Makes a fault at the first waiting fragment.
    fn waiting(&self, kind: FaultKind) -> Faulted {
        let mut fragments =
            self.warps.iter().flat_map(|warp| warp.fragments.iter().map(move |f| (warp, f)));
        let found = fragments.find(|(_, fragment)| !fragment.is_ready());
        let (thread, pc) =
            found.map_or((0, 0), |(warp, f)| (warp.number * 32 + f.mask.trailing_zeros(), f.pc));
        Faulted { kind, thread, pc }
    }

    fn release(&mut self, id: u32) {
        let barrier = &mut self.common.barriers[id as usize];
        let holds = barrier.true_lanes;
        let fails = barrier.false_lanes;
        let ahead = std::mem::take(&mut barrier.ahead);
        let is_whole = barrier.threads.is_none() || barrier.lanes.iter().all(|&lanes| lanes != 0);
        if is_whole && ahead.is_empty() {
            self.common.order.block();
        } else {
            let waits = |fragment: &Fragment| matches!(fragment.state, State::Barrier { id: at, .. } if at == id);
            let waiting = self.warps.iter().filter(|warp| warp.fragments.iter().any(waits));
            let warps: Vec<usize> = waiting.map(|warp| warp.number as usize).collect();
            self.common.order.warps(&warps);
            warps.iter().for_each(|&warp| self.common.order.acquire(warp, &ahead));
        }
        barrier.lanes.fill(0);
        barrier.true_lanes = 0;
        barrier.false_lanes = 0;
        barrier.threads = None;
        self.common.arrived &= !(1 << id);
        for warp in &mut self.warps {
            for index in 0..warp.fragments.len() {
                let fragment = &mut warp.fragments[index];
                let State::Barrier { id: at, barrier } = fragment.state else { continue };
                if at != id {
                    continue;
                }
                let result = match barrier.kind {
                    BarrierKind::Popc => u64::from(holds),
                    BarrierKind::And => u64::from(fails == 0),
                    BarrierKind::Or => u64::from(holds != 0),
                    BarrierKind::Sync | BarrierKind::Arrive => 0,
                };
                fragment.state = State::Ready;
                fragment.pc += 1;
                let base = fragment.base;
                let mask = fragment.mask;
                warp.write_uniform(base, barrier.dst, mask, result);
            }
            if warp.fragments.len() > 1 {
                warp.merge();
            }
        }
    }

    /// Describes why no thread can run: a barrier or a warp operation that some threads never
    /// reach.
    pub(super) fn describe_stuck(&self) -> Faulted {
        let fragments =
            || self.warps.iter().flat_map(|warp| warp.fragments.iter().map(move |f| (warp, f)));
        for (warp, fragment) in fragments() {
            let missing = match fragment.state {
                State::Members(members) => members,
                State::Warp => warp.lanes,
                State::Ready | State::Barrier { .. } | State::Cluster => continue,
            };
            let absent = (missing & !fragment.mask).trailing_zeros();
            let exited = if missing & !warp.live != 0 { ", and some have exited" } else { "" };
            let kind = FaultKind::DivergentWarp(format!(
                "lanes {:#010x} wait for lanes {missing:#010x}{exited}: lane {absent} never arrives",
                fragment.mask
            ));
            return Faulted {
                kind,
                thread: warp.number * 32 + fragment.mask.trailing_zeros(),
                pc: fragment.pc,
            };
        }
        let mut ids: Vec<u32> = fragments()
            .filter_map(
                |(_, f)| if let State::Barrier { id, .. } = f.state { Some(id) } else { None },
            )
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let exited =
            self.warps.iter().map(|warp| (warp.lanes & !warp.live).count_ones()).sum::<u32>();
        let at_cluster = |(_, f): (&Warp, &Fragment)| matches!(f.state, State::Cluster);
        let message = if ids.is_empty() && fragments().any(at_cluster) {
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
