//! Each known failure still fails: a change that fixes one removes it from the list.

use dmr_programs::Program;
use dmr_programs::known::{KNOWN, classify};
use dmr_programs::player::Options;
use dmr_programs::run::Runner;

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
