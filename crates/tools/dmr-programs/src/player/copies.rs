//! Steps that copy a block to another.

use cudarc::driver::result;
use dmr_core::Access;

use super::content::Filled;
use super::state::{Use, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};
use crate::program::Used;

impl Player {
    pub(super) fn copy(&self, at: usize, from: u32, to: u32, stream: usize) -> Played {
        let uses = [Used::whole(from, Access::Read), Used::whole(to, Access::Write)];
        let Some((lease, uses)) = self.look_up(stream, &uses) else { return Ok(()) };
        if uses.len() < 2 || uses[0].access.writes() {
            return Ok(());
        }
        let Some(open) = self.prepare(at, &lease, uses)? else { return Ok(()) };
        let mut state = self.state();
        let [Use { block: from, .. }, Use { block: to, .. }] = &open.uses[..] else {
            return Ok(());
        };
        let captures = state.captures.contains_key(&slot_of(&lease));
        let source = state.fact(from.generation()).content.first().filter(|_| !captures);
        let count = |filled: &Filled| filled.bytes.len().min(to.bytes()) / 4 * 4;
        if let Some(source) = source.filter(|it| count(it) > 0) {
            let bytes = count(&source);
            // SAFETY: both blocks have that many bytes, and their windows are open on the stream.
            let copied = unsafe {
                result::memcpy_dtod_async(to.ptr(), from.ptr(), bytes, lease.stream().cu_stream())
            };
            if let Err(error) = copied {
                return Err(Failure::new(FailureKind::UnexpectedError, at, error));
            }
            state.fact(to.generation()).content.write(0..bytes, source.pattern);
            state.counts.count(Conflict::CopyBetweenBlocks);
            self.submitted(&mut state, &lease, from);
            self.submitted(&mut state, &lease, to);
        }
        drop(state);
        self.finish(at, open)
    }
}
