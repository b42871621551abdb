//! Tests of the races of global memory.

mod oracle;

use super::{AccessKind, Earlier, GlobalAccess, GlobalConflict, Races};
use AccessKind::{Read, StrongRead, StrongWrite, Write};

/// Makes the access of a full warp of 4 bytes a lane.
fn warp(block: u32, kind: AccessKind, address: u64) -> GlobalAccess {
    GlobalAccess {
        block,
        first_thread: 0,
        address,
        lane_bytes: 4,
        first_lane: 0,
        lanes: 32,
        is_same: false,
        kind,
        instruction: 10 * block + kind as u32,
        stamp: 0,
    }
}

/// Makes the access of one lane.
fn lane(block: u32, lane: u32, kind: AccessKind, address: u64, bytes: u32) -> GlobalAccess {
    GlobalAccess { first_lane: lane, lanes: 1, lane_bytes: bytes, ..warp(block, kind, address) }
}

/// Records an access of a block whose threads have seen nothing of each other.
fn touch(races: &mut Races, access: GlobalAccess) -> Option<GlobalConflict> {
    races.record(&access, |_, _, _| false)
}

#[test]
fn two_blocks_that_write_a_word_race_and_both_threads_are_named() {
    let mut races = Races::default();
    assert_eq!(touch(&mut races, warp(0, Write, 0x1000)), None);
    let later = lane(1, 9, Write, 0x1014, 4);
    let earlier = Earlier { block: 0, thread: 5, kind: Write, instruction: 1, lane_bytes: 4 };
    assert_eq!(
        touch(&mut races, later),
        Some(GlobalConflict { address: 0x1014, lane: 9, earlier })
    );
}

#[test]
fn the_kinds_that_race_are_those_of_this_table() {
    for (first, second, expected) in [
        (Read, Read, false),
        (Read, Write, true),
        (Write, Read, true),
        (Write, Write, true),
        (StrongWrite, StrongWrite, false),
        (StrongWrite, StrongRead, false),
        (StrongWrite, Read, false),
        (StrongWrite, Write, true),
        (Read, StrongWrite, false),
        (Write, StrongWrite, true),
        (Write, StrongRead, false),
        (StrongRead, Write, false),
    ] {
        let mut races = Races::default();
        touch(&mut races, warp(0, first, 0));
        assert_eq!(
            touch(&mut races, warp(1, second, 0)).is_some(),
            expected,
            "{first:?} then {second:?}"
        );
    }
}

#[test]
fn the_threads_of_a_full_warp_do_not_race_with_themselves() {
    let mut races = Races::default();
    for _ in 0..2 {
        assert_eq!(touch(&mut races, warp(0, Write, 64)), None);
        assert_eq!(touch(&mut races, warp(0, Read, 64)), None);
    }
    // Moved by one lane, each word is of another thread.
    let moved = touch(&mut races, warp(0, Read, 68)).expect("a race");
    assert_eq!((moved.address, moved.lane, moved.earlier.thread), (68, 0, 1));
}

#[test]
fn a_wider_access_of_the_same_warp_is_of_other_lanes() {
    let mut races = Races::default();
    touch(&mut races, warp(0, Write, 0));
    let wide = GlobalAccess { lane_bytes: 8, ..warp(0, Read, 0) };
    let found = touch(&mut races, wide).expect("a race");
    assert_eq!((found.address, found.lane, found.earlier.thread), (4, 0, 1));
}

#[test]
fn neighbouring_bytes_of_a_word_do_not_race() {
    let mut races = Races::default();
    let bytes = |block, address| GlobalAccess { lane_bytes: 1, ..warp(block, Write, address) };
    assert_eq!(touch(&mut races, lane(0, 0, Write, 101, 1)), None);
    assert_eq!(touch(&mut races, lane(1, 0, Write, 102, 1)), None);
    assert_eq!(touch(&mut races, lane(2, 0, Write, 100, 1)), None);
    assert_eq!(touch(&mut races, lane(3, 0, Write, 103, 1)), None);
    let found = touch(&mut races, bytes(4, 96)).expect("a race");
    assert_eq!((found.address, found.lane, found.earlier.block), (100, 4, 2));
    // Bytes of a full warp are one entry of a sector again, with a lane for each byte.
    let found = touch(&mut races, lane(5, 3, Read, 120, 2)).expect("a race");
    assert_eq!((found.earlier.block, found.earlier.thread), (4, 24));
}

#[test]
fn a_value_that_many_blocks_read_and_one_writes_is_a_race_whichever_writes() {
    for writer in 0..5 {
        let mut races = Races::default();
        for block in 0..5 {
            let read = GlobalAccess { is_same: true, ..warp(block, Read, 8) };
            assert_eq!(touch(&mut races, read), None);
        }
        assert!(touch(&mut races, lane(writer, 0, Write, 8, 4)).is_some(), "block {writer}");
    }
}

