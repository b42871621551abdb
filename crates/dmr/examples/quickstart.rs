//! Allocate, fill, copy, check and free: on a GPU if there is one, else on the simulated driver.
//!
//! `cargo run -p dmr --example quickstart`

#![allow(unsafe_code, reason = "cudarc's copy takes device addresses")]
#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;

use dmr::cudarc::driver::result;
use dmr::prelude::*;
use dmr_sim::{Driver, Universe};

const BYTES: usize = 64 << 20;
const PATTERN: u32 = 0xD0_0D_F0_0D;

fn main() -> Result<(), Box<dyn Error>> {
    let simulated = match dmr_sim::select()? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));

    let runtime = DeviceRuntime::try_get(ordinal)?;
    let (memory, stream) = (runtime.resource(), runtime.streams().acquire()?);
    println!(
        "driver   {}",
        if simulated.is_some() { "simulated" } else { runtime.device().name() }
    );

    let source = memory.allocate(BYTES, stream.id(), AllocTag::new("source"))?;
    let copy = memory.allocate(BYTES, stream.id(), AllocTag::new("copy"))?;
    println!("holds    {memory:?}: {} MiB in 2 blocks", memory.usage().live >> 20);

    let ops = PatternOps::new(Arc::clone(runtime.streams()))?;
    ops.fill_pattern(&source, 0..BYTES, PATTERN, stream.id())?;
    // SAFETY: both blocks have BYTES bytes and are alive until the stream is synchronised below.
    unsafe {
        let stream = stream.stream().cu_stream();
        result::memcpy_dtod_async(copy.ptr(), source.ptr(), BYTES, stream)?;
    }
    ops.check_pattern(&copy, 0..BYTES, PATTERN, stream.id(), 0)?;
    let wrong = ops.collect()?;
    println!("checked  {} MiB copied on the stream, {} wrong", BYTES >> 20, wrong.len());

    memory.deallocate(source)?;
    memory.deallocate(copy)?;
    memory.reap_pending()?;
    println!("freed    {} MiB", memory.usage().total_freed >> 20);
    if let Some(universe) = simulated {
        println!("races    {}", universe.reports().len());
    }
    Ok(())
}
