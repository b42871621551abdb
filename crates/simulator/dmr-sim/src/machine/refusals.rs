//! Refusals: images, kernels and functions of the driver that the simulator cannot load, run or
//! call, with the reasons.

use crate::kernel::{CompilerLog, Refusal, Refused};
use crate::machine::Session;

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
