//! The interface of tests to one simulated machine.

use std::fmt;
use std::sync::Arc;

use dmr_ptx::{Checks, Limits};

use crate::abi::Code;
use crate::access::{Clock, DeclaredUse};
use crate::check::{Report, ReportKind, Verdict};
use crate::host::{CallCounts, Frames, Hold, callback, fork::is_forked_child};
use crate::kernel::{Footprint, Kernel, KernelArgs, KernelMemory, Refusal};
use crate::machine::{Config, HostOrder, Policy, Session, Shared, registry};
use crate::process::install::{InstallError, install};

/// One simulated machine: its devices occupy CUDA ordinals of their own until it ends.
///
/// Each test makes its own, so tests run in parallel in one process. `Clone` is cheap and names
/// the same universe; it ends when the last clone is dropped. After that its handles are refused
/// by the driver. Its ordinals become another universe's once every retained primary context has
/// been released, which may be later.
///
/// # Panics
///
/// The drop of the last clone panics with the findings that neither [`finish`](Self::finish) nor
/// [`reports`](Self::reports) has returned, so a test that does not ask for them fails. While a
/// panic unwinds, they are written to the standard error. Leaks and endless waits are found by
/// `finish` only. A universe that is never dropped (in a `static`) reports nothing.
///
/// Kernels and host callbacks are work of the device: they may call neither the driver, which
/// returns `CUDA_ERROR_NOT_PERMITTED` there, nor their universe, which panics (in a kernel this
/// becomes a report). Only the methods about calls and faults can be used everywhere. A forked
/// child has no driver: there, every call returns `CUDA_ERROR_NOT_INITIALIZED`.
#[derive(Clone)]
pub struct Universe(Arc<UniverseOwner>);

struct UniverseOwner(Arc<Shared>);

impl Drop for UniverseOwner {
    fn drop(&mut self) {
        if is_forked_child() {
            // A thread of the parent may have been changing it at the fork.
            std::mem::forget(Arc::clone(&self.0));
        }
        let unread = self.unread();
        registry::unregister(&self.0);
        if let Some(verdict) = unread {
            report_unread(&verdict);
        }
    }
}

impl UniverseOwner {
    /// Returns the findings that were not read, about all work that was submitted. `None` in a
    /// forked child, and in kernels and host callbacks, which may hold the lock.
    fn unread(&self) -> Option<Verdict> {
        if is_forked_child() || callback::is_running() {
            return None;
        }
        let mut session = self.0.session();
        session.run_checks();
        session.checks.findings.unread()
    }
}

/// Panics with findings that were not read; writes them to the standard error while a panic
/// unwinds, where a second panic would abort the process.
#[allow(
    clippy::print_stderr,
    clippy::panic,
    reason = "a test that does not ask must fail: decision 0031"
)]
fn report_unread(verdict: &Verdict) {
    let text = format!("a universe was dropped, and its findings were not read: {verdict}");
    if std::thread::panicking() {
        eprintln!("dmr-sim: {text}");
    } else {
        panic!("{text}");
    }
}

/// The number of devices, if none is set.
pub(crate) const DEVICES: usize = 2;

/// The configuration of a [`Universe`].
#[derive(Clone, Debug)]
#[must_use]
pub struct UniverseBuilder(Config);

impl UniverseBuilder {
    /// Sets the number of devices, 1 to 8. Default: 2.
    pub fn devices(mut self, devices: usize) -> Self {
        self.0.devices = devices.clamp(1, crate::memory::address::MAX_DEVICES);
        self
    }

