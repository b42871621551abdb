//! Allocate, fill, copy, check and free: on a GPU if there is one, else on the simulated driver.
//!
//! `cargo run -p dmr --example quickstart`

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;

use dmr::prelude::*;
use dmr_sim::{Driver, Universe};

const WORDS: usize = 16 << 20;
const VALUE: u32 = 0xD0_0D_F0_0D;

fn main() -> Result<(), Box<dyn Error>> {
    let simulated = match dmr_sim::select()? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));

    let gpu = DeviceRuntime::try_get(ordinal)?;
    let name = if simulated.is_some() { "simulated" } else { gpu.device().name() };
    println!("driver   {name}");

    let stream = gpu.streams().acquire()?;
    let mut source =
        DeviceBuffer::<u32>::uninit_tagged(gpu, &stream, WORDS, AllocTag::new("source"))?;
    let mut copy = DeviceBuffer::<u32>::uninit_tagged(gpu, &stream, WORDS, AllocTag::new("copy"))?;
    let memory = gpu.resource();
    println!("holds    {memory:?}: {} MiB in 2 blocks", memory.usage().live >> 20);

    source.fill(VALUE, &stream)?;
    copy.copy_from(&source, &stream)?;
    drop(source); // freed after the copy
    let wrong = copy.to_host(&stream)?.iter().filter(|word| **word != VALUE).count();
    println!("checked  {} MiB copied, {wrong} words are wrong", copy.size_in_bytes() >> 20);

    drop(copy);
    memory.reap_pending()?;
    println!("freed    {} MiB", memory.usage().total_freed >> 20);
    if let Some(universe) = simulated {
        println!("races    {}", universe.reports().len());
    }
    Ok(())
}
