//! Times of events that may share a reading of the clock.

use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use dmr_core::{AllocTag, Generation};
use dmr_recorder::RecorderConfig;
use dmr_recorder::hooks::{self, RecordedBlock};

use crate::support::{Read, Recording, stream};

fn allocate_coarse(bytes: u64, tag: AllocTag) {
    let stream = stream();
    let generation = Generation::next().get();
    hooks::allocated_coarse(|| RecordedBlock { address: 1 << 8, bytes, generation, stream, tag });
}

const BURST: AllocTag = AllocTag::new("times::burst");
const AFTER: AllocTag = AllocTag::new("times::after");

#[test]
fn an_event_after_a_pause_is_late_by_what_the_recording_states_at_most() {
    const PAUSE: Duration = Duration::from_millis(10);
    let _recording = Recording::begin(RecorderConfig::new());
    for _ in 0..20 {
        (0..200).for_each(|nth| allocate_coarse(nth, BURST));
        std::thread::sleep(PAUSE);
        allocate_coarse(1, AFTER);
    }
    let read = Read::now();
    let bursts = read.allocated(BURST.name());
    let afters = read.allocated(AFTER.name());
    let stated = read.start.clock_step_ns;
    assert!(stated >= 1_000_000, "a tick");
    for (burst, (after, _)) in bursts.chunks(200).zip(&afters) {
        let (last, _) = burst.last().unwrap();
        let apart = after.time_ns - last.time_ns;
        assert!(apart + stated >= PAUSE.as_nanos() as u64, "{apart} ns apart, {stated} stated");
    }
    let times: BTreeSet<_> = bursts.iter().map(|(record, _)| record.time_ns).collect();
    // Less than half even where the threads of other programs hold the processors.
    assert!(times.len() < bursts.len() / 2, "{} of {} are read", times.len(), bursts.len());
}

#[test]
fn an_event_that_takes_memory_over_is_not_before_those_of_its_last_owner() {
    const TIMES: usize = 300;
    let _recording = Recording::begin(RecorderConfig::new().with_events_per_thread(1 << 16));
    let memory = Mutex::new(0);
    let turn = Barrier::new(2);
    let handed = |tag: &str| {
        let mut owner = memory.lock().unwrap();
        hooks::take_over(&mut owner);
        allocate_coarse(1, AllocTag::intern(tag));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TIMES {
                // This thread has a reading, which could serve for events to come.
                (0..40).for_each(|nth| allocate_coarse(nth, BURST));
                turn.wait();
                turn.wait();
                handed("times::second");
                turn.wait();
            }
        });
        for _ in 0..TIMES {
            turn.wait();
            handed("times::first");
            turn.wait();
            turn.wait();
        }
    });
    let read = Read::now();
    let first = read.allocated("times::first");
    let second = read.allocated("times::second");
    assert_eq!([first.len(), second.len()], [TIMES, TIMES]);
    for ((first, _), (second, _)) in first.iter().zip(&second) {
        assert!(first.time_ns <= second.time_ns, "{} and {}", first.time_ns, second.time_ns);
    }
}
