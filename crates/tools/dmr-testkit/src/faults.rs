//! Runs a scenario once per driver call that it makes, failing that call.

use dmr_sim::Universe;

use crate::Rig;

/// Runs `scenario` once for each driver call that it makes, and makes that call fail with `code`.
/// Each run is on a new simulated machine, with a value that `prepare` makes. Returns the number of
/// calls that failed.
///
/// Only one call fails in each run, so the scenario can repeat the failed call, which must then
/// succeed. The scenario itself checks the state afterwards.
pub fn for_each_driver_call<T>(
    code: i32,
    prepare: impl Fn(&Rig) -> T,
    scenario: impl Fn(&Rig, T),
) -> u64 {
    for_each_call(code, || [Rig::simulated()], |[rig]| prepare(rig), |[rig], it| scenario(rig, it))
}

/// Does what [`for_each_driver_call`] does, on two devices: the calls of both are counted together.
pub fn for_each_driver_call_of_two<T>(
    code: i32,
    prepare: impl Fn(&[Rig; 2]) -> T,
    scenario: impl Fn(&[Rig; 2], T),
) -> u64 {
    for_each_call(code, Rig::simulated_pair, prepare, scenario)
}

fn for_each_call<T, const N: usize>(
    code: i32,
    rigs: impl Fn() -> [Rig; N],
    prepare: impl Fn(&[Rig; N]) -> T,
    scenario: impl Fn(&[Rig; N], T),
) -> u64 {
    for failing in 1.. {
        let rigs = rigs();
        let universe: &Universe = rigs[0].universe();
        let prepared = prepare(&rigs);
        let before = universe.calls().total();
        universe.fail_call_number(failing, code);
        scenario(&rigs, prepared);
        let calls = universe.calls().total() - before;
        universe.clear_faults();
        if calls < failing {
            return failing - 1;
        }
    }
    unreachable!("the number of calls is finite")
}
