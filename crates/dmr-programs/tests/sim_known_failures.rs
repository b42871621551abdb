//! Each known failure still fails: a change that fixes one removes it from the list.

use dmr_programs::known::{KNOWN, classify};
use dmr_programs::player::Options;
use dmr_programs::run::Runner;
use dmr_programs::{Conflict, Program};

#[test]
fn each_known_failure_still_fails_as_it_is_said_to() {
    for known in KNOWN {
        let program: Program = known.program.parse().expect(known.name);
        let mut runner = Runner::new(Options::default());
        let failure = runner.play_alone(&program).expect_err(known.name);
        let found = classify(&program, &failure).map(|found| found.name);
        assert_eq!(found, Some(known.name), "{failure}");
    }
}

#[test]
fn what_a_failing_program_has_reached_is_counted() {
    let named = |known: &&dmr_programs::known::Known| known.name.contains("under an open window");
    let known = KNOWN.iter().find(named).expect("it is on the list");
    let program: Program = known.program.parse().expect(known.name);
    let mut runner = Runner::new(Options::default());
    runner.play(&program).expect_err(known.name);
    assert_eq!(runner.counts.of(Conflict::RetireInWindow), 1, "{}", runner.counts);
    assert_eq!(runner.counts.programs, 1);
}
