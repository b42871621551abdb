//! Global memory for the tests of launches: one buffer at a fixed address, with bounds.

#![allow(dead_code, reason = "each test uses a part of it")]

use dmr_ptx::{Access, AccessError, Fault, Finished, GlobalMemory, Launch, Program};

/// The address of the first byte.
pub(crate) const BASE: u64 = 0x1000_0000_0000;

/// The header of a module.
pub(crate) const HEADER: &str = ".version 8.4\n.target sm_80\n.address_size 64\n";

/// Bytes of global memory from [`BASE`] on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffer(pub(crate) Vec<u8>);

impl Buffer {
    pub(crate) fn of_words(words: &[u32]) -> Self {
        Self(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    pub(crate) fn zeroed(words: usize) -> Self {
        Self(vec![0; words * 4])
    }

    pub(crate) fn words(&self) -> Vec<u32> {
        self.0.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    fn range(&self, access: &Access) -> Result<std::ops::Range<usize>, AccessError> {
        let start = access.address.wrapping_sub(BASE);
        let end = start.saturating_add(u64::from(access.bytes));
        if end > self.0.len() as u64 {
            let offset =
                (self.0.len() as u64).saturating_sub(start).min(u64::from(access.bytes)) as u32;
            let offset = if start > self.0.len() as u64 { 0 } else { offset };
            return Err(AccessError::new(
                offset,
                format!("out of bounds at {:#x}", access.address),
            ));
        }
        Ok(start as usize..end as usize)
    }
}

impl GlobalMemory for Buffer {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(&self.0[self.range(access)?]);
        Ok(())
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        let range = self.range(access)?;
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        let range = self.range(access)?;
        change(&mut self.0[range]);
        Ok(())
    }
}

/// Parses a module of one kernel, or of several, and refuses one that is not supported.
pub(crate) fn load(text: &str) -> Program {
    let program =
        Program::load(&format!("{HEADER}{text}")).unwrap_or_else(|error| panic!("{error}"));
    if let Some(refusal) = program.first_refusal() {
        panic!("{refusal}");
    }
    program
}

/// Packs parameters of 8 bytes each.
pub(crate) fn params(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs the first kernel of a program on `blocks` blocks of `threads` threads; its parameters are
/// all of 8 bytes.
pub(crate) fn run(
    text: &str,
    blocks: u32,
    threads: u32,
    values: &[u64],
    memory: &mut Buffer,
) -> Result<Finished, Box<Fault>> {
    run_with(&load(text), blocks, threads, values, memory, |_| {})
}

/// Runs the first kernel of a program after `change` has changed the launch.
pub(crate) fn run_with(
    program: &Program,
    blocks: u32,
    threads: u32,
    values: &[u64],
    memory: &mut Buffer,
    change: impl FnOnce(&mut Launch<'_>),
) -> Result<Finished, Box<Fault>> {
    let params = params(values);
    let mut launch = Launch::new(program, &program.kernels()[0], [blocks, 1, 1], [threads, 1, 1]);
    launch.params = &params;
    launch.limits.instructions = 50_000_000;
    change(&mut launch);
    launch.run(memory)
}
