//! Plays programs: executes each line against a stack, and compares the results with the contract.

mod blocks;
mod captures;
mod content;
mod copies;
mod end;
mod handover;
mod judge;
mod maintenance;
mod order;
mod pinned;
mod retire;
mod state;
mod streams;
mod uses;

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::sync::lock;
use dmr_core::{ResourceError, ResourceResult};
use dmr_sim::Universe;
use dmr_testkit::Rig;

use crate::conflicts::{Conflict, Counts};
use crate::failure::{Failure, FailureKind};
use crate::program::{Line, Program, Step};
use crate::random::Random;
use crate::stack::{self, BuildError, Built, Wiring};
use crate::watch;

pub use handover::{HandedOver, Handover, Hazard, Omission};
pub(crate) use order::play_lines;
use retire::When;
pub use state::shadow_of;
use state::{Footprint, ProgramStream, State};

/// The result of a step: the failure that it has shown.
type Played<T = ()> = Result<T, Failure>;

/// A receiver of the device work that a program submits.
pub trait WorkListener: std::fmt::Debug + Send + Sync {
    /// Work with a block that starts at `ptr`, or with a part of it, was submitted to `stream`.
    fn submitted(&self, rig: &Rig, stream: dmr_core::StreamId, ptr: u64);
}

/// The options of a player.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The options of the stack.
    pub wiring: Wiring,
    /// The receiver of submitted work.
    pub listener: Option<Arc<dyn WorkListener>>,
    /// `true` if the simulator's reports name the steps. Slow.
    pub labels: bool,
    /// The number of a use, from 0, whose declaration is omitted: the work is submitted all the
    /// same.
    pub undeclared: Option<u64>,
}

/// One program on one stack.
#[derive(Debug)]
pub(crate) struct Player {
    rig: Arc<Rig>,
    program: Arc<Program>,
    options: Options,
    built: Built,
    state: Mutex<State>,
}

impl Player {
    pub(crate) fn new(
        rig: &Arc<Rig>,
        program: &Arc<Program>,
        options: &Options,
    ) -> Result<Self, BuildError> {
        let built = stack::build(program.stack, rig, program.seed, &options.wiring)?;
        let leases = (0..program.streams).map(|_| rig.streams().acquire());
        let slot = |lease| ProgramStream { lease: Some(Arc::new(lease)), is_adopted: false };
        let streams = leases.map(|lease| lease.map(slot)).collect::<ResourceResult<_>>()?;
        let state = State {
            streams,
            blocks: HashMap::new(),
            windows: HashMap::new(),
            facts: HashMap::new(),
            foreign_capture: None,
            captures: HashMap::new(),
            captures_begun: 0,
            captures_ended: HashMap::new(),
            captures_at_line: HashMap::new(),
            pinned: HashMap::new(),
            random: Random::new(program.seed ^ 0x5eed),
            counts: Counts { programs: 1, ..Counts::default() },
            freed_at: HashMap::new(),
            footprints: HashMap::new(),
            windows_opened: 0,
            uses_declared: 0,
            calls: 0,
            calls_begun: 0,
            calls_on: HashMap::new(),
            retiring: Vec::new(),
            retired_in_time: Vec::new(),
        };
        Ok(Self {
            rig: Arc::clone(rig),
            program: Arc::clone(program),
            options: options.clone(),
            built,
            state: Mutex::new(state),
        })
    }

    /// Executes a line. A panic is a failure of the line.
    pub(crate) fn execute(&self, line: usize) -> Played {
        let _label = self
            .options
            .labels
            .then(|| dmr_sim::label(format!("line {}: {}", line + 1, self.program.lines[line])));
        let played = catch_unwind(AssertUnwindSafe(|| self.step(line)));
        played.unwrap_or_else(|panic| Err(Failure::new(FailureKind::Panic, line, text_of(&*panic))))
    }

