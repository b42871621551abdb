//! Runs a scenario once per driver call that it makes, failing that call.

use crate::Rig;

/// Runs `scenario` on what `prepare` made, again and again: the first time its first driver call
/// fails with `code`, then its second, and so on, until it makes no more. Each time on a fresh
/// simulated machine. Answers how many calls were failed.
///
/// Only one call fails in each run, so the scenario can repeat what failed and must then succeed;
/// it says itself what must hold afterwards.
pub fn for_each_driver_call<T>(
    code: i32,
    prepare: impl Fn(&Rig) -> T,
    scenario: impl Fn(&Rig, T),
) -> u64 {
    for failing in 1.. {
        let rig = Rig::simulated();
        let prepared = prepare(&rig);
        let before = rig.universe().calls().total();
        rig.universe().fail_call_number(failing, code);
        scenario(&rig, prepared);
        let calls = rig.universe().calls().total() - before;
        rig.universe().clear_faults();
        if calls < failing {
            return failing - 1;
        }
    }
    unreachable!("the number of calls is finite")
}
