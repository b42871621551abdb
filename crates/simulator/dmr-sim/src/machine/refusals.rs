//! Refusals: images, kernels and functions of the driver that the simulator cannot load, run or
//! call, with the reasons.

use std::fmt;

use crate::kernel::compiler_log::CompilerLog;
use crate::kernel::image::Refused;
use crate::machine::session::Session;

/// A refusal of the simulated driver: an image that it cannot load, a kernel that it cannot run, or
/// a function that it does not have. The program has got an error code, and this is its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The driver's function: one that loads a module, for a kernel of it that cannot run; one that
    /// launches, for each launch of it.
    pub call: &'static str,
    /// The kernel that cannot run; `None` for an image or a function.
    pub kernel: Option<String>,
    /// The line of the PTX text, from 1.
    pub line: Option<u32>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.call)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "kernel `{kernel}` cannot run: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// The number of refusals that are kept.
const MAX_REFUSALS: usize = 1000;

impl Session<'_> {
    /// Keeps a refusal, unless it is known. It is reported at the end of the call, without the
    /// lock.
    fn refuse(&mut self, refusal: Refusal) {
        if self.refusals.len() >= MAX_REFUSALS || self.refusals.contains(&refusal) {
            return;
        }
        self.refused.push(refusal.clone());
        self.refusals.push(refusal);
    }

    /// Keeps the reason why an image cannot be loaded, also for the program's log.
    pub(crate) fn refuse_image(
        &mut self,
        refused: Refused,
        log: &mut CompilerLog,
    ) -> crate::abi::Code {
        let Refused { code, reason, line } = refused;
        log.errors.clone_from(&reason);
        let call = self.call;
        self.refuse(Refusal { call, kernel: None, line, reason });
        code
    }

    /// Keeps the reason why a kernel cannot run.
    pub(crate) fn refuse_kernel(&mut self, kernel: &str, refused: Refused) {
        let Refused { reason, line, .. } = refused;
        let call = self.call;
        let kernel = Some(kernel.to_owned());
        self.refuse(Refusal { call, kernel, line, reason });
    }

    /// Keeps the reason why this function of the driver is refused.
    pub(crate) fn refuse_call(&mut self, reason: String) {
        let call = self.call;
        self.refuse(Refusal { call, kernel: None, line: None, reason });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::sync::{Mutex, OnceLock};
    use std::time::Duration;

    use super::*;
    use crate::abi::{CUdevice, ERROR_NOT_SUPPORTED};
    use crate::host::initialised::initialised;
    use crate::machine::session::{Scope, driver_call};
    use crate::process::universe::Universe;

    static UNIVERSE: OnceLock<Universe> = OnceLock::new();
    static OTHERS_COULD_CALL: Mutex<Vec<bool>> = Mutex::new(Vec::new());

    fn report(_: &Refusal) {
        let (done, heard) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = UNIVERSE.get().map(Universe::refusals);
            let _ = done.send(());
        });
        let could = heard.recv_timeout(Duration::from_secs(5)).is_ok();
        OTHERS_COULD_CALL.lock().unwrap().push(could);
    }

    #[test]
    fn a_refusal_is_reported_once_and_without_the_lock() {
        let universe = Universe::builder().report_refusals(report).build().unwrap();
        let device = universe.ordinal(0) as CUdevice;
        UNIVERSE.set(universe).unwrap();
        initialised();
        for _ in 0..2 {
            let code = driver_call("cuArrayDestroy", Scope::Device(device), |session| {
                session.refuse_call("there are no arrays".to_owned());
                Err(ERROR_NOT_SUPPORTED)
            });
            assert_eq!(code, ERROR_NOT_SUPPORTED);
        }
        assert_eq!(*OTHERS_COULD_CALL.lock().unwrap(), [true]);
    }
}
