//! The runtimes of the process, by handle.
//!
//! A handle is a number that is never used again, so a handle of a destroyed runtime, or any other
//! number, is an error and no access to freed memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use dmr::dmr_core::Process;
use rustc_hash::FxHashMap;

use crate::RuntimeHandle;
use crate::runtime::Runtime;
use crate::status::{Failure, Outcome, Status};

type Runtimes = FxHashMap<usize, Arc<Runtime>>;

static RUNTIMES: OnceLock<RwLock<Runtimes>> = OnceLock::new();

/// The process that has made the first runtime. Every call compares it before it takes a lock: in
/// a forked child another thread may hold each of them for good.
static MADE_IN: OnceLock<Process> = OnceLock::new();

/// The step between two handles: a handle looks like an address that is aligned, and is below each
/// address that a program can have.
const STEP: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(STEP);

/// Errors in a forked child of the process that has made the first runtime. Takes no lock.
pub(crate) fn refuse_fork() -> Outcome<()> {
    match MADE_IN.get() {
        Some(made_in) if !made_in.is_current() => Err(Failure::new(
            Status::ForkedProcess,
            "this process was forked after a runtime was made, and CUDA does not survive a fork: \
             start the child as a new process",
        )),
        _ => Ok(()),
    }
}

/// Makes this the process of all runtimes, unless one was made before.
pub(crate) fn claim_process() -> Outcome<()> {
    MADE_IN.get_or_init(Process::current);
    refuse_fork()
}

/// Adds a runtime, and returns its handle.
pub(crate) fn add(runtime: Runtime) -> *mut RuntimeHandle {
    let number = NEXT.fetch_add(STEP, Ordering::Relaxed);
    let mut runtimes = runtimes().write().unwrap_or_else(PoisonError::into_inner);
    runtimes.insert(number, Arc::new(runtime));
    std::ptr::without_provenance_mut(number)
}

/// Returns the runtime of a handle. Takes a lock, so the caller has refused a forked child.
pub(crate) fn find(handle: *const RuntimeHandle) -> Outcome<Arc<Runtime>> {
    let runtimes = runtimes().read().unwrap_or_else(PoisonError::into_inner);
    runtimes.get(&handle.addr()).map(Arc::clone).ok_or_else(|| unknown(handle))
}

/// Removes the runtime of a handle. Takes a lock, as [`find`] does.
pub(crate) fn remove(handle: *const RuntimeHandle) -> Outcome<Arc<Runtime>> {
    let mut runtimes = runtimes().write().unwrap_or_else(PoisonError::into_inner);
    runtimes.remove(&handle.addr()).ok_or_else(|| unknown(handle))
}

fn runtimes() -> &'static RwLock<Runtimes> {
    RUNTIMES.get_or_init(RwLock::default)
}

fn unknown(handle: *const RuntimeHandle) -> Failure {
    let text = match handle.is_null() {
        true => "the runtime is null: pass a handle of `dmr_runtime_create`".to_owned(),
        false => format!(
            "{handle:p} is no runtime: it was destroyed, or is no handle of `dmr_runtime_create`"
        ),
    };
    Failure::new(Status::UnknownRuntime, text)
}
