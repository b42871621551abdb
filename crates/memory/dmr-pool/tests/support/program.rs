//! Random programs of dmr-programs over a pool of a test.

use std::sync::Arc;

use dmr_core::StreamId;
use dmr_programs::crew::Crew;
use dmr_programs::generate::{Shape, program};
use dmr_programs::player::{Options, WorkListener};
use dmr_programs::run::play_on;
use dmr_programs::stack::Wiring;
use dmr_programs::{Counts, Failure, Stack};
use dmr_sim::Policy;
use dmr_testkit::Rig;

use super::Upstream;
use super::witness::Witness;

/// Plays the program of this number, whose work runs as the rig lets it.
pub(crate) fn perform(
    rig: &Arc<Rig>,
    upstream: Upstream,
    number: u64,
    lines: usize,
) -> Result<Counts, Failure> {
    play_with(rig, upstream, number, lines, &Options::default())
}

/// Plays it on an observed pool, whose reports to the witness are right.
pub(crate) fn play_observed(
    rig: &Arc<Rig>,
    upstream: Upstream,
    witness: &Arc<Witness>,
    number: u64,
) -> Counts {
    let wiring = Wiring { observer: Some(Arc::clone(witness) as _) };
    let listener = Some(Arc::clone(witness) as _);
    let options = Options { wiring, listener, ..Options::default() };
    let played = play_with(rig, upstream, number, Shape::PLAIN.lines, &options);
    let counts = played.unwrap_or_else(|failure| panic!("program {number}: {failure}"));
    assert_eq!(witness.wrong(), [""; 0], "program {number}");
    witness.assert_settled();
    assert_eq!(witness.freed(), counts.allocated, "program {number}");
    counts
}

fn play_with(
    rig: &Arc<Rig>,
    upstream: Upstream,
    number: u64,
    lines: usize,
    options: &Options,
) -> Result<Counts, Failure> {
    let stack = match upstream {
        Upstream::Direct => Stack::PoolDirect,
        Upstream::Async => Stack::PoolAsync,
        Upstream::Virtual if number.is_multiple_of(2) => Stack::PoolCompact,
        // Takes more before it waits.
        Upstream::Virtual => Stack::PoolPages,
    };
    let program = program(number, stack, Policy::Lazy, Shape { lines, ..Shape::PLAIN });
    let mut counts = Counts::default();
    play_on(rig, &program, options, &Crew::new(0), &mut counts).map(|()| counts)
}

impl WorkListener for Witness {
    fn submitted(&self, rig: &Rig, stream: StreamId, ptr: u64) {
        self.expect_work(rig, stream, ptr);
    }
}
