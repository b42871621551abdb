//! The submission of kernels: a registered body, PTX, or the fallback; their footprints and checks.

use crate::abi::*;
use crate::access::{AddressRange, Operation};
use crate::host::callback;
use crate::kernel::{Footprint, Kernel, KernelArgs, Refused};
use crate::machine::{Action, Launch, NodeWork, Session};

/// Submits a launch.
pub(crate) fn launch(
    session: &mut Session<'_>,
    stream: u32,
    function: u32,
    args: KernelArgs,
) -> Outcome {
    let name = &session.entry(function)?.name.clone();
    let kernel = kernel(session, function)?;
    let work = || NodeWork::Kernel { function, args: args.clone() };
    if session.capture(stream, work)? {
        return Ok(());
    }
    let declared = callback::run(|| (kernel.footprint)(&args)).map_err(|_| ERROR_LAUNCH_FAILED)?;
    let context = session.streams[stream as usize].context;
    let devices = session.contexts[context as usize].reaches.clone();
    let origin = session.declared(stream, session.kernel_origin(name));
    let (epoch, deps) = session.begin(stream);
    let operation = Operation { epoch, origin: origin.clone() };
    let ticket =
        declared.is_recorded.then(|| session.launch_unchecked(operation.clone(), &devices));
    let mut reachable = Footprint::new();
    if ticket.is_none() {
        session.access(&operation, &declared.ranges(), Some(&devices), true);
        let by = session.reach(stream, Some(&devices));
        let within = |ranges: &[AddressRange], writes| -> Vec<AddressRange> {
            let within = |range: &AddressRange| {
                let at = range.start();
                AddressRange::new(at, session.memory.present.reachable(at, range.len(), by, writes))
            };
            ranges.iter().map(within).collect()
        };
        reachable.reads = within(&declared.reads, false);
        reachable.writes = within(&declared.writes, true);
        reachable.atomics = within(&declared.atomics, true);
    }
    let launch = Box::new(Launch { kernel, args, declared, reachable, ticket, origin });
    session.push(epoch, deps, Action::Kernel(launch));
    Ok(())
}

/// Returns the behaviour of a kernel: its registered body, its PTX, or the fallback.
pub(crate) fn kernel(session: &mut Session<'_>, function: u32) -> Outcome<Kernel> {
    let name = session.entry(function)?.name.clone();
    if let Some(registered) = session.kernels.registered.get(&name) {
        return Ok(registered.clone());
    }
    let refused: Refused = match session.interpreted(function)? {
        Ok(kernel) => return Ok(kernel),
        Err(refused) => refused,
    };
    if let Some(fallback) = &session.kernels.fallback {
        return Ok(Kernel::of_fallback(fallback, &name));
    }
    session.refuse_kernel(&name, refused);
    Err(ERROR_NOT_SUPPORTED)
}