#[test]
fn what_is_fenced_and_acquired_is_ordered_and_what_is_not_is_a_race() {
    const FLAG: u64 = 4096;
    let run = |fences: bool, polls: bool, polls_early: bool| {
        let mut races = Races::default();
        let mut found = Vec::new();
        found.extend(touch(&mut races, warp(0, Write, 0)));
        if polls_early {
            found.extend(touch(&mut races, lane(1, 0, StrongRead, FLAG, 4)));
        }
        if fences {
            races.fence(0);
        }
        found.extend(touch(&mut races, lane(0, 0, StrongWrite, FLAG, 4)));
        if polls {
            found.extend(touch(&mut races, lane(1, 0, StrongRead, FLAG, 4)));
        }
        found.extend(touch(&mut races, warp(1, Read, 0)));
        found.len()
    };
    assert_eq!(run(true, true, false), 0);
    assert_eq!(run(false, true, false), 1, "not fenced");
    assert_eq!(run(true, false, false), 1, "not polled");
    assert_eq!(run(true, false, true), 1, "polled before the fence");
}

#[test]
fn a_write_after_the_fence_is_not_released_by_it() {
    let mut races = Races::default();
    touch(&mut races, warp(0, Write, 0));
    races.fence(0);
    touch(&mut races, warp(0, Write, 128));
    touch(&mut races, lane(0, 0, StrongWrite, 4096, 4));
    touch(&mut races, lane(1, 0, StrongWrite, 4096, 4));
    assert_eq!(touch(&mut races, warp(1, Read, 0)), None);
    assert!(touch(&mut races, warp(1, Read, 128)).is_some());
}

#[test]
fn a_chain_of_blocks_passes_the_order_on() {
    let mut races = Races::default();
    for block in 0..100 {
        // Each block waits for the one before, reads what all before have written, and publishes
        // its own part.
        if block > 0 {
            assert_eq!(
                touch(&mut races, lane(block, 0, StrongRead, 4 * u64::from(block - 1), 4)),
                None
            );
        }
        for before in 0..block {
            assert_eq!(touch(&mut races, warp(block, Read, 4096 + 128 * u64::from(before))), None);
        }
        assert_eq!(touch(&mut races, warp(block, Write, 4096 + 128 * u64::from(block))), None);
        races.fence(block);
        assert_eq!(touch(&mut races, lane(block, 0, StrongWrite, 4 * u64::from(block), 4)), None);
    }
}

#[test]
fn threads_of_a_block_are_ordered_as_the_caller_says() {
    for (stamp_seen, expected) in [(false, true), (true, false)] {
        let mut races = Races::default();
        let write = GlobalAccess { stamp: 7, ..warp(0, Write, 0) };
        races.record(&write, |_, _, _| false);
        let read = GlobalAccess { first_thread: 32, stamp: 8, ..warp(0, Read, 0) };
        let found = races.record(&read, |thread, other, stamp| {
            assert_eq!((thread / 32, other / 32, stamp), (1, 0, 7));
            stamp_seen
        });
        assert_eq!(found.is_some(), expected);
    }
}

#[test]
fn accesses_of_whole_sectors_take_no_cells_of_their_own() {
    let mut races = Races::default();
    for round in 0..4 {
        for index in 0..1024 {
            touch(&mut races, warp(0, if round % 2 == 0 { Write } else { Read }, index * 128));
        }
    }
    let pages = 128 * 1024 / 4096;
    assert_eq!(races.sectors.bytes(), pages * 128 * 24, "32 pages of 128 sectors");
    assert!(races.records.bytes() < 1000, "equal accesses share a record");
}

#[test]
fn a_read_or_change_of_a_whole_sector_keeps_the_writes_of_its_words_and_a_write_replaces_them() {
    let mut races = Races::default();
    touch(&mut races, lane(0, 3, Write, 12, 4));
    let split = races.sectors.bytes();
    races.fence(0);
    touch(&mut races, lane(1, 0, StrongRead, 8192, 4));
    assert_eq!(touch(&mut races, warp(1, Read, 0)), None);
    assert_eq!(touch(&mut races, warp(1, StrongWrite, 0)), None);
    let found = touch(&mut races, lane(2, 0, Read, 12, 4)).expect("a race with the write");
    assert_eq!((found.earlier.block, found.earlier.thread), (0, 3));
    assert_eq!(races.sectors.bytes(), split);
    touch(&mut races, warp(3, Write, 0));
    assert!(races.sectors.bytes() < split, "one cell again");
    let found = touch(&mut races, lane(4, 0, Read, 124, 4)).expect("a race with the last write");
    assert_eq!((found.earlier.block, found.earlier.thread), (3, 31));
}

#[test]
fn an_atomic_change_between_a_read_and_a_write_does_not_hide_the_read() {
    let mut races = Races::default();
    touch(&mut races, lane(0, 7, Read, 0, 4));
    touch(&mut races, lane(1, 0, StrongWrite, 0, 4));
    races.fence(1);
    touch(&mut races, lane(2, 0, StrongRead, 4096, 4));
    let found = touch(&mut races, lane(2, 0, Write, 0, 4)).expect("a race with the read");
    assert_eq!((found.earlier.block, found.earlier.kind), (0, Read));
}

#[test]
fn a_lane_may_access_more_bytes_than_a_sector_has() {
    let mut races = Races::default();
    touch(&mut races, lane(0, 9, Write, 0, 1024));
    for (address, bytes) in [(4, 4), (77, 1), (992, 16)] {
        let found = touch(&mut races, lane(1, 0, Read, address, bytes)).expect("a race");
        assert_eq!((found.address, found.earlier.thread), (address, 9));
    }
    assert_eq!(touch(&mut races, lane(1, 0, Read, 1024, 4)), None);
}