    /// Sets the bytes of memory on each device. Default: 16 GiB. At most 3 TiB.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.0.capacity = bytes.min(3 << 40);
        self
    }

    /// Sets the seed of the scheduler's choices. Default: 0. The same seed gives the same run, as
    /// long as one thread calls the driver, and does not pause while a host function or a write to
    /// host memory of at most 8 bytes is queued: such work also runs when no call has been made for
    /// 10 ms.
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.seed = seed;
        self
    }

    /// Sets the time at which submitted work executes. Default: [`Policy::Random`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.0.policy = policy;
        self
    }

    /// Sets the order between host threads. Default: [`HostOrder::Linearised`].
    pub fn host_order(mut self, order: HostOrder) -> Self {
        self.0.host_order = order;
        self
    }

    /// Sets the value of a `CUdevice_attribute` (its number), instead of the default one.
    ///
    /// Calls depend on the attributes of support for virtual memory (102), handle types (103 to
    /// 105 and 128), RDMA to virtual memory (110), stream memory operations (92 to 94, 98, 122,
    /// 123): without support they return `CUDA_ERROR_NOT_SUPPORTED`.
    pub fn attribute(mut self, attribute: i32, value: i32) -> Self {
        self.0.attributes.insert(attribute, value);
        self
    }

    /// Sets whether each device can access the memory of the others directly. Default: it can.
    /// Without, copies between devices still work.
    pub fn peer_paths(mut self, exist: bool) -> Self {
        self.0.peer_paths = exist;
        self
    }

    /// Sets whether reports name the source lines that submitted the operations. Captures a call
    /// stack for each operation, so it is slow. Default: whether `DMR_SIM_BACKTRACE` is `1` or
    /// `full`.
    pub fn capture_call_sites(mut self, capture: bool) -> Self {
        self.0.frames = if capture { Frames::Innermost } else { Frames::None };
        self
    }

    /// Sets whether reports name all source lines of the program on the way to the operations, the
    /// innermost first. Captures as [`capture_call_sites`](Self::capture_call_sites) does, and
    /// replaces its setting. Default: whether `DMR_SIM_BACKTRACE=full` is set.
    pub fn capture_call_stacks(mut self, capture: bool) -> Self {
        self.0.frames = if capture { Frames::All } else { Frames::None };
        self
    }

    /// Sets whether reports name the thread that submitted an operation without a
    /// [`label`](crate::label()). Default: they do not.
    pub fn name_threads(mut self, name: bool) -> Self {
        self.0.thread_names = name;
        self
    }

    /// Sets the checks of kernels that run as PTX. Default: [`Checks::all`].
    pub fn checks(mut self, checks: Checks) -> Self {
        self.0.checks = checks;
        self
    }

    /// Sets the limits of launches of kernels that run as PTX. Default: those of
    /// [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.0.limits = limits;
        self
    }

    /// Drops findings of this kind from now on. Default: every kind is reported.
    pub fn ignore(mut self, kind: ReportKind) -> Self {
        self.0.ignored.push(kind);
        self
    }

    /// Calls `report` with each refusal, at the end of the call that was refused.
    pub fn report_refusals(mut self, report: fn(&Refusal)) -> Self {
        self.0.report_refusal = Some(report);
        self
    }

    /// Makes the universe, and installs the simulated driver if that has not happened.
    ///
    /// # Errors
    ///
    /// Those of [`install`].
    pub fn build(self) -> Result<Universe, InstallError> {
        install()?;
        Ok(Universe(Arc::new(UniverseOwner(registry::register(self.0)))))
    }
}

impl Universe {
    /// Makes a machine with two devices of 16 GiB each, whose work executes in random order.
    ///
    /// # Errors
    ///
    /// Those of [`install`].
    pub fn new() -> Result<Self, InstallError> {
        Self::builder().build()
    }

    /// Returns the configuration of a machine.
    pub fn builder() -> UniverseBuilder {
        UniverseBuilder(Config {
            devices: DEVICES,
            capacity: 16 << 30,
            seed: 0,
            policy: Policy::Random,
            host_order: HostOrder::Linearised,
            attributes: std::collections::BTreeMap::new(),
            peer_paths: true,
            thread_names: false,
            checks: Checks::all(),
            limits: Limits::default(),
            ignored: Vec::new(),
            report_refusal: None,
            frames: Frames::of_variable(std::env::var_os("DMR_SIM_BACKTRACE").as_deref()),
        })
    }

    /// Returns the CUDA ordinal of the universe's device 0, 1, ...; `usize::MAX` if there is none.
    #[must_use]
    pub fn ordinal(&self, device: usize) -> usize {
        self.shared().ordinals.get(device).copied().unwrap_or(usize::MAX)
    }

