//! Submission and execution of operations.
//!
//! Submission sets an operation's clock and its dependencies, and returns to the program at once.
//! The work is executed lazily: when a call waits for it, or by chance, in an order that the policy
//! picks among all that stream order and dependencies allow. So a program that relies on an order
//! which it has not established gets another one.
//!
//! Dependencies point backwards in submission order, so there is always an operation that can run,
//! unless all that are left wait for words, which a later submission or the program may write, or
//! which are never written.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::abi::ERROR_ILLEGAL_ADDRESS;
use crate::access::{AddressRange, Epoch};
use crate::machine::{
    Action, HostCall, Machine, Op, Policy, RunningKernel, SeenByHost, StreamKind,
};
use crate::memory::{Reach, address::is_virtual};

pub(crate) type Deps = SmallVec<[Epoch; 2]>;

/// The result of running one operation.
pub(crate) enum Progress {
    Ran,
    /// A host callback must be called without the lock; [`Machine::host_call_done`] ends it.
    CallHost(HostCall, u32),
    /// A kernel must run without the lock; [`Machine::kernel_done`] ends it.
    Kernel(Box<RunningKernel>),
    /// The only stream that can run is in a host callback, or a kernel runs: wait for it.
    Blocked,
}

impl Machine {
    /// Orders the next operation of `stream`: after all the stream's operations, after the work
    /// that the host has found complete, and after other streams by the rules of the legacy stream.
    pub(crate) fn begin(&mut self, stream: u32) -> (Epoch, Deps) {
        let mut deps = Deps::new();
        for other in self.ordered_with(stream) {
            let last = Epoch { stream: other, seq: self.streams[other as usize].submitted };
            if !self.executed(last) {
                deps.push(last);
            }
            let before = self.streams[other as usize].clock.clone();
            self.streams[stream as usize].clock.join(&before);
        }
        self.join_host_clock(stream);
        let this = &mut self.streams[stream as usize];
        this.submitted += 1;
        let epoch = Epoch { stream, seq: this.submitted };
        this.clock.raise(epoch);
        (epoch, deps)
    }

    /// Queues the operation that [`begin`](Self::begin) has ordered.
    pub(crate) fn push(&mut self, epoch: Epoch, deps: Deps, action: Action) {
        debug_assert_eq!(self.streams[epoch.stream as usize].submitted, epoch.seq);
        let this = &mut self.streams[epoch.stream as usize];
        let seen =
            || Box::new(SeenByHost { before: this.clock.clone(), tick: self.scheduler.ticks });
        let seen_by_host = action.is_seen_by_host().then(seen);
        self.scheduler.host_may_wait += usize::from(seen_by_host.is_some());
        this.queue.push_back(Op { deps, action, seen_by_host });
        self.scheduler.queued += 1;
    }

