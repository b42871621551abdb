//! The leaks at the end of a universe: blocks of libraries, and memory without one.

use std::collections::BTreeMap;

use crate::access::AddressRange;
use crate::check::{Findings, Report};
use crate::machine::Machine;

/// The blocks that were not freed, by their first byte: their ends. They do not overlap.
#[derive(Default)]
struct Blocks(BTreeMap<u64, u64>);

impl Blocks {
    /// Returns whether a block has one of these bytes.
    fn are_in(&self, at: u64, bytes: u64) -> bool {
        let last = self.0.range(..at.saturating_add(bytes)).next_back();
        last.is_some_and(|(_, &end)| end > at)
    }
}

impl Machine {
    /// Reports all memory that was not freed. Memory that has blocks of a library is reported as
    /// these blocks.
    pub(crate) fn leaks(&self, findings: &mut Findings) {
        let mut blocks = Blocks::default();
        self.checks.shadow.each_block(&mut |mut leak| {
            let address = leak.address;
            leak.device = self.checks.shadow.map.device_at(address);
            blocks.0.insert(address, address + leak.bytes.max(1));
            findings.push(leak);
        });
        let variables = &self.objects.variables;
        for (at, allocation) in self.checks.shadow.map.allocations() {
            if variables.contains(&at) || blocks.are_in(at, allocation.bytes) {
                continue;
            }
            let site = allocation.origin.site(allocation.made.as_ref().map(|made| made.epoch));
            let memory = AddressRange::new(at, allocation.bytes);
            let leak = Report::leak(memory, site).tagged(allocation.tag.clone());
            findings.push(leak.about(allocation.home.device(), memory));
        }
        self.virtual_leaks(&|at, bytes| blocks.are_in(at, bytes), findings);
    }
}
