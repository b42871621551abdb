//! Measures what a future of a stream's work costs: its latency, its processor time, and the
//! throughput of streams beside it.
//!
//! `cargo run --release -p dmr-streams --example await_latency`

#![allow(clippy::print_stdout, reason = "prints figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dmr_core::StreamId;
use dmr_streams::Completed;
use dmr_testkit::{CountedWakes, HeldStream, Rig, block_on};

const REPEATS: usize = 1000;
const KERNELS: usize = 2000;
const KERNEL_NANOSECONDS: u64 = 5_000;

fn main() {
    let rig = Rig::new();
    println!("{}", rig.device());
    let [stream, other] = [rig.stream(), rig.stream()];
    rig.delay(&stream);
    block_on(rig.streams().completed(&stream)).expect("the first wait");
    latencies(&rig, stream.id());
    let plain = throughput(&rig, stream.id(), |_| ());
    println!("{KERNELS} kernels of 5 us: {plain:.2} us each");
    let mut kept: Vec<Completed> = Vec::new();
    let each = throughput(&rig, stream.id(), |_| kept.push(rig.streams().completed(&stream)));
    println!("  with a future of each: {each:.2} us");
    drop(kept);
    let held = HeldStream::hold(rig.streams(), &other);
    let wakes = Arc::new(CountedWakes::default());
    let start = Instant::now();
    let mut open: Vec<_> = (0..1000).map(|_| rig.streams().completed(&other)).collect();
    let opened = start.elapsed() / 1000;
    assert!(open.iter_mut().all(|wait| wakes.poll(wait).is_pending()));
    let beside = throughput(&rig, stream.id(), |_| ());
    println!("  with 1,000 futures open on a stream that is held up: {beside:.2} us");
    println!("a future takes {opened:?} to make");
    let cpu_before = processor_time();
    std::thread::sleep(Duration::from_secs(2));
    let share = (processor_time() - cpu_before).as_secs_f64() / 2.0;
    println!("processor time while they wait: {:.2} %", share * 100.0);
    let start = Instant::now();
    held.release();
    open.into_iter().for_each(|wait| block_on(wait).expect("the work"));
    println!("all 1,000 are ready {:?} after the stream goes on", start.elapsed());
}

fn latencies(rig: &Rig, stream: StreamId) {
    for micros in [5, 20, 100, 1000, 10_000] {
        let repeats = REPEATS.min(1_000_000 / micros as usize);
        let measure = |wait: &dyn Fn()| {
            let mut taken: Vec<_> = (0..repeats)
                .map(|_| {
                    let start = Instant::now();
                    rig.ops().delay(stream, micros * 1000).expect("a delay");
                    wait();
                    start.elapsed()
                })
                .collect();
            taken.sort();
            (taken[repeats / 2], taken[repeats * 99 / 100])
        };
        let blocked = measure(&|| rig.streams().synchronize(stream).expect("a wait"));
        let awaited = measure(&|| block_on(rig.streams().completed(stream)).expect("a wait"));
        println!("kernel of {micros} us: synchronize {blocked:?}, await {awaited:?} (median, p99)");
    }
}

/// Returns the microseconds of each kernel.
fn throughput(rig: &Rig, stream: StreamId, mut after_each: impl FnMut(usize)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..3 {
        rig.streams().synchronize(stream).expect("the work before");
        let start = Instant::now();
        for kernel in 0..KERNELS {
            rig.ops().delay(stream, KERNEL_NANOSECONDS).expect("a delay");
            after_each(kernel);
        }
        rig.streams().synchronize(stream).expect("the work");
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / KERNELS as f64);
    }
    best
}

/// Returns the processor time of the process so far, in steps of 10 ms.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let ticks: u64 = fields.take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
