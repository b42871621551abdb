//! Memory that nodes of graphs allocate: its addresses, and the bytes of a device that it takes.
//!
//! The addresses belong to a node while a graph or an executable graph has it, and while the memory
//! is allocated. The bytes are reserved at an upload or a launch, by all graphs of a device
//! together. They stay reserved when the memory is freed and its graphs are destroyed, until a trim
//! (as observed on an H200): one that the program calls, or one before a device is out of memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::abi::*;
use crate::access::{AddressRange, Operation};
use crate::check::{Report, ReportKind};
use crate::machine::{Action, GraphMemory, Machine, NodeWork, Session, graph::AUTO_FREE_ON_LAUNCH};
use crate::memory::{Allocation, Home, address::ALIGNMENT};

/// Returns the bytes of a device that an allocation takes.
fn taken(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Machine {
    /// Takes addresses for the memory of a node.
    pub(crate) fn new_graph_memory(
        &mut self,
        device: usize,
        bytes: u64,
    ) -> Outcome<Arc<GraphMemory>> {
        if bytes == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if bytes > self.config.capacity {
            return Err(ERROR_OUT_OF_MEMORY);
        }
        let at = self.devices[device].addresses.take(taken(bytes)).ok_or(ERROR_OUT_OF_MEMORY)?;
        let memory = Arc::new(GraphMemory { at, bytes, device });
        self.graphs.memory.push(Arc::clone(&memory));
        Ok(memory)
    }

    /// Frees the addresses of nodes that no graph has any more, if all work has run that may use
    /// them.
    pub(crate) fn release_graph_addresses(&mut self) {
        if self.scheduler.queued > 0 {
            return;
        }
        let is_over = |memory: &mut Arc<GraphMemory>| {
            Arc::strong_count(memory) == 1 && self.memory.present.allocation(memory.at).is_none()
        };
        for memory in self.graphs.memory.extract_if(.., is_over) {
            self.graphs.frees.remove(&memory.at);
            self.memory.store.erase(memory.at, taken(memory.bytes));
            self.devices[memory.device].addresses.release(memory.at, taken(memory.bytes));
        }
    }

    /// Gives the bytes back that are reserved and not allocated.
    pub(crate) fn trim_graph_memory(&mut self, device: usize) {
        let device = &mut self.devices[device];
        device.used -= device.graphs.reserved.saturating_sub(device.graphs.allocated);
        device.graphs.reserved = device.graphs.allocated;
    }

    /// Allocates the memory of a node, which is not allocated and whose bytes are reserved.
    pub(crate) fn allocate_in_graph(&mut self, memory: &GraphMemory, stream: u32) -> Outcome {
        let &GraphMemory { at, bytes, device } = memory;
        if self.memory.present.allocation(at).is_some() {
            return Err(ERROR_INVALID_VALUE);
        }
        self.devices[device].graphs.allocated += taken(bytes);
        let (epoch, deps) = self.begin(stream);
        self.push(epoch, deps, Action::Order);
        let origin = self.origin("allocate");
        let operation = Operation { epoch, origin: origin.clone() };
        if let Some(freed) = self.graphs.frees.remove(&at) {
            let clock = self.streams[stream as usize].clock.clone();
            let by = operation.site();
            // The driver does not wait for the free.
            self.check_after(clock, move |_, before, out| {
                if !before.covers(freed.epoch) {
                    let report = Report::new(ReportKind::FreeBeforeUse, freed.site());
                    out.push(
                        report.after(Some(by)).about(Some(device), AddressRange::new(at, bytes)),
                    );
                }
            });
        }
        let made = Some(operation);
        let home = Home::Graph(device);
        self.add_allocation(at, Allocation { bytes, home, made, origin, tag: None });
        Ok(())
    }

    /// Notes that memory of a node was freed.
    pub(crate) fn free_in_graph(&mut self, device: usize, bytes: u64) {
        self.devices[device].graphs.allocated -= taken(bytes);
    }

    /// Reserves bytes for graphs, so that `needed` more can be allocated.
    fn reserve_for_graphs(&mut self, device: usize, needed: u64) -> Outcome {
        let usage = self.devices[device].graphs;
        let more = (usage.allocated + needed).saturating_sub(usage.reserved);
        if more == 0 {
            return Ok(());
        }
        let capacity = self.config.capacity;
        let device = &mut self.devices[device];
        if more > capacity.saturating_sub(device.used) {
            return Err(ERROR_OUT_OF_MEMORY);
        }
        device.used += more;
        let usage = &mut device.graphs;
        usage.reserved += more;
        usage.used_high = usage.used_high.max(usage.reserved);
        usage.reserved_high = usage.reserved_high.max(usage.reserved);
        Ok(())
    }
}

impl Session<'_> {
    /// Reserves the bytes that a launch needs, and frees the memory that the launch before has
    /// left.
    pub(crate) fn prepare_graph_memory(&mut self, id: u32, stream: u32) -> Outcome {
        let frees = self.graphs.executable(id)?.flags & AUTO_FREE_ON_LAUNCH != 0;
        let left = self.graph_memory_left(id)?;
        if !left.is_empty() && !frees {
            return Err(ERROR_INVALID_VALUE);
        }
        self.reserve_graph_memory(id)?;
        left.into_iter().try_for_each(|at| self.free_on_stream(at, stream))
    }

    /// Returns the memory of the nodes that is allocated.
    fn graph_memory_left(&mut self, id: u32) -> Outcome<Vec<u64>> {
        let nodes = self.graphs.executable(id)?.nodes.iter();
        let memory = nodes.filter_map(|(_, node)| match &node.work {
            NodeWork::Allocate(memory) => Some(memory.at),
            _ => None,
        });
        let memory: Vec<u64> = memory.collect();
        Ok(memory.into_iter().filter(|&at| self.memory.present.allocation(at).is_some()).collect())
    }

    /// Reserves the bytes that a launch needs at most at a time.
    pub(crate) fn reserve_graph_memory(&mut self, id: u32) -> Outcome {
        let executable = self.graphs.executable(id)?;
        let is_memory = |work: &NodeWork| matches!(work, NodeWork::Allocate(_) | NodeWork::Free(_));
        let works = executable.nodes.iter().map(|(_, node)| &node.work);
        let works: Vec<NodeWork> = works.filter(|work| is_memory(work)).cloned().collect();
        let mut made = HashMap::new();
        let mut freed = HashSet::new();
        // The bytes at a node, and the most so far, by device.
        let mut needed = vec![(0_i64, 0_i64); self.devices.len()];
        for work in works {
            match work {
                NodeWork::Allocate(memory) => {
                    made.insert(memory.at, (memory.device, taken(memory.bytes) as i64));
                    if self.memory.present.allocation(memory.at).is_some() {
                        continue; // it is freed first
                    }
                    let (now, most) = &mut needed[memory.device];
                    *now += taken(memory.bytes) as i64;
                    *most = *now.max(most);
                }
                NodeWork::Free(at) => {
                    let live = self.memory.present.allocation(at).and_then(|it| match it.home {
                        Home::Graph(device) if freed.insert(at) => {
                            Some((device, taken(it.bytes) as i64))
                        }
                        _ => None,
                    });
                    if let Some((device, bytes)) = made.remove(&at).or(live) {
                        needed[device].0 -= bytes;
                    }
                }
                _ => {}
            }
        }
        for (device, (_, most)) in needed.into_iter().enumerate() {
            self.reserve_for_graphs(device, most as u64)?;
        }
        Ok(())
    }
}
