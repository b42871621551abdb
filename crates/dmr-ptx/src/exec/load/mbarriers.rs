//! The decoding of instructions on `mbarrier` objects, and of the copies whose bytes they count.

use crate::lanes::{Role, Window};
use crate::mbarrier;
use crate::syntax::Operand;
use crate::types::Type;

use super::function::{Decoding, FunctionLoader};
use crate::exec::code::{NO_REG, Op};
use crate::exec::fault::SpaceName;
use crate::exec::mbarriers::{BulkCopy, MemoryBarrier};

impl FunctionLoader<'_, '_> {
    /// Decodes an instruction on an `mbarrier` object; `None` for any other.
    pub(super) fn decode_mbarrier(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Option<Op>> {
        if let ("cp", ["async", "bulk", rest @ ..]) = (name, modifiers) {
            return self.decode_bulk(rest, operands).map(Some);
        }
        let Some(decoded) = mbarrier::decode(name, modifiers) else { return Ok(None) };
        let instruction = decoded?;
        let shape = instruction.operands();
        let mut barrier = MemoryBarrier { instruction, location: None, operand: None, dst: NO_REG };
        let mut rest = operands.iter();
        // An instruction without a destination begins with the address.
        let is_address = |operand: Option<&Operand>| matches!(operand, Some(Operand::Address(_)));
        if !is_address(operands.first()) {
            let dst = rest.next().ok_or("its destination is missing")?;
            barrier.dst = self.destination(dst)?;
        }
        for source in &shape.sources {
            let operand = rest.next();
            match (source.role, operand) {
                (Role::Address, Some(operand)) => {
                    let space = match instruction.window {
                        Window::Shared => SpaceName::Shared,
                        Window::Generic | Window::Global => SpaceName::Generic,
                    };
                    barrier.location = Some(self.location(operand, space)?);
                }
                // The time that `try_wait` may wait comes third, and has no effect.
                (_, Some(operand)) if barrier.operand.is_none() => {
                    barrier.operand = Some(self.value(operand, source.ty)?);
                }
                (Role::Optional, _) => {}
                (_, None) => return Err("it has too few operands".to_owned()),
                (_, Some(_)) => {}
            }
        }
        Ok(Some(Op::MemoryBarrier(barrier)))
    }

    /// Decodes `cp.async.bulk` from what follows that.
    fn decode_bulk(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<Op> {
        let (to, from) = match modifiers {
            ["commit_group" | "wait_group" | "prefetch", ..] => return Ok(Op::Nop),
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
        Ok(Op::CopyBulk(Box::new(BulkCopy {
            to: self.location(target, to)?,
            from: self.location(source, from)?,
            size: self.value(size, Type::U32)?,
            barrier,
        })))
    }
}
