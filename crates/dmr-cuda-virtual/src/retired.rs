//! Blocks that were given back: kept until their home stream is done with them, then taken apart.

use std::sync::{Arc, PoisonError, TryLockError};

use dmr_core::{
    AddressRange, Generation, PhysicalMemory, ResourceError, ResourceResult, StreamId,
    VirtualMemory,
};
use dmr_streams::Dependencies;

use crate::VirtualCudaResource;

/// How far a sweep goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Poll,
    Wait,
}

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
    after: After,
    /// `None`: it never became a block.
    generation: Option<Generation>,
    /// As asked for.
    bytes: u64,
}

/// What must be done before.
enum After {
    Nothing,
    /// All that was submitted to this stream: no event stands for it yet.
    Home(StreamId),
    Event(StreamId, Arc<Dependencies>),
}

impl Retired {
    pub(crate) fn block(
        remains: Remains,
        home: StreamId,
        generation: Generation,
        bytes: u64,
    ) -> Self {
        Self { remains, after: After::Home(home), generation: Some(generation), bytes }
    }
}

/// The streams that a sweep has met, each asked once.
#[derive(Default)]
struct Asked {
    /// Those whose events were recorded by this sweep.
    events: Vec<(StreamId, ResourceResult<Arc<Dependencies>>)>,
    /// Those that are not done.
    busy: Vec<StreamId>,
}

impl VirtualCudaResource {
    /// Keeps what could not become a block: nobody has seen it.
    pub(crate) fn abandon(&self, mut remains: Remains) {
        if self.take_apart(&mut remains).is_err() {
            let after = After::Nothing;
            let retired = Retired { remains, after, generation: None, bytes: 0 };
            self.state().retired.push(retired);
        }
    }

    /// As [`sweep`](Self::sweep), unless another thread is at it. Waits for nothing.
    pub(crate) fn try_sweep(&self) -> (u64, ResourceResult<()>) {
        let _alone = match self.reaping.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (0, Ok(())),
        };
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
        let (mut freed, mut outcome, mut asked) = (0, Ok(()), Asked::default());
        let mut kept = Vec::new();
        for mut retired in retired {
            let gone = match self.is_done(&mut retired.after, patience, &mut asked) {
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

    /// Whether nothing uses the memory any more.
    fn is_done(
        &self,
        after: &mut After,
        patience: Patience,
        asked: &mut Asked,
    ) -> ResourceResult<bool> {
        let (home, event) = match after {
            After::Nothing => return Ok(true),
            _ if self.device().is_lost() => return Ok(true),
            After::Event(home, event) => (*home, Arc::clone(event)),
            After::Home(home) => (*home, self.event_on(*home, asked)?),
        };
        *after = After::Event(home, Arc::clone(&event));
        let same = |busy: &StreamId| busy.slot() == home.slot();
        if asked.busy.iter().any(same) {
            return Ok(false);
        }
        let answer = match patience {
            Patience::Poll => event.is_done(),
            Patience::Wait => event.synchronize().map(|()| true),
        };
        match answer {
            // What was retired later on that stream is not done, either.
            Ok(false) => asked.busy.push(home),
            Ok(true) => *after = After::Nothing,
            Err(ResourceError::DeviceLost { .. }) => return Ok(true),
            Err(_) => {}
        }
        answer
    }

    /// An event that stands for all that was submitted to the stream until now.
    fn event_on(&self, home: StreamId, asked: &mut Asked) -> ResourceResult<Arc<Dependencies>> {
        let known = asked.events.iter().find(|(stream, _)| stream.slot() == home.slot());
        if let Some((_, event)) = known {
            return event.clone();
        }
        let event = self.streams.uses().work_so_far(home).map(Arc::new);
        asked.events.push((home, event.clone()));
        event
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