    fn step(&self, at: usize) -> Played {
        let Line { thread, step, .. } = &self.program.lines[at];
        self.rig.device().bind().map_err(|error| self.unexpected(at, "bind", &error))?;
        let mut state = self.state();
        state.counts.steps += 1;
        let begun = state.captures_begun;
        state.captures_at_line.insert(at, begun);
        drop(state);
        match step {
            Step::Allocate { block, bytes, stream } => self.allocate(at, *block, *bytes, *stream),
            Step::Launch { stream, uses } => self.launch(at, *stream, uses),
            Step::Open { window, stream, uses } => self.open(at, *window, *stream, uses, false),
            Step::OpenIdle { window, stream, uses } => self.open(at, *window, *stream, uses, true),
            Step::Close { window } => self.close(at, *window, false),
            Step::Cancel { window } => self.close(at, *window, true),
            Step::Home { block, access } => self.home(at, *block, *access),
            Step::Record { block } => self.record(at, *block),
            Step::Copy { from, to, stream } => self.copy(at, *from, *to, *stream),
            Step::Grow { block, bytes } => self.grow(at, *block, *bytes),
            Step::Narrow { block, start, end } => self.narrow(*block, *start, *end),
            Step::Free { block } => self.free(at, *block, true),
            Step::FreePart { block } => self.free(at, *block, false),
            Step::Reap => self.reap(at, |resource| resource.try_reap()),
            Step::ReapPending => self.reap(at, |resource| resource.reap_pending()),
            Step::Trim { keep } => self.trim(at, *keep),
            Step::Synchronize { stream } => self.synchronize(at, *stream),
            Step::Delay { stream } => self.delay(at, *stream),
            Step::Replace { stream } => self.replace(at, *stream),
            Step::Adopt { stream } => self.adopt(at, *stream),
            Step::Retire { stream } => self.retire(at, *stream, When::Unused),
            Step::RetireAtOnce { stream } => self.retire(at, *stream, When::AtOnce),
            Step::RetireWithin { stream } => self.retire(at, *stream, When::InTime),
            Step::Capture { mode } => self.begin_capture(at, *mode),
            Step::EndCapture => self.end_capture(at),
            Step::CaptureStream { stream, mode } => self.capture_stream(at, *stream, *mode),
            Step::EndCaptureStream { stream } => self.end_capture_of(at, *stream),
            Step::Pin { pinned, bytes, stream } => self.pin(at, *pinned, *bytes, *stream),
            Step::FillCounterpart { pinned, stream } => self.fill_counterpart(at, *pinned, *stream),
            Step::CopyToHost { pinned, stream } => self.copy_to_host(at, *pinned, *stream),
            Step::CopyToDevice { pinned, stream } => self.copy_to_device(at, *pinned, *stream),
            Step::HostReads { pinned } => self.host_reads(at, *pinned),
            Step::HostWrites { pinned } => self.host_writes(at, *pinned),
            Step::Unpin { pinned } => self.unpin(at, *pinned),
            Step::ReapPinned => self.reap_pinned(at),
            Step::Fork => self.fork(at, *thread),
        }
    }

    /// Executes a call of the library: its driver calls are counted, held and failed as in the
    /// line. Afterwards all captures must be valid, and the thread's capture mode must be
    /// unchanged.
    fn library<T, E>(
        &self,
        at: usize,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Played<Result<T, E>> {
        let mut state = self.state();
        state.calls += 1;
        state.calls_begun += 1;
        let stream = state.footprints.get(&at).and_then(|footprint| footprint.stream);
        stream.iter().for_each(|slot| *state.calls_on.entry(*slot).or_default() += 1);
        drop(state);
        // A program before this one may have lost its device.
        dmr_sim::reset_capture_mode();
        let returned = watch::library(call);
        let mut state = self.state();
        state.calls -= 1;
        if let Some(calls) = stream.and_then(|slot| state.calls_on.get_mut(&slot)) {
            *calls -= 1;
        }
        drop(state);
        if !dmr_sim::is_capture_mode_global() {
            let text = "the thread's capture mode was not restored";
            return Err(Failure::new(FailureKind::CaptureMode, at, text));
        }
        self.check_captures(at, returned.is_err())?;
        Ok(returned)
    }

    /// Errors unless the error is one that a call may return because its driver call was made to
    /// fail, or because a stream captures.
    fn expect_injected(&self, at: usize, call: &str, error: &ResourceError) -> Played {
        let is_driver =
            matches!(error, ResourceError::Driver { .. } | ResourceError::OutOfMemory { .. });
        if is_driver && watch::failed().is_some() {
            return Ok(());
        }
        if self.is_capture_refusal(at, error) {
            return Ok(());
        }
        Err(self.unexpected(at, call, error))
    }

    fn unexpected(&self, at: usize, call: &str, error: &ResourceError) -> Failure {
        Failure::new(FailureKind::UnexpectedError, at, format!("{call}: {error:?}"))
    }

    /// Records the uses of a line.
    fn touches(&self, at: usize, footprint: Footprint) {
        self.state().footprints.insert(at, footprint);
    }

    fn count(&self, conflict: Conflict) {
        self.state().counts.count(conflict);
    }

    fn universe(&self) -> Option<&Universe> {
        self.rig.simulator()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }
}

/// Returns the message of a panic.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
