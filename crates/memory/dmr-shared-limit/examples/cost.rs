//! Measures what a charge and its release cost with 1, 8 and 64 members, and a refusal:
//! `cargo run --release -p dmr-shared-limit --example cost`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::time::{Duration, Instant};

use dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};

const LIMIT: u64 = 1 << 30;
const BATCHES: usize = 50;
const CALLS: u32 = 100;

/// Returns the mean time of a call in the fastest batch: the machine may have other work.
fn fastest(call: impl Fn() -> bool) -> Duration {
    let batch = |_| {
        let start = Instant::now();
        let done = (0..CALLS).filter(|_| call()).count();
        if done == CALLS as usize { start.elapsed() / CALLS } else { Duration::MAX }
    };
    (0..BATCHES).map(batch).min().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir_in("/dev/shm")?;
    for members in [1, 8, 64] {
        let group = format!("cost-{members}");
        let config = SharedLimitConfig::new([1; 16], LIMIT)
            .with_directory(directory.path())
            .with_group(group);
        let all: Vec<_> =
            (0..members).map(|_| SharedLimit::join(&config)).collect::<Result<_, _>>()?;
        let Some(limit) = all.last() else { continue };
        let largest = Largest { tag: "cost", bytes: 1 };
        let pair = fastest(|| {
            let is_charged = limit.charge(1, largest).is_ok();
            limit.release(1, Largest::default());
            is_charged
        });
        let refusal = fastest(|| limit.charge(LIMIT + 1, largest).is_err());
        println!("{members:>2} members: charge and release {pair:?}, refusal {refusal:?}");
    }
    Ok(())
}
