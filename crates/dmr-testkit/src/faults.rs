//! Runs a scenario once per driver call that it makes, failing that call.

use crate::Rig;

/// Runs `scenario` once for each driver call that it makes, and makes that call fail with `code`. Each run
/// is on a new simulated machine, with a value that `prepare` makes. Returns the number of calls that failed.
///
/// Only one call fails in each run, so the scenario can repeat the failed call, which must then succeed.
/// The scenario itself checks the state afterwards.
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
