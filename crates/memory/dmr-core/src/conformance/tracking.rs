//! Use tracking, or a refusal of every use: T5, with T1, T2 and U12 for uses.

use super::support::{ODD, Outcome, Subject, ensure, ensure_refused};
use crate::{Access, BlockUse, ResourceError, StreamId, UseTokens, UseTrackingExt};

pub(super) fn uses_are_tracked_or_refused(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    s.used(&block, s.a, Access::ReadWrite, || s.fill(s.a, &block, 1))?;
    let tokens = s.prepare_all(&[BlockUse::new(block.id(), Access::Read)], s.b)?;
    s.expect(s.b, &block, 1)?;
    s.finish(tokens)?;
    s.record(&block, s.a)?;
    s.deallocate(block)
}

/// Checks that every method of use tracking returns an error, and changes nothing.
pub(super) fn refuses(s: &Subject<'_>) -> Outcome {
    ensure!(!s.tracks(), "the resource has use tracking");
    let block = s.allocate(ODD, s.a)?;
    let id = block.id();
    let access = Access::Read;
    let uses = [BlockUse::new(id, access)];
    let tokens = || {
        let mut tokens = UseTokens::new(s.b);
        #[allow(unsafe_code, reason = "makes a token that has no window")]
        // SAFETY: the resource does not track uses, so it has no windows.
        unsafe {
            tokens.push(id, access, 0);
        }
        tokens
    };
    let before = s.usage()?;
    let r = s.resource;
    let results = [
        ("record_block_use", r.record_block_use(&block, s.b)),
        ("prepare_block_use", r.prepare_block_use(id, s.b, access).map(drop)),
        ("prepare_uses", r.prepare_uses(&uses, s.b).map(drop)),
        ("finish_uses", r.finish_uses(tokens())),
        ("cancel_uses", r.cancel_uses(tokens())),
    ];
    let after = s.usage()?;
    s.deallocate(block)?;
    for (method, result) in results {
        ensure_refused!(
            format!("{method}, on a resource that does not track uses,"),
            result,
            ResourceError::StreamMisuse { .. }
        );
    }
    ensure!(before == after, "the refusals changed the usage from {before:?} to {after:?}");
    Ok(())
}

pub(super) fn no_uses_are_no_error(s: &Subject<'_>) -> Outcome {
    let tokens = s.prepare_all(&[], s.a)?;
    ensure!(tokens.is_empty(), "no uses were prepared, and {} windows are open", tokens.len());
    s.finish(tokens)?;
    let tokens = s.prepare_all(&[], s.b)?;
    s.cancel(tokens)
}

pub(super) fn a_use_on_a_wrong_stream_is_refused(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    let uses = [BlockUse::new(block.id(), Access::Write)];
    for wrong in [s.harness.foreign_stream(), s.harness.returned_stream()] {
        let r = s.resource;
        let results = [
            ("record_block_use", r.record_block_use(&block, wrong)),
            ("prepare_block_use", r.prepare_block_use(block.id(), wrong, Access::Write).map(drop)),
            ("prepare_uses", r.prepare_uses(&uses, wrong).map(drop)),
        ];
        for (method, result) in results {
            ensure_refused!(
                format!("{method} on {wrong:?}"),
                result,
                ResourceError::StreamMisuse { .. }
            );
        }
    }
    // No window was left open.
    s.used(&block, s.b, Access::Write, || s.fill(s.b, &block, 1))?;
    s.deallocate(block)
}

pub(super) fn a_use_on_the_default_stream_is_resolved(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, StreamId::DEFAULT)?;
    let home = block.alloc_stream();
    let tokens = s.prepare(block.id(), StreamId::DEFAULT, Access::Write)?;
    let one = tokens.stream();
    s.finish(tokens)?;
    let tokens = s.prepare_all(&[BlockUse::new(block.id(), Access::Read)], StreamId::DEFAULT)?;
    let several = tokens.stream();
    s.finish(tokens)?;
    s.deallocate(block)?;
    for stream in [one, several] {
        ensure!(
            stream == home,
            "the default stream is {home:?} for a block, and {stream:?} for its use"
        );
    }
    Ok(())
}

pub(super) fn a_stale_id_is_use_after_free(s: &Subject<'_>) -> Outcome {
    if !s.tracks() {
        return refuses(s);
    }
    let block = s.allocate(ODD, s.a)?;
    let stale = block.id();
    s.deallocate(block)?;
    is_use_after_free(s, stale)?;
    s.synchronize()?;
    s.reap_pending()?;
    is_use_after_free(s, stale)?;
    // Another block may be at that address now.
    let blocks = [s.allocate(ODD, s.a)?, s.allocate(ODD, s.b)?];
    is_use_after_free(s, stale)?;
    s.deallocate_all(blocks)
}

fn is_use_after_free(s: &Subject<'_>, stale: crate::BlockId) -> Outcome {
    for stream in [s.a, s.b] {
        for access in [Access::Read, Access::Write] {
            let one = s.resource.prepare_block_use(stale, stream, access).map(drop);
            let uses = [BlockUse::new(stale, access)];
            let several = s.resource.prepare_uses(&uses, stream).map(drop);
            for result in [one, several] {
                let expected = stale.generation();
                ensure_refused!(
                    format!("a use of block {expected}, which was deallocated,"),
                    result,
                    ResourceError::UseAfterFree { generation, .. } if generation == expected
                );
            }
        }
    }
    Ok(())
}
