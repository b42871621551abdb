//! Random programs against a reference that keeps every access of every byte and every fence, and
//! searches them all.

use super::{AccessKind, GlobalAccess, Races};
use AccessKind::{Read, StrongRead, StrongWrite, Write};

/// A step of a program.
#[derive(Clone, Copy, Debug)]
enum Event {
    Access(GlobalAccess),
    Fence {
        block: u32,
    },
    /// A barrier of a block.
    Barrier {
        block: u32,
    },
    /// A barrier of the lanes of a warp.
    WarpBarrier {
        block: u32,
        warp: u32,
    },
}

/// Returns the lane that accesses a byte, if one does; the first of several.
fn lane_at(access: &GlobalAccess, byte: u64) -> Option<u32> {
    let lanes = if access.is_same { 1 } else { access.lanes };
    (0..lanes).map(|lane| lane + access.first_lane).find(|lane| {
        let start = access.address + u64::from((lane - access.first_lane) * access.lane_bytes);
        (start..start + u64::from(access.lane_bytes)).contains(&byte)
    })
}

/// Returns whether the access of event `first` to a byte is ordered before that of event `second`.
fn is_ordered(events: &[Event], first: usize, second: usize, byte: u64) -> bool {
    let (Event::Access(one), Event::Access(two)) = (events[first], events[second]) else {
        return true;
    };
    let thread =
        |access: &GlobalAccess| lane_at(access, byte).map(|lane| access.first_thread + lane);
    if one.block == two.block {
        let between = &events[first + 1..second];
        let barrier = |event: &Event| match *event {
            Event::Barrier { block } => block == one.block,
            Event::WarpBarrier { block, warp } => {
                block == one.block && one.first_thread == 32 * warp && two.first_thread == 32 * warp
            }
            _ => false,
        };
        if thread(&one) == thread(&two) || between.iter().any(barrier) {
            return true;
        }
    }
    let fences = (first + 1..second)
        .filter(|&at| matches!(events[at], Event::Fence { block } if block == one.block));
    let is_strong = |event: &Event| match event {
        Event::Access(access) => {
            access.block == two.block && matches!(access.kind, StrongRead | StrongWrite)
        }
        _ => false,
    };
    fences.into_iter().any(|fence| events[fence + 1..second].iter().any(is_strong))
}

/// Returns the earlier events that race with event `at` in a byte.
fn races_of(events: &[Event], at: usize, byte: u64) -> Vec<usize> {
    let Event::Access(later) = events[at] else { return Vec::new() };
    let races = |&first: &usize| {
        let Event::Access(earlier) = events[first] else { return false };
        let kinds = (earlier.kind, later.kind);
        lane_at(&earlier, byte).is_some()
            && lane_at(&later, byte).is_some()
            && matches!(kinds, (Read | Write | StrongWrite, Write) | (Write, Read | StrongWrite))
            && !is_ordered(events, first, at, byte)
    };
    (0..at).filter(races).collect()
}

fn program(random: &mut impl FnMut(u64) -> u64) -> Vec<Event> {
    let blocks = 1 + random(3);
    let length = 4 + random(20);
    (0..length)
        .map(|_| {
            let block = random(blocks) as u32;
            let warp = random(2) as u32;
            match random(10) {
                0 | 1 => return Event::Fence { block },
                2 => return Event::Barrier { block },
                3 => return Event::WarpBarrier { block, warp },
                _ => {}
            }
            // Flags are in other bytes than data.
            let is_flag = random(3) == 0;
            let lane_bytes = if is_flag { 4 } else { [1, 2, 4, 8, 16][random(5) as usize] };
            let lanes = if is_flag { 1 } else { [1, 1, 2, 7, 16, 32][random(6) as usize] };
            let kind = match (is_flag, random(8)) {
                (false, 0) => StrongWrite,
                (false, number) => [Read, Write][number as usize % 2],
                (true, number) => [StrongRead, StrongWrite][number as usize % 2],
            };
            Event::Access(GlobalAccess {
                block,
                first_thread: 32 * warp,
                address: if is_flag {
                    8192
                } else {
                    4096 + random(128 / u64::from(lane_bytes)) * u64::from(lane_bytes)
                },
                lane_bytes,
                first_lane: random(33 - lanes) as u32,
                lanes: lanes as u32,
                is_same: random(6) == 0,
                kind,
                instruction: 0,
                stamp: 0,
            })
        })
        .collect()
}

