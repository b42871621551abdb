//! Programs whose kernels record their footprints while they run have the verdict of the same
//! programs with declared footprints: random programs under every scheduling policy, judged by the
//! oracle.
//!
//! Some launches are recorded, or all of them. A program without a finding computes the same bytes
//! as in submission order.

use crate::support::judge::{self, Agreed};
use crate::support::{generate, shrink};
use dmr_sim::Policy;

const PROGRAMS: u64 = 2_000;

#[test]
fn a_recorded_footprint_is_judged_as_a_declared_one_when_work_executes_at_once() {
    compare(Policy::Eager);
}

#[test]
fn a_recorded_footprint_is_judged_as_a_declared_one_when_work_waits_to_be_waited_for() {
    compare(Policy::Lazy);
}

#[test]
fn a_recorded_footprint_is_judged_as_a_declared_one_when_work_executes_in_random_order() {
    compare(Policy::Random);
}

fn compare(policy: Policy) {
    let mut racy = 0;
    for seed in 0..PROGRAMS {
        let program = generate::any(seed);
        match judge::agree_late(&program, policy, seed) {
            Ok(Agreed::Clean) => {}
            Ok(Agreed::Racy) => racy += 1,
            Err(why) => {
                let fails = |shorter: &_| judge::agree_late(shorter, policy, seed).err();
                let (small, why) = shrink::shrink(&program, why, fails);
                panic!("{policy:?}, seed {seed}: {why}\n{small}");
            }
        }
    }
    assert!((PROGRAMS / 3..=PROGRAMS * 2 / 3).contains(&racy), "{racy} are no fair mix");
}
