//! The kernels of a program: parameters, shared memory, and what of them is not supported.

use dmr_ptx_syntax::{Function, Space};

use super::Loader;
use crate::program::{Kernel, Param, SharedOffset};

impl Loader<'_> {
    /// Describes the kernels.
    pub(super) fn kernels(&self) -> Vec<Kernel> {
        let functions = self.module.functions.iter().enumerate();
        functions
            .filter(|(_, function)| function.is_entry && function.body.is_some())
            .map(|(i, f)| self.kernel(i, f))
            .collect()
    }

    fn kernel(&self, index: usize, function: &Function) -> Kernel {
        let mut params = Vec::new();
        let mut end = 0usize;
        for param in &function.params {
            let align = param.align.max(1) as usize;
            let bytes = param.bytes().unwrap_or(0) as usize;
            let offset = end.next_multiple_of(align);
            end = offset + bytes;
            params.push(Param { name: param.name.clone(), offset, bytes, align });
        }
        let reached = self.reached(index as u32, true);
        // What only an indirect call may reach is refused when it is called.
        let refusal = self
            .reached(index as u32, false)
            .iter()
            .find_map(|&function| self.uses[function as usize].refusal.clone());
        let mut shared = Vec::new();
        let mut shared_bytes = 0u64;
        for &function in &reached {
            for &variable in &self.uses[function as usize].shared {
                if shared.iter().any(|placed: &SharedOffset| placed.variable == variable) {
                    continue;
                }
                let declared = self.shared[variable as usize];
                let offset = declared.bytes.map(|bytes| {
                    let offset = shared_bytes.next_multiple_of(declared.align);
                    shared_bytes = offset.saturating_add(bytes).min(1 << 48);
                    offset
                });
                shared.push(SharedOffset { variable, offset, align: declared.align });
            }
        }
        let decoded = &self.code.functions[index];
        let threads =
            |limits: [u32; 3]| limits.iter().fold(1u32, |all, &side| all.saturating_mul(side));
        debug_assert!(function.params.iter().all(|param| param.space != Space::Shared));
        Kernel {
            name: function.name.clone(),
            params,
            param_bytes: end,
            shared_bytes,
            local_bytes: decoded.frame_bytes,
            registers: decoded.registers,
            max_threads: function.limits.max_threads.map(threads),
            required_threads: function.limits.required_threads,
            required_cluster: function.limits.required_cluster,
            refusal,
            function: index as u32,
            shared,
        }
    }

    /// Returns the functions that a kernel calls, itself first; `indirectly` adds those that
    /// indirect calls may reach.
    fn reached(&self, kernel: u32, indirectly: bool) -> Vec<u32> {
        let mut reached = vec![kernel];
        let mut next = 0;
        let mut seen = vec![false; self.uses.len()];
        seen[kernel as usize] = true;
        while let Some(&function) = reached.get(next) {
            next += 1;
            let uses = &self.uses[function as usize];
            let indirect = if indirectly && uses.calls_indirectly { &self.taken[..] } else { &[] };
            for &function in uses.functions.iter().chain(indirect) {
                if !std::mem::replace(&mut seen[function as usize], true) {
                    reached.push(function);
                }
            }
        }
        reached
    }
}
