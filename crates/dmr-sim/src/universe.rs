//! One simulated machine, as tests hold it.

use std::fmt;
use std::sync::Arc;

use crate::abi::Code;
use crate::callback;
use crate::clock::Clock;
use crate::faults::{CallCounts, Hold};
use crate::install::{InstallError, install};
use crate::kernel::{Footprint, Kernel, KernelArgs, KernelMemory};
use crate::machine::Config;
use crate::registry;
use crate::report::{Report, ReportKind, Verdict};
use crate::session::{Session, Shared, is_forked_child};
use crate::shadow::Findings;

/// When submitted work executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// As soon as it can.
    Eager,
    /// Not before somebody waits for it, and then only what that needs.
    Lazy,
    /// Now or later, in an order drawn from the seed.
    Random,
}

/// What one host thread's knowledge means for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostOrder {
    /// What one thread has learned to be complete, all threads know from then on. The simulator
    /// sees no mutex and no channel, so this is what gives no false alarm; a missing hand-over
    /// between host threads goes unnoticed.
    Linearised,
    /// Each thread knows only what it learned itself, or was told with [`Universe::publish`] and
    /// [`Universe::observe`].
    PerThread,
}

/// One simulated machine: its devices occupy CUDA ordinals of their own until it ends.
///
/// Each test makes its own, so tests run in parallel in one process. `Clone` is cheap and names
/// the same universe; it ends when the last clone is dropped. After that its handles are refused
/// by the driver. Its ordinals become another universe's once every retained primary context has
/// been released, which may be later.
///
/// Kernels and host callbacks are the device's work: they may not call the driver, which answers
/// `CUDA_ERROR_NOT_PERMITTED` there, nor their universe, which panics (in a kernel this becomes a
/// report). Only the methods about calls and faults can be used everywhere. A forked child has no
/// driver: there, every call answers `CUDA_ERROR_NOT_INITIALIZED`.
#[derive(Clone)]
pub struct Universe(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        if is_forked_child() {
            // A thread of the parent may have been half-way through changing it.
            std::mem::forget(Arc::clone(&self.0));
        }
        registry::unregister(&self.0);
    }
}

/// How a [`Universe`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct UniverseBuilder(Config);

impl UniverseBuilder {
    /// How many devices, 1 to 8. Default: 2.
    pub fn devices(mut self, devices: usize) -> Self {
        self.0.devices = devices.clamp(1, crate::address::MAX_DEVICES);
        self
    }

    /// Bytes of memory on each device. Default: 16 GiB. At most 3 TiB.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.0.capacity = bytes.min(3 << 40);
        self
    }

    /// Where the scheduler's choices start. Default: 0. The same seed gives the same run, as
    /// long as one thread calls the driver.
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.seed = seed;
        self
    }

    /// When submitted work executes. Default: [`Policy::Random`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.0.policy = policy;
        self
    }

    /// What one host thread's knowledge means for the others. Default:
    /// [`HostOrder::Linearised`].
    pub fn host_order(mut self, order: HostOrder) -> Self {
        self.0.host_order = order;
        self
    }

    /// What the devices answer for a `CUdevice_attribute` (its number), instead of what they do.
    ///
    /// Calls obey those that say what is supported: of virtual memory (102), of handle types (103 to
    /// 105 and 128), RDMA to virtual memory (110), stream memory operations (92 to 94, 98, 122,
    /// 123). What is not supported is refused with `CUDA_ERROR_NOT_SUPPORTED`.
    pub fn attribute(mut self, attribute: i32, value: i32) -> Self {
        self.0.attributes.insert(attribute, value);
        self
    }

    /// Whether reports name the source line that submitted each side. Captures a call stack an
    /// operation, so it is slow. Default: whether `DMR_SIM_BACKTRACE=1` is set.
    pub fn capture_call_sites(mut self, capture: bool) -> Self {
        self.0.call_sites = capture;
        self
    }

    /// Makes the universe, and installs the simulated driver if that has not happened.
    ///
    /// # Errors
    ///
    /// Those of [`install`].
    pub fn build(self) -> Result<Universe, InstallError> {
        install()?;
        Ok(Universe(Arc::new(Owner(registry::register(self.0)))))
    }
}

impl Universe {
    /// A machine with two devices of 16 GiB each, whose work executes in random order.
    ///
    /// # Errors
    ///
    /// Those of [`install`].
    pub fn new() -> Result<Self, InstallError> {
        Self::builder().build()
    }

    /// A machine of another shape.
    pub fn builder() -> UniverseBuilder {
        UniverseBuilder(Config {
            devices: 2,
            capacity: 16 << 30,
            seed: 0,
            policy: Policy::Random,
            host_order: HostOrder::Linearised,
            attributes: std::collections::BTreeMap::new(),
            call_sites: std::env::var_os("DMR_SIM_BACKTRACE").is_some_and(|set| set == "1"),
        })
    }

    /// The CUDA ordinal of the universe's device 0, 1, ...; `usize::MAX` if there is none.
    #[must_use]
    pub fn ordinal(&self, device: usize) -> usize {
        self.shared().ordinals.get(device).copied().unwrap_or(usize::MAX)
    }