/// Runs the detector up to its first report: the event and the conflict.
fn detect(events: &[Event]) -> Option<(usize, super::GlobalConflict)> {
    let mut races = Races::default();
    // For each block: the stamp of now, that of the last barrier, and those of the last barriers of
    // its warps.
    let mut orders = [(1, 0, [0; 2]); 3];
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Fence { block } => races.fence(block),
            Event::Barrier { block } => {
                let order = &mut orders[block as usize];
                order.0 += 1;
                order.1 = order.0;
            }
            Event::WarpBarrier { block, warp } => {
                let order = &mut orders[block as usize];
                order.0 += 1;
                order.2[warp as usize] = order.0;
            }
            Event::Access(access) => {
                let (now, barrier, warps) = orders[access.block as usize];
                let access = GlobalAccess { stamp: now, instruction: at as u32, ..access };
                let found = races.record(&access, |thread, other, stamp| {
                    stamp < barrier
                        || thread / 32 == other / 32 && stamp < warps[thread as usize / 32]
                });
                if let Some(conflict) = found {
                    return Some((at, conflict));
                }
            }
        }
    }
    None
}

#[test]
fn random_programs_have_the_races_that_a_search_of_all_accesses_finds() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % below
    };
    let mut racing = 0;
    let mut clean = 0;
    let mut missed = 0;
    for number in 0..2_000 {
        let events = program(&mut random);
        let bytes = || (4096..4096 + 640).chain(8192..8196);
        let race = |at: usize| bytes().find(|&byte| !races_of(&events, at, byte).is_empty());
        let detected = detect(&events);
        if let Some((at, conflict)) = detected {
            // The report is true: this earlier access, in this byte, of these threads.
            let first = conflict.earlier.instruction as usize;
            assert!(
                races_of(&events, at, conflict.address).contains(&first),
                "program {number}: {conflict:?}"
            );
            let (Event::Access(later), Event::Access(earlier)) = (events[at], events[first]) else {
                panic!()
            };
            assert_eq!(lane_at(&later, conflict.address), Some(conflict.lane), "program {number}");
            let thread =
                lane_at(&earlier, conflict.address).map(|lane| earlier.first_thread + lane);
            assert_eq!(thread, Some(conflict.earlier.thread), "program {number}");
            racing += 1;
        }
        // Nothing before the report is a race, but for one with a third reader, or behind an atomic
        // change.
        let before = detected.map_or(events.len(), |(at, _)| at);
        match (0..before).find(|&at| race(at).is_some()) {
            Some(at) => {
                let byte = race(at).unwrap();
                let with_read = |&first: &usize| {
                    matches!(events[first], Event::Access(GlobalAccess { kind: Read, .. }))
                };
                let is_change = |event: &Event| match event {
                    Event::Access(access) => {
                        access.kind == StrongWrite && lane_at(access, byte).is_some()
                    }
                    _ => false,
                };
                assert!(
                    races_of(&events, at, byte).iter().all(with_read)
                        || events[..at].iter().any(is_change),
                    "program {number}, event {at}, byte {byte}, {:?} {events:#?}",
                    races_of(&events, at, byte)
                );
                missed += 1;
            }
            None if detected.is_none() => clean += 1,
            None => {}
        }
    }
    assert!(racing > 400 && clean > 200, "{racing} with a race, {clean} without");
    assert!(missed < racing / 100, "{missed} missed of {racing}, {clean} clean");
}
