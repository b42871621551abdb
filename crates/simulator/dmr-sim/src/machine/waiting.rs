//! Waits of a driver call: for operations, and for host callbacks and kernels, which run without
//! the lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::access::Epoch;
use crate::host::{
    callback,
    sync::{ignore_poison, lock},
};
use crate::machine::{HostCall, Machine, Progress, RunningKernel, Session, Stream};

/// The time for which the thread that started a host callback waits for it: a callback that
/// returns at once then ends before any other work, so the same seed gives the same run.
const PROMPT: Duration = Duration::from_millis(100);

/// The time between two checks of a thread that waits for a stream that waits for a word.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The time without a driver call after which the work that the host may wait for runs.
const IDLE: Duration = Duration::from_millis(10);

/// The number of these times after which such work runs although other threads make calls.
const PATIENCE: u64 = 10;

impl Session<'_> {
    /// Runs until the operation has executed.
    pub(crate) fn run_until(&mut self, target: Epoch) {
        while !self.executed(target) {
            let step = self.step_towards(target);
            if self.complete(step)
                || (self.is_last
                    && !self.streams.iter().any(|stream| stream.calling_host)
                    && self.end_an_endless_wait())
            {
                continue;
            }
            let returned = self.scheduler.host_calls_returned;
            // A word that a stream waits for can be written at any time, without a notification.
            let look_again = (self.scheduler.word_waits > 0).then_some(LOOK_AGAIN);
            self.wait_while(look_again, |machine| {
                machine.scheduler.host_calls_returned == returned
            });
        }
    }

    /// Makes streams that wait for a word without a write continue from now on, and reports them.
    pub(crate) fn be_last(&mut self) {
        self.is_last = true;
    }

    /// Runs all work that any thread has submitted, also while this one waits.
    pub(crate) fn run_all(&mut self) {
        let unfinished = |session: &Self| {
            let mut lasts = (0..session.streams.len() as u32).map(|stream| session.last(stream));
            lasts.find(|last| !session.executed(*last))
        };
        while let Some(last) = unfinished(self) {
            self.run_until(last);
        }
    }

    /// Waits for the last operation of a stream, and adds it to the host's clock.
    pub(crate) fn wait_for(&mut self, last: Epoch) {
        // While a host callback runs, other threads may submit more work, which is not waited for.
        let clock = self.streams[last.stream as usize].clock.clone();
        self.run_until(last);
        self.host_learns(&clock);
    }

    /// Runs one operation that the target depends on, or the target, if it has not executed.
    pub(crate) fn run_one_towards(&mut self, target: Epoch) {
        if self.executed(target) {
            return;
        }
        let step = self.step_towards(target);
        self.complete(step);
    }

    /// Waits for all work submitted to the streams, and adds it to the host's clock.
    pub(crate) fn synchronize(&mut self, of: impl Fn(&Stream) -> bool) {
        for stream in 0..self.streams.len() as u32 {
            if of(&self.streams[stream as usize]) {
                self.synchronize_stream(stream);
            }
        }
    }

    /// Waits for all work submitted to the stream, and adds it to the host's clock. Waiting for the
    /// legacy stream includes the blocking streams (as observed on an H200).
    pub(crate) fn synchronize_stream(&mut self, stream: u32) {
        for stream in self.waited_with(stream) {
            let last = self.last(stream);
            self.wait_for(last);
        }
    }

    /// Returns the first operation that [`synchronize_stream`](Self::synchronize_stream) would wait
    /// for.
    pub(crate) fn unfinished(&self, stream: u32) -> Option<Epoch> {
        let lasts = self.waited_with(stream).into_iter().map(|stream| self.last(stream));
        lasts.into_iter().find(|last| !self.executed(*last))
    }

    /// Runs as much work of the device as the policy chooses, and a launch that too many checks
    /// wait for.
    pub(crate) fn let_run(&mut self) {
        while let Some(step) = self.step_by_itself()
            && self.complete(step)
        {}
        self.run_launches(|machine| machine.checks.log.overdue());
    }

    /// Runs the launches that checks wait for. One that waits for a word, or for a host callback,
    /// is left.
    pub(crate) fn run_checks(&mut self) {
        self.run_launches(|machine| machine.checks.log.awaited());
    }

    /// Runs launches until `next` returns none.
    fn run_launches(&mut self, next: impl Fn(&Machine) -> Option<Epoch>) {
        while let Some(launch) = next(self) {
            let step = self.step_towards(launch);
            if !self.complete(step) {
                return;
            }
        }
    }

    /// Starts a thread that runs the work that the host may wait for without a driver call, if
    /// there is some. A program can poll a word in pinned memory, or wait for a message of its host
    /// function, and makes no call in which work could run; so after a pause without calls, or when
    /// such work is old, this thread makes progress instead.
    pub(crate) fn run_for_host(&mut self) {
        if self.scheduler.host_may_wait == 0 || self.scheduler.runs_for_host {
            return;
        }
        let shared = Arc::downgrade(self.shared);
        let run = move || {
            let mut calls = None;
            while let Some(shared) = shared.upgrade() {
                let mut session = shared.session();
                if session.scheduler.host_may_wait == 0 {
                    session.scheduler.runs_for_host = false;
                    return;
                }
                let is_idle =
                    calls.replace(session.scheduler.calls) == Some(session.scheduler.calls);
                session.scheduler.ticks += 1;
                // Calls may run the work, and a call that waits for a prompt host callback goes on
                // by itself.
                let age = match session.scheduler.waiting {
                    0 if is_idle => 0,
                    0 => PATIENCE,
                    _ => 2 * PATIENCE,
                };
                while let Some(step) = session.step_for_host(age) {
                    session.complete(step);
                }
                drop(session);
                drop(shared);
                std::thread::sleep(IDLE);
            }
        };
        let thread = std::thread::Builder::new().name("cuda progress".to_owned());
        self.scheduler.runs_for_host = thread.spawn(run).is_ok();
    }

    /// Runs the part of a step that runs without the lock. Returns whether there was a step.
    fn complete(&mut self, step: Progress) -> bool {
        match step {
            Progress::Ran => {}
            Progress::CallHost(call, stream) => self.call_host(call, stream),
            Progress::Kernel(kernel) => self.run_kernel(*kernel),
            Progress::Blocked => return false,
        }
        true
    }

    /// Runs a kernel. Calls that need no memory run on other threads meanwhile; others wait for its
    /// end.
    fn run_kernel(&mut self, mut kernel: RunningKernel) {
        self.machine = None;
        let outcome = kernel.run();
        let mut machine = lock(&self.shared.machine);
        if machine.scheduler.held_up > 0 {
            // They continue when this call unlocks the machine, also if it panics before.
            self.shared.changed.notify_all();
        }
        machine.kernel_done(kernel, outcome);
        self.machine = Some(machine);
    }

    /// Starts a host callback on a thread of its own, as the driver does: a callback that waits for
    /// the program blocks its stream, and no other work.
    fn call_host(&mut self, call: HostCall, stream: u32) {
        let shared = Arc::clone(self.shared);
        let run = move || {
            // SAFETY: the machine returns each callback once, when it is its turn. A panic
            // cannot cross the C boundary; the callback counts as done.
            let _ = callback::run(|| unsafe { call.run() });
            shared.lock().host_call_done(stream);
            shared.changed.notify_all();
        };
        let thread = std::thread::Builder::new().name("cuda callback".to_owned());
        match thread.spawn(run.clone()) {
            Ok(_) => self.wait_while(Some(PROMPT), |m| m.streams[stream as usize].calling_host),
            // Without another thread, on this one.
            Err(_) => {
                self.machine = None;
                run();
                self.machine = Some(self.shared.lock());
            }
        }
    }

    /// Unlocks the machine while `busy`, until a host callback has returned or the time is over.
    fn wait_while(&mut self, at_most: Option<Duration>, busy: impl Fn(&Machine) -> bool) {
        self.scheduler.waiting += 1;
        let until = at_most.map(|at_most| Instant::now() + at_most);
        while busy(self)
            && let Some(guard) = self.machine.take()
        {
            let changed = &self.shared.changed;
            let guard = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => ignore_poison(changed.wait(guard)),
                Some(left) => ignore_poison(changed.wait_timeout(guard, left)).0,
            };
            self.machine = Some(guard);
            if until.is_some_and(|until| until <= Instant::now()) {
                break;
            }
        }
        self.machine = self.machine.take().map(|guard| self.shared.wait_for_kernel(guard));
        self.scheduler.waiting -= 1;
    }
}
