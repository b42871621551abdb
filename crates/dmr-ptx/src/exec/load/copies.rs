//! The decoding of asynchronous copies, and of the waits for them.

use crate::syntax::Operand;
use crate::types::Type;

use super::function::{Decoding, FunctionLoader};
use crate::exec::code::{Op, Value};
use crate::exec::copies::{BulkCopy, CopyStep, LaneCopy};
use crate::exec::fault::SpaceName;
use crate::exec::in_flight::CopyKind;

impl FunctionLoader<'_, '_> {
    /// Decodes `cp.async` and `cp.async.bulk`.
    pub(super) fn decode_copy(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<Op> {
        let step = match modifiers {
            ["async", "bulk", "prefetch", ..] => return Ok(Op::Nop),
            ["async", "bulk", "commit_group"] => CopyStep::Commit(CopyKind::Bulk),
            ["async", "bulk", "wait_group", ..] => wait(CopyKind::Bulk, operands)?,
            ["async", "bulk", rest @ ..] => self.decode_bulk(rest, operands)?,
            ["async", "commit_group"] => CopyStep::Commit(CopyKind::Lane),
            ["async", "wait_group"] => wait(CopyKind::Lane, operands)?,
            ["async", "wait_all"] => CopyStep::WaitAll,
            ["async", "ca" | "cg", rest @ ..] => self.decode_lanes_copy(rest, operands)?,
            _ => return Err("this copy is not supported".to_owned()),
        };
        Ok(Op::Copies(Box::new(step)))
    }

    fn decode_lanes_copy(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<CopyStep> {
        let [to, from, Operand::Integer(bytes), rest @ ..] = operands else {
            return Err("its size is not a constant".to_owned());
        };
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(format!("a copy of {bytes} bytes"));
        }
        let (mut size, mut ignores): (Option<Value>, Option<Value>) = (None, None);
        let hints = usize::from(modifiers.contains(&"L2::cache_hint"));
        for operand in rest.iter().take(rest.len().saturating_sub(hints)) {
            match operand {
                Operand::Register(id) if self.is_predicate(*id) => {
                    ignores = Some(self.value(operand, Type::Pred)?);
                }
                _ => size = Some(self.value(operand, Type::U32)?),
            }
        }
        Ok(CopyStep::Lanes(LaneCopy {
            to: self.location(to, SpaceName::Shared)?,
            from: self.location(from, SpaceName::Global)?,
            bytes: *bytes as u8,
            size,
            ignores,
        }))
    }

    /// Decodes `cp.async.bulk` from what follows that.
    fn decode_bulk(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<CopyStep> {
        let (to, from) = match modifiers {
            ["shared::cluster" | "shared::cta", "global", "mbarrier::complete_tx::bytes", ..] => {
                (SpaceName::Shared, SpaceName::Global)
            }
            ["shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes"] => {
                (SpaceName::Shared, SpaceName::Shared)
            }
            ["global", "shared::cta", "bulk_group", ..] => (SpaceName::Global, SpaceName::Shared),
            _ => return Err("tensor copies and reductions are not supported".to_owned()),
        };
        if modifiers.iter().any(|modifier| matches!(*modifier, "multicast::cluster" | "cp_mask")) {
            return Err("copies to several blocks or by a mask are not supported".to_owned());
        }
        let [target, source, size, rest @ ..] = operands else {
            return Err("it has too few operands".to_owned());
        };
        let barrier = match rest.first() {
            Some(operand) if to == SpaceName::Shared => {
                Some(self.location(operand, SpaceName::Shared)?)
            }
            None if to == SpaceName::Shared => return Err("its barrier is missing".to_owned()),
            _ => None,
        };
        Ok(CopyStep::Bulk(BulkCopy {
            to: self.location(target, to)?,
            from: self.location(source, from)?,
            size: self.value(size, Type::U32)?,
            barrier,
        }))
    }
}

fn wait(kind: CopyKind, operands: &[Operand]) -> Decoding<CopyStep> {
    let [Operand::Integer(but)] = operands else {
        return Err("its number of groups is not a constant".to_owned());
    };
    Ok(CopyStep::Wait { kind, but: u32::try_from(*but).unwrap_or(u32::MAX) })
}
