//! Order of uses on several streams: U1, U2, U9, U10.
//!
//! A check detects the order of two uses by the bytes that the later one reads. Where the earlier
//! use only reads, its stream also writes a *witness*: a block of its own, whose use is never
//! declared. A stream that has waited for the use reads the written bytes in the witness.

use super::support::{LARGE, Outcome, Subject};
use super::tracking::refuses;
use crate::Access::{Read, ReadWrite, Write};
use crate::{DeviceBlock, StreamId};

pub(super) fn a_read_waits_for_a_write_on_another_stream(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(LARGE, s.a)?;
    for (byte, write) in [(1, Write), (2, ReadWrite)] {
        s.used(&block, s.b, write, || slow_fill(s, s.b, &block, byte))?;
        s.used(&block, s.a, Read, || s.expect(s.a, &block, byte))?;
        s.used(&block, s.a, write, || slow_fill(s, s.a, &block, byte + 8))?;
        s.used(&block, s.b, Read, || s.expect(s.b, &block, byte + 8))?;
    }
    s.deallocate(block)
}

pub(super) fn a_write_waits_for_a_write_on_another_stream(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(LARGE, s.a)?;
    s.used(&block, s.b, Write, || slow_fill(s, s.b, &block, 1))?;
    s.used(&block, s.a, Write, || s.fill(s.a, &block, 2))?;
    // Read now and when all work is done, to detect an earlier write that runs late.
    s.expect(s.a, &block, 2)?;
    s.synchronize()?;
    s.expect(s.a, &block, 2)?;
    s.deallocate(block)
}

pub(super) fn a_write_waits_for_a_read_on_another_stream(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let [block, witness] = [s.allocate(LARGE, s.a)?, s.allocate(LARGE, s.b)?];
    for (byte, write) in [(1, Write), (2, ReadWrite)] {
        s.used(&block, s.b, Read, || slow_fill(s, s.b, &witness, byte))?;
        s.used(&block, s.a, write, || s.expect(s.a, &witness, byte))?;
        // Orders the next write of the witness after this read of it.
        s.used(&block, s.b, ReadWrite, || Ok(()))?;
    }
    s.deallocate_all([block, witness])
}

pub(super) fn a_second_reader_does_not_hide_the_first(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let [block, witness] = [s.allocate(LARGE, s.a)?, s.allocate(LARGE, s.b)?];
    s.used(&block, s.b, Read, || slow_fill(s, s.b, &witness, 1))?;
    s.used(&block, s.a, Read, || Ok(()))?;
    s.used(&block, s.a, Write, || s.expect(s.a, &witness, 1))?;
    s.deallocate_all([block, witness])
}

pub(super) fn a_use_recorded_afterwards_is_waited_for(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(LARGE, s.a)?;
    s.synchronize()?;
    slow_fill(s, s.b, &block, 1)?;
    s.record(&block, s.b)?;
    s.used(&block, s.a, Read, || s.expect(s.a, &block, 1))?;
    s.deallocate(block)
}

/// Two streams that only read may each record their use afterwards, and neither has waited for the
/// other.
pub(super) fn a_recorded_use_does_not_hide_an_earlier_one(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let [block, witness] = [s.allocate(LARGE, s.a)?, s.allocate(LARGE, s.b)?];
    s.synchronize()?;
    slow_fill(s, s.b, &witness, 1)?;
    s.record(&block, s.b)?;
    s.record(&block, s.a)?;
    s.used(&block, s.a, Write, || s.expect(s.a, &witness, 1))?;
    s.deallocate_all([block, witness])
}

pub(super) fn a_free_waits_for_every_recorded_use(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    for (byte, recorded) in [(1, false), (2, true)] {
        let first = s.allocate(LARGE, s.a)?;
        s.synchronize()?;
        if recorded {
            slow_fill(s, s.b, &first, 0xf0)?;
            s.record(&first, s.b)?;
        } else {
            s.used(&first, s.b, Write, || slow_fill(s, s.b, &first, 0xf0))?;
        }
        s.deallocate(first)?;
        s.try_reap()?;
        let second = s.allocate(LARGE, s.a)?;
        s.fill(s.a, &second, byte)?;
        s.expect(s.a, &second, byte)?;
        s.synchronize()?;
        s.expect(s.a, &second, byte)?;
        s.deallocate(second)?;
    }
    Ok(())
}

pub(super) fn fresh_memory_waits_for_its_previous_owner(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    for byte in 1..4 {
        let first = s.allocate(LARGE, s.a)?;
        slow_fill(s, s.a, &first, 0xf0)?;
        s.deallocate(first)?;
        let second = s.allocate(LARGE, s.a)?;
        s.used(&second, s.b, Write, || s.fill(s.b, &second, byte))?;
        s.used(&second, s.b, Read, || s.expect(s.b, &second, byte))?;
        s.synchronize()?;
        s.used(&second, s.b, Read, || s.expect(s.b, &second, byte))?;
        s.deallocate(second)?;
    }
    Ok(())
}

fn slow_fill(s: &Subject<'_>, stream: StreamId, block: &DeviceBlock, byte: u8) -> Outcome {
    s.delay(stream)?;
    s.fill(stream, block, byte)
}
