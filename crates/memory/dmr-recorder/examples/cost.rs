//! Nanoseconds of an event: while the recorder is off, on, and on while another thread writes
//! recordings.
#![allow(clippy::print_stdout, reason = "an example")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dmr_core::{AllocTag, Generation, StreamId, StreamPoolId};
use dmr_recorder::hooks::{self, RecordedBlock};
use dmr_recorder::{RecorderConfig, start, write_recording_to};

const EVENTS: u64 = 20_000_000;

fn main() {
    let pool = StreamPoolId::next().expect("the first pool");
    let stream = StreamId::from_parts(pool, 3, 1).expect("a small slot");
    let generation = Generation::next().get();
    let tag = AllocTag::new("kv-cache");
    let measure = |what: &str| {
        let began = Instant::now();
        for event in 0..EVENTS {
            let address = black_box(event << 8);
            hooks::allocated_coarse(|| RecordedBlock {
                address,
                bytes: event,
                generation,
                stream,
                tag,
            });
        }
        let ns = began.elapsed().as_nanos() as f64 / EVENTS as f64;
        println!("{what:<28} {ns:.2} ns an event");
    };
    measure("off");
    start(RecorderConfig::new()).expect("the recorder starts");
    measure("on");
    measure("on");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write_recording_to(std::io::sink()).expect("a sink takes all");
            }
        });
        measure("on, written meanwhile");
        stop.store(true, Ordering::Relaxed);
    });
    let began = Instant::now();
    for _ in 0..EVENTS {
        black_box(Instant::now());
    }
    let ns = began.elapsed().as_nanos() as f64 / EVENTS as f64;
    println!("{:<28} {ns:.2} ns", "Instant::now");
    #[cfg(target_arch = "x86_64")]
    {
        let began = Instant::now();
        for _ in 0..EVENTS {
            // SAFETY: every x86-64 processor has this instruction.
            #[allow(unsafe_code, unused_unsafe, reason = "an instruction")]
            black_box(unsafe { std::arch::x86_64::_rdtsc() });
        }
        let ns = began.elapsed().as_nanos() as f64 / EVENTS as f64;
        println!("{:<28} {ns:.2} ns", "the cycle counter alone");
    }
}