    /// Makes launches of the PTX entry `name` run `body`. `footprint` declares, at submission, the
    /// memory that a launch accesses; `body` runs when the launch executes, and can access only
    /// that. With [`Footprint::recorded`] it can access any memory, and the bytes that it touches
    /// are recorded. Neither may call the driver or the universe, and neither should own a clone of
    /// the universe, which would then never end.
    pub fn register_kernel(
        &self,
        name: &str,
        footprint: impl Fn(&KernelArgs) -> Footprint + Send + Sync + 'static,
        body: impl Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync + 'static,
    ) {
        let kernel = Kernel { footprint: Arc::new(footprint), body: Arc::new(body) };
        let replaced = self.session().kernels.registered.insert(name.to_owned(), kernel);
        drop(replaced); // not under the lock: this drops the values of the closures
    }

    /// Makes launches of PTX entries that have no body of their own, and that the interpreter
    /// cannot run as PTX, run `body`, which gets the entry's name. What a launch touches is
    /// recorded, as with [`Footprint::recorded`]: a body that does nothing makes launches without
    /// effect. Without a fallback such a launch returns `CUDA_ERROR_NOT_SUPPORTED`. What
    /// [`register_kernel`](Self::register_kernel) says about closures holds for `body`, too.
    pub fn register_fallback(
        &self,
        body: impl Fn(&str, &KernelArgs, &mut KernelMemory<'_>) + Send + Sync + 'static,
    ) {
        let replaced = self.session().kernels.fallback.replace(Arc::new(body));
        drop(replaced); // not under the lock: this drops the values of the closure
    }

    /// Returns the number of calls of each driver function, since the start or the last
    /// [`reset_calls`](Self::reset_calls). Calls that concern no device, such as `cuInit`, are not
    /// counted.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.shared().faults.counts()
    }

    /// Sets the counts of calls to 0.
    pub fn reset_calls(&self) {
        self.shared().faults.reset_counts();
    }

