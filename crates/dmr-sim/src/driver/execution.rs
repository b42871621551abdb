//! Execution control: kernel launches.

use std::ffi::{c_uint, c_void};

use super::chapter;
use crate::abi::*;
use crate::callback;
use crate::history::Access;
use crate::kernel::{Footprint, KernelArgs};
use crate::machine::{Action, Launch};
use crate::session::{Scope, Session, driver_call};

chapter![cuLaunchKernel];

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    driver_call("cuLaunchKernel", Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads = block.iter().try_fold(1u32, |product, &n| product.checked_mul(n));
        if grid.contains(&0) || !threads.is_some_and(|threads| (1..=1024).contains(&threads)) {
            return Err(ERROR_INVALID_VALUE);
        }
        if !extra.is_null() {
            return Err(ERROR_NOT_SUPPORTED); // packed argument buffers
        }
        let entry = session.function(function)?;
        let mut copied = Vec::with_capacity(entry.params.len());
        if params.is_null() && !entry.params.is_empty() {
            return Err(ERROR_INVALID_VALUE);
        }
        for (i, &bytes) in entry.params.iter().enumerate() {
            // SAFETY: by the driver's contract, `params` points to one pointer for each
            // parameter of the function, and each of these to the parameter's bytes.
            let param = unsafe {
                let param = params.add(i).read_unaligned().cast::<u8>();
                if param.is_null() {
                    return Err(ERROR_INVALID_VALUE);
                }
                std::slice::from_raw_parts(param, bytes)
            };
            copied.push(param.into());
        }
        let name = entry.name.clone();
        launch(session, stream, &name, KernelArgs::new(copied, grid, block))
    })
}

fn launch(session: &mut Session<'_>, stream: u32, name: &str, args: KernelArgs) -> Outcome {
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
