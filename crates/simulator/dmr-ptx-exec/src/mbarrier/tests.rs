//! Tests of `mbarrier` objects.

use super::{Defect, Instruction, complete_bytes, decode};
use dmr_ptx_arith::lanes::{Role, Window};
use dmr_ptx_syntax::Type;

fn instruction(name: &str) -> Instruction {
    let parts: Vec<&str> = name.split('.').collect();
    decode(parts[0], &parts[1..]).expect("an instruction of this module").expect(name)
}

/// Runs an instruction on an object and returns its result.
fn run(object: &mut u64, name: &str, operand: Option<u64>) -> Result<u64, Defect> {
    let outcome = instruction(name).apply(*object, operand)?;
    *object = outcome.object;
    Ok(outcome.result)
}

const INIT: &str = "mbarrier.init.shared::cta.b64";
const ARRIVE: &str = "mbarrier.arrive.shared::cta.b64";
const TEST: &str = "mbarrier.test_wait.shared::cta.b64";
const PARITY: &str = "mbarrier.try_wait.parity.shared::cta.b64";
const COUNT: &str = "mbarrier.pending_count.b64";

fn initialised(count: u64) -> u64 {
    let mut object = 0;
    run(&mut object, INIT, Some(count)).unwrap();
    object
}

#[test]
fn a_phase_ends_when_all_have_arrived_and_the_next_expects_as_many() {
    let mut object = initialised(3);
    for phase in 0..9 {
        let mut states = Vec::new();
        for pending in [3, 2, 1] {
            assert_eq!(
                run(&mut object, PARITY, Some(phase & 1)),
                Ok(0),
                "phase {phase} is not complete"
            );
            assert_eq!(run(&mut object, PARITY, Some(phase & 1 ^ 1)), Ok(1), "the phase before is");
            let state = run(&mut object, ARRIVE, None).unwrap();
            assert_eq!(run(&mut 0, COUNT, Some(state)), Ok(pending));
            states.push(state);
        }
        for state in states {
            assert_eq!(run(&mut object, TEST, Some(state)), Ok(1), "phase {phase} is complete");
        }
    }
}

#[test]
fn a_state_of_the_current_phase_is_waited_for() {
    let mut object = initialised(2);
    let state = run(&mut object, ARRIVE, None).unwrap();
    assert_eq!(run(&mut object, TEST, Some(state)), Ok(0));
    run(&mut object, ARRIVE, None).unwrap();
    assert_eq!(run(&mut object, TEST, Some(state)), Ok(1));
}

#[test]
fn an_arrival_counts_as_many_as_it_says_and_a_drop_lowers_the_next_phase() {
    let mut object = initialised(5);
    run(&mut object, "mbarrier.arrive.release.cta.shared::cta.b64", Some(3)).unwrap();
    run(&mut object, "mbarrier.arrive_drop.shared::cta.b64", Some(2)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(1));
    run(&mut object, ARRIVE, Some(3)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(1)), Ok(1), "three are left");
}

#[test]
fn a_phase_waits_for_the_bytes_that_are_expected() {
    let mut object = initialised(1);
    run(&mut object, "mbarrier.arrive.expect_tx.shared::cta.b64", Some(1024)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(0));
    object = complete_bytes(object, 1000).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(0));
    run(&mut object, "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64", Some(24)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(1));
    // Bytes may come before they are expected.
    object = complete_bytes(object, 16).unwrap();
    run(&mut object, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64", Some(16)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(1)), Ok(0), "no thread has arrived");
    run(&mut object, ARRIVE, None).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(1)), Ok(1));
}

#[test]
fn an_arrival_of_copies_counts_itself_in_unless_it_says_noinc() {
    let mut object = initialised(2);
    run(&mut object, "cp.async.mbarrier.arrive.shared::cta.b64", None).unwrap();
    let state = run(&mut object, ARRIVE, None).unwrap();
    assert_eq!(run(&mut 0, COUNT, Some(state)), Ok(2));
    run(&mut object, "cp.async.mbarrier.arrive.noinc.shared.b64", None).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(1));
}

#[test]
fn undefined_uses_are_defects_and_change_nothing() {
    assert_eq!(run(&mut 0, ARRIVE, None), Err(Defect::NotInitialised));
    assert_eq!(run(&mut 0x0123_4567_89ab_cdef, PARITY, Some(0)), Err(Defect::NotInitialised));
    assert_eq!(run(&mut 0, INIT, Some(0)), Err(Defect::Count(0)));
    assert_eq!(run(&mut 0, INIT, Some(1 << 20)), Err(Defect::Count(1 << 20)));
    let mut object = initialised(2);
    let before = object;
    assert_eq!(
        run(&mut object, ARRIVE, Some(3)),
        Err(Defect::TooManyArrivals { arrivals: 3, pending: 2 })
    );
    assert_eq!(
        run(&mut object, "mbarrier.arrive.noComplete.shared.b64", Some(2)),
        Err(Defect::Completes)
    );
    assert_eq!(complete_bytes(object, 1 << 20), Err(Defect::Bytes(-(1 << 20))));
    assert_eq!(object, before);
    assert!(run(&mut object, "mbarrier.arrive.noComplete.release.cta.shared.b64", Some(1)).is_ok());
    run(&mut object, "mbarrier.inval.shared::cta.b64", None).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Err(Defect::NotInitialised));
}

#[test]
fn the_largest_counts_and_negative_bytes_keep_their_fields_apart() {
    let mut object = initialised((1 << 20) - 1);
    object = complete_bytes(object, (1 << 20) - 1).unwrap();
    let state = run(&mut object, ARRIVE, Some((1 << 20) - 2)).unwrap();
    assert_eq!(run(&mut 0, COUNT, Some(state)), Ok((1 << 20) - 1));
    run(&mut object, ARRIVE, None).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(0), "bytes are outstanding");
    run(&mut object, "mbarrier.expect_tx.shared.b64", Some((1 << 20) - 1)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(0), "expected bytes do not end a phase");
    run(&mut object, "mbarrier.complete_tx.shared.b64", Some(0)).unwrap();
    assert_eq!(run(&mut object, PARITY, Some(0)), Ok(1));
}

#[test]
fn operands_order_and_names_are_those_of_the_isa() {
    let parity = instruction(PARITY);
    assert_eq!((parity.releases, parity.acquires, parity.window), (false, true, Window::Shared));
    let operands = parity.operands();
    assert_eq!(operands.destinations[0].ty, Type::Pred);
    let roles: Vec<Role> = operands.sources.iter().map(|source| source.role).collect();
    assert_eq!(roles, [Role::Address, Role::Value, Role::Optional]);
    let arrive = instruction("mbarrier.arrive.b64");
    assert_eq!((arrive.releases, arrive.acquires, arrive.window), (true, false, Window::Generic));
    assert_eq!(arrive.operands().sources[1].role, Role::Optional);
    assert!(!instruction("mbarrier.arrive.relaxed.cta.b64").releases);
    for name in
        ["mbarrier.stop.b64", "mbarrier.init.noinc.b64", "mbarrier.arrive.global.b64", "mbarrier"]
    {
        let parts: Vec<&str> = name.split('.').collect();
        assert!(decode(parts[0], &parts[1..]).expect("of this module").is_err(), "{name}");
    }
    assert!(decode("cp", &["async", "ca", "shared", "global"]).is_none());
}
