//! The configuration of a machine.

use std::collections::BTreeMap;
use std::ffi::c_int;

use dmr_ptx::{Checks, Limits};

use crate::check::ReportKind;
use crate::host::Frames;
use crate::kernel::Refusal;

/// The time at which submitted work executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// As soon as it can.
    Eager,
    /// Runs work when it is waited for, and then only the work that the wait needs.
    Lazy,
    /// Now or later, in an order drawn from the seed.
    Random,
}

/// The order between host threads: whether work that one has found complete is complete for the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostOrder {
    /// Work that one thread has found complete is complete for all threads from then on. The
    /// simulator sees no mutex and no channel, so this setting gives no false alarm; a missing
    /// order between host threads is not detected.
    Linearised,
    /// Each thread has its own clock, to which [`Universe::publish`](crate::Universe::publish) and
    /// [`Universe::observe`](crate::Universe::observe) add that of another thread.
    PerThread,
}

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) devices: usize,
    pub(crate) capacity: u64,
    pub(crate) seed: u64,
    pub(crate) policy: Policy,
    pub(crate) host_order: HostOrder,
    pub(crate) frames: Frames,
    /// True if a thread without a label has its name as one.
    pub(crate) thread_names: bool,
    /// True if a device can access the memory of the others.
    pub(crate) peer_paths: bool,
    /// Attributes whose values replace those of `device_attribute`.
    pub(crate) attributes: BTreeMap<c_int, c_int>,
    /// The checks and limits of kernels that run as PTX.
    pub(crate) checks: Checks,
    pub(crate) limits: Limits,
    /// The kinds of findings that are dropped.
    pub(crate) ignored: Vec<ReportKind>,
    /// Called with each refusal.
    pub(crate) report_refusal: Option<fn(&Refusal)>,
}