    /// Makes launches of the PTX entry `name` run `body`. `footprint` declares, at submission,
    /// what a launch touches; `body` runs when the launch executes, and is held to it. Neither
    /// may call the driver or the universe, and neither should own a clone of the universe, which
    /// would then never end.
    pub fn register_kernel(
        &self,
        name: &str,
        footprint: impl Fn(&KernelArgs) -> Footprint + Send + Sync + 'static,
        body: impl Fn(&KernelArgs, &mut KernelMemory<'_>) + Send + Sync + 'static,
    ) {
        let kernel = Kernel { footprint: Arc::new(footprint), body: Arc::new(body) };
        let replaced = self.session().kernels.insert(name.to_owned(), kernel);
        drop(replaced); // not under the lock: the closures' own values go with it
    }

    /// How often each driver function was called, since the start or the last
    /// [`reset_calls`](Self::reset_calls). Calls that concern no device, such as `cuInit`, are not
    /// counted.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.shared().faults.counts()
    }

    /// Starts counting calls from 0.
    pub fn reset_calls(&self) {
        self.shared().faults.reset_counts();
    }

    /// The findings so far, in the order of submission.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        self.session().findings.0.reports.clone()
    }

    /// Runs all submitted work, and answers all findings, leaks among them. A stream that waits
    /// for a word which nothing has written by now is a finding, and goes on.
    #[must_use]
    pub fn finish(&self) -> Verdict {
        let mut session = self.session();
        session.be_last();
        session.synchronize(|_| true);
        let mut findings = Findings(session.findings.0.clone());
        for (address, allocation) in session.shadow.allocations() {
            findings.push(Report {
                kind: ReportKind::Leak,
                first: None,
                second: allocation.origin.site(allocation.made.as_ref().map(|made| made.epoch)),
                device: allocation.home.device(),
                address,
                bytes: allocation.bytes,
                tag: allocation.tag.clone(),
            });
        }
        session.virtual_leaks(&mut findings);
        findings.0
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
    /// answers nothing either, so this is for calls that give no value: a record, a wait, a
    /// synchronisation.
    pub fn swallow_nth(&self, call: &str, n: u64) {
        self.shared().faults.swallow(call, n);
    }

    /// Stops the thread that makes the `n`-th call of a driver function from now on, inside that
    /// call, until the answer is released or dropped. Other threads go on.
    pub fn hold_nth(&self, call: &str, n: u64) -> Hold {
        self.shared().faults.hold(Some(call), n)
    }

    /// As [`hold_nth`](Self::hold_nth), for the `n`-th driver call of any kind.
    pub fn hold_call_number(&self, n: u64) -> Hold {
        self.shared().faults.hold(None, n)
    }

    /// As [`hold_nth`](Self::hold_nth), when the call has acted, or has failed, and before it
    /// returns.
    pub fn hold_after_nth(&self, call: &str, n: u64) -> Hold {
        self.shared().faults.hold_after(call, n)
    }

    /// Runs `hook` at the start of every driver call of this universe, on the thread that makes the
    /// call and before the call takes a lock of the simulator. A hook that blocks holds that thread
    /// in the call; other threads go on. A call for which the hook returns a `CUresult` fails with
    /// it and does nothing. Returns `false`, and changes nothing, if the universe has a hook.
    ///
    /// The hook may not call the driver, and should not own a clone of the universe, which would
    /// then never end.
    pub fn on_entry(
        &self,
        hook: impl Fn(&'static str) -> Option<Code> + Send + Sync + 'static,
    ) -> bool {
        self.shared().faults.on_entry(Box::new(hook))
    }

    /// Takes back all faults that have not happened yet.
    pub fn clear_faults(&self) {
        self.shared().faults.clear();
    }

    /// From now on every call that concerns the device answers this `CUresult`, as after a
    /// sticky error.
    pub fn lose_device(&self, device: usize, code: Code) {
        if let Some(device) = self.session().devices.get_mut(device) {
            device.lost = Some(code);
        }
    }

    /// What the calling host thread knows to be complete, to hand to another thread
    /// ([`HostOrder::PerThread`]).
    #[must_use]
    pub fn publish(&self) -> HostToken {
        HostToken(self.session().host_clock())
    }

    /// The calling host thread now knows what the publishing one knew.
    pub fn observe(&self, token: &HostToken) {
        self.session().host_learns(&token.0);
    }

    /// A pool took `bytes` bytes at `ptr` to carve up: only its regions may be touched. A pool
    /// that takes its memory from another has its heaps inside of that one's regions.
    pub fn heap_created(&self, ptr: u64, bytes: usize) {
        self.session().shadow.heap_created(ptr, bytes as u64);
    }

    /// The innermost heap that starts at `ptr` is no pool's any more.
    pub fn heap_destroyed(&self, ptr: u64) {
        self.session().shadow.heap_destroyed(ptr);
    }

    /// A pool handed out `bytes` bytes at `ptr`. Their content is undefined; uses of the
    /// previous owner still count. It is a finding if the bytes are not inside of a heap, or
    /// handed out already.
    pub fn region_allocated(&self, ptr: u64, bytes: usize, tag: &str) {
        self.session().region_allocated(ptr, bytes as u64, tag);
    }

    /// The region at `ptr` may not be touched any more. It is a finding if there is none.
    pub fn region_freed(&self, ptr: u64) {
        self.session().region_freed(ptr);
    }

    /// Names an allocation or region for reports.
    pub fn name_allocation(&self, ptr: u64, tag: &str) {
        self.session().shadow.name(ptr, tag.into());
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    fn session(&self) -> Session<'_> {
        assert!(!callback::is_running(), "a kernel or host callback cannot ask its universe");
        assert!(!is_forked_child(), "a forked child cannot ask the universe of its parent");
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

/// What a host thread knew to be complete: from [`Universe::publish`].
#[derive(Clone, Debug)]
pub struct HostToken(Clock);
