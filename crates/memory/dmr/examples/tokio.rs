//! Four tasks on four streams: each awaits its own work, and no thread waits for the GPU.
//!
//! The executor has one thread. A task that is too slow is given up by a timeout; its work on the
//! device goes on.
//!
//! `cargo run -p dmr --example tokio`

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use dmr::prelude::*;
use dmr_sim::{Driver, Universe};

const LEN: usize = 1 << 20;
/// Longer than the timeout.
const SLOW_NANOSECONDS: u64 = 500_000_000;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let simulated = match dmr_sim::select()? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
    let gpu = Arc::new(DeviceRuntime::builder(ordinal).build()?);
    let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    executor.block_on(async {
        let tasks: Vec<_> =
            (1..=4).map(|value| tokio::spawn(work(Arc::clone(&gpu), value))).collect();
        for task in tasks {
            let (value, sum) = task.await??;
            println!("the task of {value}: a sum of {sum}");
        }
        give_up(&gpu).await
    })?;
    gpu.shutdown()?;
    Ok(())
}

/// Fills a buffer on a stream of its own, and reads it back when that is done.
async fn work(gpu: Arc<DeviceRuntime>, value: u32) -> Outcome<(u32, u64)> {
    let stream = gpu.streams().acquire()?;
    let mut buffer = DeviceBuffer::<u32>::uninit(&gpu, &stream, LEN)?;
    buffer.fill(value, &stream)?;
    // Pinned memory, which is read without another copy.
    let elements = buffer.to_host_async(&stream).await?;
    Ok((value, elements.iter().map(|&element| u64::from(element)).sum()))
}

/// Stops waiting for a stream that is too slow, and waits for it after all.
async fn give_up(gpu: &DeviceRuntime) -> Outcome {
    let stream = gpu.streams().acquire()?;
    let ops = PatternOps::new(Arc::clone(gpu.streams()))?;
    ops.delay(stream.id(), SLOW_NANOSECONDS)?;
    let completed = gpu.streams().completed(&stream);
    match tokio::time::timeout(Duration::from_millis(20), completed).await {
        Ok(done) => done?, // the time of a simulated machine is not ours
        Err(_) => println!("too slow: the task goes on with something else"),
    }
    gpu.streams().completed(&stream).await?;
    Ok(())
}
