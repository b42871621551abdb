//! The decoding of operations between lanes.

use dmr_ptx_arith::lanes::{self, Role};
use dmr_ptx_syntax::Operand;
use dmr_ptx_syntax::Type;

use super::function::{Decoding, FunctionLoader};
use crate::code::{Guard, NO_REG, Op, WarpInst};

impl FunctionLoader<'_, '_> {
    /// Decodes the operands of an operation between lanes, and adds it.
    pub(super) fn decode_lanes(
        &mut self,
        instruction: lanes::Instruction,
        operands: &[Operand],
        guard: Guard,
    ) -> Decoding<()> {
        let shape = instruction.operands();
        let mut inst = WarpInst {
            instruction,
            sources: Vec::new(),
            results: Vec::new(),
            members: None,
            address: None,
            offset: 0,
            stride: None,
        };
        let mut texts = operands.iter();
        let mut pending: Option<&Operand> = None;
        for wanted in &shape.destinations {
            if wanted.role == Role::Optional {
                let dst = pending.take().map_or(Ok(NO_REG), |operand| self.destination(operand))?;
                inst.results.push(dst);
                continue;
            }
            let mut operand = texts.next().ok_or("a destination is missing")?;
            if let Operand::Pair(pair) = operand {
                operand = &pair[0];
                pending = Some(&pair[1]);
            }
            let registers = self.destinations(operand)?;
            if registers.len() != wanted.registers {
                return Err(format!("{} registers of {}", registers.len(), wanted.registers));
            }
            inst.results.extend(registers);
        }
        for wanted in &shape.sources {
            match wanted.role {
                Role::Address => {
                    let operand = texts.next().ok_or("an address is missing")?;
                    let location = self.location(operand, crate::SpaceName::Generic)?;
                    if location.frame {
                        return Err("a matrix in local memory".to_owned());
                    }
                    inst.address = Some(location.base);
                    inst.offset = location.offset;
                }
                Role::Stride => {
                    inst.stride =
                        texts.next().map(|operand| self.value(operand, wanted.ty)).transpose()?;
                }
                Role::Members => {
                    let operand = texts.next().ok_or("the member mask is missing")?;
                    let value = self.value(operand, Type::B32)?;
                    inst.members = Some(value);
                    inst.sources.push(value);
                }
                Role::Value | Role::Optional => {
                    let operand = texts.next().ok_or("a source is missing")?;
                    let values = self.values(operand, wanted.ty)?;
                    if values.len() != wanted.registers {
                        return Err(format!("{} registers of {}", values.len(), wanted.registers));
                    }
                    inst.sources.extend(values);
                }
            }
        }
        if texts.next().is_some() {
            return Err("it has too many operands".to_owned());
        }
        self.loader.code.warp_insts.push(inst);
        let index = self.loader.code.warp_insts.len() as u32 - 1;
        self.push(guard, Op::Warp(index));
        Ok(())
    }
}
