//! The submission of kernels: their footprints and checks.

use crate::abi::*;
use crate::callback;
use crate::history::Access;
use crate::kernel::{Footprint, KernelArgs};
use crate::machine::{Action, Launch};
use crate::session::Session;

/// Submits a launch.
pub(super) fn launch(
    session: &mut Session<'_>,
    stream: u32,
    name: &str,
    args: KernelArgs,
) -> Outcome {
    // A kernel that was not registered has no behaviour.
    let kernel = session.kernels.get(name).cloned().ok_or(ERROR_NOT_SUPPORTED)?;
    if session.captured(stream)? {
        return Ok(());
    }
    let declared = callback::run(|| (kernel.footprint)(&args)).map_err(|_| ERROR_LAUNCH_FAILED)?;
    let context = session.streams[stream as usize].context;
    let devices = session.contexts[context as usize].reaches.clone();
    let origin = session.kernel_origin(name);
    let (epoch, deps) = session.begin(stream);
    let access = Access { epoch, origin: origin.clone(), word: false };
    session.access(&access, &declared.reads, &declared.writes, Some(&devices), true);
    let by = session.reach(stream, Some(&devices));
    let reachable = |ranges: &[(u64, u64)], writes| -> Vec<(u64, u64)> {
        let within = |&(at, bytes)| (at, session.shadow.reachable(at, bytes, by, writes));
        ranges.iter().map(within).collect()
    };
    let (reads, writes) = (reachable(&declared.reads, false), reachable(&declared.writes, true));
    let reachable = Footprint { reads, writes, nanoseconds: None };
    let launch = Box::new(Launch { kernel, args, declared, reachable, origin });
    session.push(epoch, deps, Action::Kernel(launch));
    Ok(())
}
