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
    // Its second line is not declared, which is a race.
    let text = "stack async, work lazy, streams 2, seed 1
        thread 0: allocate b0 of 4096 on s0
        thread 0: launch on s1 b0 write
        thread 0: launch on s0 b0 write";
    let program: Program = text.parse().expect("a program");
    let mut runner = Runner::new(Options { undeclared: Some(0), ..Options::default() });
    runner.play(&program).expect_err("a use is not declared");
    assert_eq!(runner.counts.of(Conflict::WriteAfterWrite), 2, "{}", runner.counts);
    assert_eq!(runner.counts.programs, 1);
}
