//! Measures what a charge and its release cost with 1, 8 and 64 members, and a refusal:
//! `cargo run --release -p dmr-shared-limit --example cost`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::time::Instant;

use dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};

const LIMIT: u64 = 1 << 30;
const PAIRS: u32 = 20_000;
const REFUSALS: u32 = 200;

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
        let start = Instant::now();
        for _ in 0..PAIRS {
            limit.charge(1, largest)?;
            limit.release(1, Largest::default());
        }
        let pair = start.elapsed() / PAIRS;
        let start = Instant::now();
        let refused = (0..REFUSALS).filter(|_| limit.charge(LIMIT + 1, largest).is_err()).count();
        let refusal = start.elapsed() / REFUSALS;
        println!(
            "{members:>2} members: charge and release {pair:?}; refusal {refusal:?} ({refused})"
        );
    }
    Ok(())
}
