//! Blocks that were given back: kept until their home stream is done with them, then taken apart.

use std::sync::PoisonError;

use dmr_core::{
    AddressRange, Generation, PhysicalMemory, ResourceError, ResourceResult, StreamId,
    VirtualMemory,
};
use dmr_streams::uses::{Dependencies, Patience};

use crate::VirtualCudaResource;

/// What is left of a block.
pub(crate) struct Remains {
    /// The memory is mapped at the start of the range.
    pub(crate) mapped: bool,
    pub(crate) memory: Option<PhysicalMemory>,
    pub(crate) range: Option<AddressRange>,
}

/// What is to be taken apart.
pub(crate) struct Retired {
    remains: Remains,
    /// `None`: it never became a block.
    home: Option<StreamId>,
    /// What must be done before.
    after: Dependencies,
    /// `None`: it never became a block.
    generation: Option<Generation>,
    /// As asked for.
    bytes: u64,
}

impl Retired {
    pub(crate) fn block(
        remains: Remains,
        home: StreamId,
        submitted: u64,
        generation: Generation,
        bytes: u64,
    ) -> Self {
        let after = Dependencies::on(home, submitted);
        Self { remains, home: Some(home), after, generation: Some(generation), bytes }
    }
}

impl VirtualCudaResource {
    /// Keeps what could not become a block: nobody has seen it.
    pub(crate) fn abandon(&self, mut remains: Remains) {
        if self.take_apart(&mut remains).is_err() {
            let after = Dependencies::default();
            let retired = Retired { remains, home: None, after, generation: None, bytes: 0 };
            self.state().retired.push(retired);
        }
    }

    /// As [`sweep`](Self::sweep), unless another thread is at it. Waits for nothing.
    pub(crate) fn try_sweep(&self) -> (u64, ResourceResult<()>) {
        let Some(_alone) = Patience::Poll.lock(&self.reaping) else { return (0, Ok(())) };
        self.sweep_alone(Patience::Poll)
    }

    /// Takes apart what its stream is done with; answers the bytes, as asked for, of the blocks
    /// that are gone, and the first error.
    pub(crate) fn sweep(&self, patience: Patience) -> (u64, ResourceResult<()>) {
        let _alone = self.reaping.lock().unwrap_or_else(PoisonError::into_inner);
        self.sweep_alone(patience)
    }

    fn sweep_alone(&self, patience: Patience) -> (u64, ResourceResult<()>) {
        self.undo_stale();
        let retired = std::mem::take(&mut self.state().retired);
        let (mut freed, mut outcome) = (0, Ok(()));
        // Home streams that are not done with a block, and so with none that was retired later.
        let mut busy = Vec::new();
        let mut kept = Vec::new();
        for mut retired in retired {
            let home = retired.home;
            let is_done = match home.is_some_and(|home| busy.contains(&home)) {
                true => Ok(false),
                false => self.is_done(&retired.after, patience),
            };
            if is_done == Ok(false) {
                busy.extend(home);
            }
            let gone = match is_done {
                Ok(true) => self.take_apart(&mut retired.remains).map(|()| true),
                answer => answer,
            };
            let mut state = self.state();
            match gone {
                Ok(true) => {
                    freed += retired.bytes;
                    state.usage.retired -= retired.bytes;
                    state.usage.total_freed += retired.bytes;
                    if let Some(generation) = retired.generation {
                        state.kept.remove(&generation);
                    }
                    continue;
                }
                Ok(false) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
            drop(state);
            kept.push(retired);
        }
        // Those that were retired first are asked first.
        let mut state = self.state();
        kept.append(&mut state.retired);
        state.retired = kept;
        drop(state);
        (freed, outcome)
    }

    /// Returns whether all work that may use the memory is done.
    fn is_done(&self, after: &Dependencies, patience: Patience) -> ResourceResult<bool> {
        let uses = self.streams.uses();
        let is_done = match patience {
            _ if self.device().is_lost() => return Ok(true),
            Patience::Poll => uses.poll(after),
            Patience::Wait => uses.synchronize(after).map(|()| true),
        };
        match is_done {
            Err(ResourceError::DeviceLost { .. }) => Ok(true),
            is_done => is_done,
        }
    }

    /// Unmaps, destroys and gives back what is left. What an error leaves is still there.
    fn take_apart(&self, remains: &mut Remains) -> ResourceResult<()> {
        if let (Some(memory), Some(range), true) = (&remains.memory, &remains.range, remains.mapped)
        {
            self.unmap(memory, range.base())?;
            remains.mapped = false;
        }
        if let Some(memory) = remains.memory.take() {
            self.destroy(memory).map_err(|refused| {
                remains.memory = Some(refused.memory);
                refused.error
            })?;
        }
        if let Some(range) = remains.range.take() {
            self.release(range).map_err(|refused| {
                remains.range = Some(refused.range);
                refused.error
            })?;
        }
        Ok(())
    }
}
