//! A recording after a signal: the handler sets a flag, which the thread of the recorder looks at.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::StartError;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Returns whether the signal has come since the last call.
pub(crate) fn was_asked() -> bool {
    ASKED.swap(false, Ordering::Relaxed)
}

/// Sets the handler of a signal.
///
/// # Errors
///
/// [`Signal`](StartError::Signal) if the program has a handler for it, or the system refuses.
#[cfg(unix)]
#[allow(unsafe_code, reason = "sets a signal handler")]
pub(crate) fn watch(signal: i32) -> Result<(), StartError> {
    extern "C" fn handler(_: libc::c_int) {
        ASKED.store(true, Ordering::Relaxed);
    }
    /// Of a handler that returns, the fault would come again for ever.
    const OF_FAULTS: [i32; 6] =
        [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];
    let ours = handler as *const () as libc::sighandler_t;
    let refused = |problem| StartError::Signal { signal, problem };
    if OF_FAULTS.contains(&signal) {
        return Err(refused("a fault of the program raises it: use one such as `SIGUSR2`"));
    }
    let mut known = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: writes the handler of the signal to `known`.
    if unsafe { libc::sigaction(signal, std::ptr::null(), known.as_mut_ptr()) } != 0 {
        return Err(refused("the system has no such signal"));
    }
    // SAFETY: written by the call above, and zeros are a value of the type.
    let known = unsafe { known.assume_init() }.sa_sigaction;
    if known == ours {
        return Ok(());
    }
    if known != libc::SIG_DFL && known != libc::SIG_IGN {
        return Err(refused("the program has a handler for it"));
    }
    // SAFETY: zeros are a value of the type: no flags, and no signal blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler writes an atomic, which a handler may do.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(refused("the system refuses a handler for it")),
    }
}

#[cfg(not(unix))]
pub(crate) fn watch(signal: i32) -> Result<(), StartError> {
    let problem = "signals are used on Unix only";
    Err(StartError::Signal { signal, problem })
}
