//! Streams: T1 and T2.

use std::collections::HashSet;

use super::support::{ODD, Outcome, Subject, ensure, ensure_refused};
use crate::{ResourceError, StreamId};

pub(super) fn an_allocation_names_its_stream(s: &Subject<'_>) -> Outcome {
    for stream in [s.a, s.b, s.a] {
        let block = s.allocate(ODD, stream)?;
        let home = block.alloc_stream();
        s.deallocate(block)?;
        ensure!(home == stream, "allocated on {stream:?}, but the home stream is {home:?}");
    }
    Ok(())
}

pub(super) fn the_default_stream_is_resolved_and_never_stored(s: &Subject<'_>) -> Outcome {
    let first = s.allocate(ODD, StreamId::DEFAULT)?;
    let second = s.allocate(ODD, StreamId::DEFAULT)?;
    let homes = HashSet::from([first.alloc_stream(), second.alloc_stream()]);
    s.fill(first.alloc_stream(), &first, 0x11)?;
    s.expect(first.alloc_stream(), &first, 0x11)?;
    s.deallocate_all([first, second])?;
    for &home in &homes {
        ensure!(!home.is_default(), "a block has StreamId::DEFAULT as its home stream");
        ensure!(
            home.pool() == Some(s.resource.stream_pool()),
            "the default stream became {home:?}, which is not of the resource's pool"
        );
    }
    ensure!(homes.len() == 1, "the default stream became different streams: {homes:?}");
    Ok(())
}

pub(super) fn streams_are_of_the_pool_that_the_resource_names(s: &Subject<'_>) -> Outcome {
    let pool = s.resource.stream_pool();
    ensure!(pool == s.resource.stream_pool(), "stream_pool changes from call to call");
    for stream in [s.a, s.b, s.harness.returned_stream()] {
        ensure!(
            stream.pool() == Some(pool),
            "{stream:?} of the harness is not of {pool:?}, which the resource names"
        );
    }
    ensure!(s.a.slot() != s.b.slot(), "the two streams of the harness are one: {:?}", s.a);
    let foreign = s.harness.foreign_stream();
    ensure!(
        foreign.pool().is_some_and(|other| other != pool),
        "the foreign stream {foreign:?} is of the resource's own pool, or of none"
    );
    Ok(())
}

pub(super) fn a_stream_of_another_pool_is_refused(s: &Subject<'_>) -> Outcome {
    is_refused(s, s.harness.foreign_stream())
}

pub(super) fn a_returned_stream_is_refused(s: &Subject<'_>) -> Outcome {
    is_refused(s, s.harness.returned_stream())
}

fn is_refused(s: &Subject<'_>, wrong: StreamId) -> Outcome {
    let block = s.allocate(ODD, s.a)?;
    let before = s.usage()?;
    for bytes in [1, ODD] {
        ensure_refused!(
            format!("allocate({bytes}, {wrong:?})"),
            s.refused(bytes, wrong),
            ResourceError::StreamMisuse { .. }
        );
        let after = s.usage()?;
        ensure!(before == after, "the refusal changed the usage from {before:?} to {after:?}");
    }
    s.deallocate(block)?;
    let block = s.allocate(ODD, s.a)?;
    s.deallocate(block)
}