    /// Returns the accessor of a stream's work: its device, and the devices that it can access.
    pub(crate) fn reach<'a>(&self, stream: u32, peers: Option<&'a [usize]>) -> Reach<'a> {
        Reach { device: self.streams[stream as usize].device, peers }
    }

    /// Returns whether work of a stream with these accesses needs memory that it cannot access.
    pub(crate) fn is_illegal(
        &self,
        stream: u32,
        reads: &[AddressRange],
        writes: &[AddressRange],
        peers: Option<&[usize]>,
    ) -> bool {
        let by = self.reach(stream, peers);
        [(reads, false), (writes, true)].into_iter().any(|(ranges, is_write)| {
            let out = |range: &AddressRange| {
                let reachable =
                    self.memory.present.reachable(range.start(), range.len(), by, is_write);
                reachable < range.len()
            };
            ranges.iter().any(out)
        })
    }

    /// Returns whether the operation has executed.
    pub(crate) fn executed(&self, epoch: Epoch) -> bool {
        self.streams[epoch.stream as usize].executed >= epoch.seq
    }

    /// Returns the last operation of `stream`, which includes all earlier ones.
    pub(crate) fn last(&self, stream: u32) -> Epoch {
        Epoch { stream, seq: self.streams[stream as usize].submitted }
    }

    /// Runs one operation that `target` depends on, or `target`, which has not executed.
    pub(crate) fn step_towards(&mut self, target: Epoch) -> Progress {
        if self.scheduler.runs_kernel {
            return Progress::Blocked;
        }
        let next = match self.config.policy {
            Policy::Random => self.random_ready(),
            Policy::Lazy | Policy::Eager => self.needed_for(target),
        };
        next.map_or(Progress::Blocked, |stream| self.step(stream))
    }

    /// Runs one operation if the policy runs work that is not waited for.
    pub(crate) fn step_by_itself(&mut self) -> Option<Progress> {
        if self.scheduler.queued == 0 || self.scheduler.runs_kernel {
            return None;
        }
        let runs = match self.config.policy {
            Policy::Eager => true,
            Policy::Lazy => false,
            Policy::Random => self.random.bool(),
        };
        let stream = runs.then(|| self.random_ready()).flatten()?;
        Some(self.step(stream))
    }

    /// Runs one operation towards those by which the host can learn something without a driver
    /// call, and that were submitted at least this many ticks ago.
    pub(crate) fn step_for_host(&mut self, ticks: u64) -> Option<Progress> {
        let mut targets = SmallVec::<[Epoch; 4]>::new();
        let is_due = |seen: &SeenByHost| seen.tick + ticks <= self.scheduler.ticks;
        for (stream, this) in self.streams.iter().enumerate() {
            let mut queue = this.queue.iter();
            let place = queue.position(|op| op.seen_by_host.as_deref().is_some_and(is_due));
            let target =
                |place| Epoch { stream: stream as u32, seq: this.executed + 1 + place as u64 };
            targets.extend(place.map(target));
        }
        let stream = targets.into_iter().find_map(|target| self.needed_for(target))?;
        let next = self.streams[stream as usize].queue.front();
        let seen = next.and_then(|op| op.seen_by_host.as_deref());
        if let Some(before) = seen.map(|seen| seen.before.clone()) {
            self.all_threads_learn(&before);
        }
        Some(self.step(stream))
    }

    /// Ends a host callback of `stream`, which has returned.
    pub(crate) fn host_call_done(&mut self, stream: u32) {
        let this = &mut self.streams[stream as usize];
        this.calling_host = false;
        this.executed += 1;
        let epoch = Epoch { stream, seq: this.executed };
        self.record_end(epoch, 0, 0);
        self.scheduler.host_calls_returned += 1;
    }

    /// Returns the streams that the next operation of `stream` is ordered after by the rules of the
    /// legacy default stream.
    fn ordered_with(&self, stream: u32) -> SmallVec<[u32; 4]> {
        let this = &self.streams[stream as usize];
        let same_context = |kind| {
            let others = self.streams.iter().enumerate();
            others
                .filter(move |(_, other)| other.context == this.context && other.kind == kind)
                .map(|(index, _)| index as u32)
        };
        match this.kind {
            StreamKind::NonBlocking => SmallVec::new(),
            StreamKind::Legacy => same_context(StreamKind::Blocking).collect(),
            StreamKind::Blocking => same_context(StreamKind::Legacy).collect(),
        }
    }

    /// Returns the streams that the host waits for when it waits for `stream`.
    pub(crate) fn waited_with(&self, stream: u32) -> SmallVec<[u32; 4]> {
        let mut streams = match self.streams[stream as usize].kind {
            StreamKind::Legacy => self.ordered_with(stream),
            StreamKind::Blocking | StreamKind::NonBlocking => SmallVec::new(),
        };
        streams.push(stream);
        streams
    }

    fn is_ready(&self, stream: u32) -> bool {
        let this = &self.streams[stream as usize];
        !this.calling_host
            && this.queue.front().is_some_and(|op| op.deps.iter().all(|dep| self.executed(*dep)))
            && !self.waits_for_word(stream)
    }

    fn random_ready(&mut self) -> Option<u32> {
        let ready: SmallVec<[u32; 16]> =
            (0..self.streams.len() as u32).filter(|&stream| self.is_ready(stream)).collect();
        match ready.len() {
            0 => None,
            n => Some(ready[self.random.usize(..n)]),
        }
    }

    /// Returns the stream whose next operation `target` needs first: follows unfinished
    /// dependencies from stream to stream until one can run. Any stream if that is not known,
    /// because a word is waited for whose writer is not submitted.
    fn needed_for(&mut self, target: Epoch) -> Option<u32> {
        let mut stream = target.stream;
        // Dependencies have no cycles, but waits for words can.
        for _ in 0..=self.streams.len() {
            let this = &self.streams[stream as usize];
            if this.calling_host {
                break;
            }
            let op = this.queue.front()?;
            match op.deps.iter().find(|dep| !self.executed(**dep)) {
                Some(dep) => stream = dep.stream,
                None if self.waits_for_word(stream) => match self.writer_for(stream) {
                    Some(writer) => stream = writer,
                    None => break,
                },
                None => return Some(stream),
            }
        }
        if self.scheduler.word_waits > 0 { self.random_ready() } else { None }
    }

    /// Runs the next operation of `stream`, which is ready.
    fn step(&mut self, stream: u32) -> Progress {
        let Some(op) = self.streams[stream as usize].queue.pop_front() else {
            return Progress::Blocked;
        };
        self.scheduler.queued -= 1;
        let seq = self.streams[stream as usize].executed + 1;
        let start = op.deps.iter().map(|dep| self.end_of(*dep)).max().unwrap_or(0);
        if let Some(seen) = &op.seen_by_host {
            self.scheduler.host_may_wait -= 1;
            // A copy during a call is a result that the host has to wait for.
            if !matches!(op.action, Action::Copy { .. }) {
                self.all_threads_learn(&seen.before);
            }
        }
        if let Action::HostCall(call) = op.action {
            self.streams[stream as usize].calling_host = true;
            return Progress::CallHost(call, stream);
        }
        let epoch = Epoch { stream, seq };
        let action = match op.action {
            action if self.ends_by_fault(epoch, &action) => Action::Order,
            Action::Kernel(launch) => {
                return Progress::Kernel(self.kernel_begins(epoch, start, launch));
            }
            action => action,
        };
        let duration = self.execute(epoch, action);
        self.streams[stream as usize].executed = seq;
        self.record_end(epoch, start, duration);
        Progress::Ran
    }

    /// Makes the device fault if the work uses memory that it cannot access; then it has no effect.
    fn ends_by_fault(&mut self, epoch: Epoch, action: &Action) -> bool {
        let is_faulty = self.faults(epoch.stream, action);
        if is_faulty {
            let device = self.streams[epoch.stream as usize].device;
            self.devices[device].lose(ERROR_ILLEGAL_ADDRESS, epoch);
            if let Action::WaitWord { .. } = action {
                self.wait_ended(epoch);
            }
        }
        is_faulty
    }

    /// Executes work that is no kernel and does not fault, and returns its time on the virtual
    /// clock.
    fn execute(&mut self, epoch: Epoch, action: Action) -> u64 {
        // A plausible device: a microsecond to start, 3 bytes a picosecond after that.
        let moving = |bytes: u64| 1_000 + bytes / 3_000;
        let mut memory = self.memory.bytes();
        match action {
            Action::Order | Action::Keep(_) | Action::HostCall(_) | Action::Kernel(_) => 0,
            Action::Fill { at, len, pattern } => {
                memory.fill(at, len, pattern);
                moving(len)
            }
            Action::Copy { to, from, len } => {
                memory.copy(to, from, len);
                moving(len)
            }
            Action::Write { to, bytes } => {
                memory.write(to, &bytes);
                moving(bytes.len() as u64)
            }
            Action::ReadOut { from, to, len } => {
                let mut bytes = vec![0; len as usize];
                memory.read(from, &mut bytes);
                // SAFETY: the caller of the copy has passed `len` writable bytes and is still
                // inside the call, which waits for this operation.
                unsafe { std::ptr::copy(bytes.as_ptr(), to.0.cast::<u8>(), bytes.len()) };
                moving(len)
            }
            Action::GiveBack { at, bytes } => {
                if let Some(device) = crate::memory::address::device_of(at) {
                    self.free_on_device(device, at, bytes);
                }
                0
            }
            Action::WriteWord { at, value } => {
                self.store_word(at, value);
                moving(0)
            }
            Action::WaitWord { .. } => {
                self.wait_ended(epoch);
                0
            }
            Action::Several(actions) => {
                let mut part = |action| match self.ends_by_fault(epoch, &action) {
                    true => 0,
                    false => self.execute(epoch, action),
                };
                actions.into_iter().map(&mut part).sum()
            }
        }
    }

    /// Returns whether the work uses virtual addresses that it cannot access: then
    /// the device faults. (Other addresses were checked when the work was submitted.)
    fn faults(&self, stream: u32, action: &Action) -> bool {
        let on_virtual = |ranges: &[AddressRange]| -> SmallVec<[AddressRange; 4]> {
            let is_used = |range: &&AddressRange| is_virtual(range.start()) && !range.is_empty();
            ranges.iter().filter(is_used).copied().collect()
        };
        let one = AddressRange::new;
        let mut peers = None;
        let (reads, writes): (&[AddressRange], &[AddressRange]) = match action {
            Action::Fill { at, len, .. } => (&[], &[one(*at, *len)]),
            Action::Copy { to, from, len } => (&[one(*from, *len)], &[one(*to, *len)]),
            Action::Write { to, bytes } => (&[], &[one(*to, bytes.len() as u64)]),
            Action::ReadOut { from, len, .. } => (&[one(*from, *len)], &[]),
            Action::WriteWord { at, value } => (&[], &[one(*at, value.bytes())]),
            Action::WaitWord { at, test, .. } => (&[one(*at, test.value.bytes())], &[]),
            Action::Kernel(launch) => {
                let context = self.streams[stream as usize].context;
                peers = Some(&self.contexts[context as usize].reaches[..]);
                let declared = &launch.declared;
                let atomics = on_virtual(&declared.atomics);
                if !atomics.is_empty() && self.is_illegal(stream, &[], &atomics, peers) {
                    return true;
                }
                (&declared.reads, &declared.writes)
            }
            // Each part is asked for when it executes.
            Action::Several(_) => (&[], &[]),
            Action::Order | Action::Keep(_) | Action::GiveBack { .. } | Action::HostCall(_) => {
                (&[], &[])
            }
        };
        let reads = on_virtual(reads);
        let writes = on_virtual(writes);
        (!reads.is_empty() || !writes.is_empty()) && self.is_illegal(stream, &reads, &writes, peers)
    }

    /// Records the end of the next operation of a stream, which takes `duration` and begins at
    /// `start`, or behind the one before it.
    pub(crate) fn record_end(&mut self, epoch: Epoch, start: u64, duration: u64) {
        let index = epoch.stream as usize;
        if !self.streams[index].ended.record(epoch.seq, start, duration) {
            return;
        }
        // Only an event and an operation in a queue can ask for the end of an operation.
        let recorded =
            self.events.values().filter_map(|event| Some(event.recorded.as_ref()?.epoch));
        let queued = self.streams.iter().flat_map(|stream| &stream.queue);
        let named = queued.flat_map(|op| op.deps.iter().copied()).chain(recorded);
        let of_stream = named.filter(|named| named.stream == epoch.stream);
        let named: HashSet<u64> = of_stream.map(|epoch| epoch.seq).collect();
        self.streams[index].ended.keep(&named);
    }

    /// Returns the time at which an executed operation ended: one that an event or an operation in
    /// a queue names.
    pub(crate) fn end_of(&self, epoch: Epoch) -> u64 {
        self.streams[epoch.stream as usize].ended.of(epoch.seq)
    }
}