    /// Returns the findings about all work that was submitted, in the order of submission. Runs the
    /// launches whose footprint is recorded ([`Footprint::recorded`], and kernels as PTX) with what
    /// they come after; the random policy may run other work, too. A launch that waits for a word
    /// does not run: findings about it and about work that was submitted later come when it has
    /// run.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        let mut session = self.session();
        session.run_checks();
        session.checks.findings.set_read();
        session.checks.findings.verdict.reports.clone()
    }

    /// Returns what the simulator could not do so far, each once: images that it cannot load,
    /// kernels that it cannot run (when their module is loaded, and when they are launched without
    /// a registered body), and functions of the driver that it does not have. These are no
    /// findings: the program has got an error code.
    #[must_use]
    pub fn refusals(&self) -> Vec<Refusal> {
        self.session().refusals.clone()
    }

    /// Runs all submitted work, and returns all findings, leaks included. A stream that waits
    /// for a word that was not written is a finding, and continues.
    #[must_use]
    pub fn finish(&self) -> Verdict {
        let mut session = self.session();
        session.be_last();
        session.synchronize(|_| true);
        session.checks.findings.set_read();
        let mut findings = session.checks.findings.copied();
        session.leaks(&mut findings);
        findings.verdict
    }

    /// Fails the `n`-th call of a driver function from now on (counting from 1) with a
    /// `CUresult`. Functions are named by their symbols: "cuMemAlloc_v2".
    pub fn fail_nth(&self, call: &str, n: u64, code: Code) {
        self.shared().faults.fail(Some(call), n, code);
    }

    /// Fails the `n`-th driver call of any kind from now on, counting from 1.
    pub fn fail_call_number(&self, n: u64, code: Code) {
        self.shared().faults.fail(None, n, code);
    }

    /// Makes the `n`-th call of a driver function from now on report success and do nothing. It
    /// writes no results either, so this is for calls without a result: a record, a wait, a
    /// synchronisation.
    pub fn swallow_nth(&self, call: &str, n: u64) {
        self.shared().faults.swallow(call, n);
    }

    /// Stops the thread that makes the `n`-th call of a driver function from now on, inside that
    /// call, until the returned [`Hold`] is released or dropped. Other threads continue.
    pub fn hold_nth(&self, call: &str, n: u64) -> Hold {
        self.shared().faults.hold(Some(call), n)
    }

    /// Stops the thread as [`hold_nth`](Self::hold_nth) does, at the `n`-th driver call of any
    /// kind.
    pub fn hold_call_number(&self, n: u64) -> Hold {
        self.shared().faults.hold(None, n)
    }

    /// Stops the thread as [`hold_nth`](Self::hold_nth) does, after the work of the call, or its
    /// failure, and before it returns.
    pub fn hold_after_nth(&self, call: &str, n: u64) -> Hold {
        self.shared().faults.hold_after(call, n)
    }

    /// Runs `hook` at the start of every driver call of this universe, on the thread that makes the
    /// call and before the call takes a lock of the simulator. A hook that blocks holds that thread
    /// in the call; other threads continue. A call for which the hook returns a `CUresult` fails
    /// with it and does nothing. Returns `false`, and changes nothing, if the universe has a hook.
    ///
    /// The hook may not call the driver, and should not own a clone of the universe, which would
    /// then never end.
    pub fn on_entry(
        &self,
        hook: impl Fn(&'static str) -> Option<Code> + Send + Sync + 'static,
    ) -> bool {
        self.shared().faults.on_entry(Box::new(hook))
    }

    /// Makes mistakes in what launches declare: `alter` is called with the uses that each strict
    /// launch declares from now on, and each operation of a buffer, and may remove or change them.
    /// Would your test notice a use that was not declared? Only what the simulator compares is
    /// altered, not how the launch is ordered.
    ///
    /// `alter` may not call the driver or the universe.
    pub fn alter_declarations(&self, alter: impl FnMut(&mut Vec<DeclaredUse>) + Send + 'static) {
        let replaced = self.session().declarations.alter.replace(Box::new(alter));
        drop(replaced); // not under the lock: this drops the values of the closure
    }

    /// Removes all faults that were not applied yet.
    pub fn clear_faults(&self) {
        self.shared().faults.clear();
    }

    /// Makes every call that concerns the device return this `CUresult` from now on, as after a
    /// sticky error.
    pub fn lose_device(&self, device: usize, code: Code) {
        if let Some(device) = self.session().devices.get_mut(device) {
            device.lost = Some(code);
        }
    }

    /// Returns the clock of the calling host thread, for [`observe`](Self::observe) on another
    /// thread ([`HostOrder::PerThread`]).
    #[must_use]
    pub fn publish(&self) -> HostToken {
        HostToken(self.session().host.of_this_thread())
    }

    /// Adds the clock of the publishing host thread to that of the calling one.
    pub fn observe(&self, token: &HostToken) {
        self.session().host_learns(&token.0);
    }

    /// Reports a heap of a pool, `bytes` bytes at `ptr`: only its regions may be accessed. The
    /// heaps of a pool whose upstream is another pool are inside of that one's regions.
    pub fn heap_created(&self, ptr: u64, bytes: usize) {
        self.session().heap_created(ptr, bytes as u64);
    }

    /// Reports the end of the innermost heap that starts at `ptr`.
    pub fn heap_destroyed(&self, ptr: u64) {
        self.session().heap_destroyed(ptr);
    }

    /// Reports a block of a pool, `bytes` bytes at `ptr`. Their content is undefined; uses of the
    /// previous block still count. It is a finding if the bytes are not inside of a heap, or
    /// belong to another block.
    pub fn region_allocated(&self, ptr: u64, bytes: usize, tag: &str) {
        self.session().region_allocated(ptr, bytes as u64, 0, tag);
    }

    /// Reports the free of the block at `ptr`, which may not be accessed any more. It is a finding
    /// if there is none.
    pub fn region_freed(&self, ptr: u64) {
        self.session().region_freed(ptr);
    }

    /// Names an allocation or region for reports.
    pub fn name_allocation(&self, ptr: u64, tag: &str) {
        self.session().name_allocation(ptr, tag.into());
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    fn session(&self) -> Session<'_> {
        assert!(!callback::is_running(), "a kernel or host callback cannot use its universe");
        assert!(!is_forked_child(), "a forked child cannot use the universe of its parent");
        self.shared().session()
    }
}

impl fmt::Debug for Universe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Universe")
            .field("ordinals", &self.shared().ordinals)
            .finish_non_exhaustive()
    }
}

/// The clock of a host thread, from [`Universe::publish`]: the operations that it has found
/// complete.
#[derive(Clone, Debug)]
pub struct HostToken(Clock);
