//! The decoding of instructions on `mbarrier` objects.

use crate::mbarrier;
use dmr_ptx_arith::lanes::{Role, Window};
use dmr_ptx_syntax::Operand;

use super::function::{Decoding, FunctionLoader};
use crate::code::{NO_REG, Op};
use crate::fault::SpaceName;
use crate::mbarriers::MemoryBarrier;

impl FunctionLoader<'_, '_> {
    /// Decodes an instruction on an `mbarrier` object; `None` for any other.
    pub(super) fn decode_mbarrier(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Option<Op>> {
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
}
