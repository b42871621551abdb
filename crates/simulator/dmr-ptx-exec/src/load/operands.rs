//! The operands of a function's instructions: registers, constants, and the addresses of variables.

use dmr_ptx_syntax::Type;
use dmr_ptx_syntax::{
    Operand, RegisterId, Selector, Space, SpecialRegister, Symbol as Named, VariableId,
};

use super::Placed;
use super::function::{Decoding, FunctionLoader, Numbered};
use crate::code::{ArithInst, Guard, NO_REG, Op, Reg, Value};
use crate::program::Symbol;
use crate::space::{FUNCTION_STRIDE, FUNCTIONS};
use dmr_ptx_arith as arith;

impl FunctionLoader<'_, '_> {
    fn numbered(&self, id: RegisterId) -> Numbered {
        self.registers[id.0 as usize]
    }

    /// Returns the width of a destination in bits.
    pub(super) fn width(&self, operand: &Operand) -> u8 {
        match operand {
            Operand::Register(id) | Operand::Element(id, _) => {
                8 * self.numbered(*id).ty.bytes().min(8) as u8
            }
            Operand::Vector(elements) => {
                elements.iter().map(|element| self.width(element)).max().unwrap_or(64)
            }
            _ => 64,
        }
    }

    /// Returns whether a register has 32 bits or fewer.
    pub(super) fn is_narrow(&self, id: RegisterId) -> bool {
        self.numbered(id).ty.bytes() <= 4
    }

    /// Returns whether a register is a predicate.
    pub(super) fn is_predicate(&self, id: RegisterId) -> bool {
        self.numbered(id).ty == Type::Pred
    }

    pub(super) fn destination(&mut self, operand: &Operand) -> Decoding<Reg> {
        match self.destinations(operand)?[..] {
            [one] => Ok(one),
            _ => Err("a destination is a vector".to_owned()),
        }
    }

    /// Returns the registers of a destination, those of a vector in order.
    pub(super) fn destinations(&mut self, operand: &Operand) -> Decoding<Vec<Reg>> {
        match operand {
            Operand::Register(id) => {
                let numbered = self.numbered(*id);
                let each = if numbered.ty == Type::B128 { 2 } else { 1 };
                Ok((numbered.first..numbered.first + numbered.vector * each).collect())
            }
            Operand::Element(id, Selector::Element(index)) => {
                let numbered = self.numbered(*id);
                if u32::from(*index) >= numbered.vector || numbered.ty == Type::B128 {
                    return Err("the vector has no such element".to_owned());
                }
                Ok(vec![numbered.first + u32::from(*index)])
            }
            Operand::Sink => Ok(vec![NO_REG]),
            Operand::Vector(elements) => {
                let mut all = Vec::new();
                for element in elements {
                    all.extend(self.destinations(element)?);
                }
                Ok(all)
            }
            _ => Err("a destination is not a register".to_owned()),
        }
    }

    pub(super) fn value(&mut self, operand: &Operand, ty: Type) -> Decoding<Value> {
        match self.values(operand, ty)?[..] {
            [one] => Ok(one),
            _ => Err("a source is a vector".to_owned()),
        }
    }

    /// Returns the values of a source, those of a vector in order; constants have the type `ty`.
    pub(super) fn values(&mut self, operand: &Operand, ty: Type) -> Decoding<Vec<Value>> {
        Ok(vec![match operand {
            Operand::Register(_) | Operand::Element(..) => {
                return Ok(self.destinations(operand)?.into_iter().map(Value::register).collect());
            }
            Operand::Vector(elements) => {
                let mut all = Vec::new();
                for element in elements {
                    all.extend(self.values(element, ty)?);
                }
                return Ok(all);
            }
            Operand::Integer(value) => {
                let bits = integer(*value, ty)?;
                if ty == Type::B128 {
                    let high = if (*value as i64) < 0 { u64::MAX } else { 0 };
                    return Ok(vec![self.loader.constant(*value), self.loader.constant(high)]);
                }
                self.loader.constant(bits)
            }
            Operand::Float32(bits) => match ty {
                Type::F64 => self.loader.constant(f64::from(f32::from_bits(*bits)).to_bits()),
                _ => self.loader.constant(u64::from(*bits)),
            },
            Operand::Float64(bits) => match ty {
                Type::F32 => {
                    self.loader.constant(u64::from((f64::from_bits(*bits) as f32).to_bits()))
                }
                _ => self.loader.constant(*bits),
            },
            Operand::Symbol(symbol, offset) => self.symbol_address(*symbol, *offset)?,
            Operand::Special(register) => self.special(*register),
            Operand::Sum(id, more) => self.sum(*id, *more)?,
            Operand::Not(id) => {
                let dst = self.temporary();
                let src = Value::register(self.numbered(*id).first);
                self.push(Guard::NONE, Op::Not { dst, src });
                Value::register(dst)
            }
            Operand::Sink => self.loader.constant(0),
            _ => return Err("a kind of source operand that is not supported".to_owned()),
        }])
    }

    /// Returns the sum of an integer register and a constant, which wraps around.
    fn sum(&mut self, id: RegisterId, more: i64) -> Decoding<Value> {
        let (name, ty) = match self.numbered(id).ty {
            Type::B16 | Type::U16 | Type::S16 => ("u16", Type::U16),
            Type::B32 | Type::U32 | Type::S32 => ("u32", Type::U32),
            Type::B64 | Type::U64 | Type::S64 => ("u64", Type::U64),
            ty => return Err(format!("a sum of a register of type {ty:?} and a constant")),
        };
        let register = self.value(&Operand::Register(id), ty)?;
        let more = self.loader.constant(integer(more as u64, ty)?);
        let arith = arith::decode("add", &[name]).ok_or("no addition")??;
        let dst = self.temporary();
        let second = NO_REG;
        let mut sources = [more; 6];
        sources[0] = register;
        let inst = ArithInst { arith, dst, second, sources, count: 2, bits: 64 };
        self.push(Guard::NONE, Op::Arith(inst));
        Ok(Value::register(dst))
    }

    fn special(&mut self, register: SpecialRegister) -> Value {
        use SpecialRegister as S;
        if !matches!(
            register,
            S::Clock
                | S::ClockHi
                | S::Clock64
                | S::Globaltimer
                | S::GlobaltimerLo
                | S::GlobaltimerHi
        ) {
            return self.loader.special(register);
        }
        let dst = self.temporary();
        self.push(Guard::NONE, Op::Special { dst, register });
        Value::register(dst)
    }

    fn symbol_address(&mut self, symbol: Named, offset: i64) -> Decoding<Value> {
        match symbol {
            Named::Function(id) => {
                let function = self.loader.resolve_alias(id.0);
                self.uses.functions.push(function);
                self.loader.taken.push(function);
                Ok(self.loader.constant(FUNCTIONS + u64::from(function) * FUNCTION_STRIDE))
            }
            Named::Variable(variable) => match self.find(variable)? {
                Found::Symbol(symbol) => Ok(self.loader.symbol(symbol.plus(offset))),
                Found::Param(at) => Ok(self.loader.constant(at.wrapping_add_signed(offset))),
                Found::Frame(at) => {
                    let dst = self.temporary();
                    self.push(
                        Guard::NONE,
                        Op::FrameAddress { dst, offset: (at as i64).wrapping_add(offset) },
                    );
                    Ok(Value::register(dst))
                }
            },
        }
    }

    /// Returns where a variable is.
    pub(super) fn find(&mut self, variable: VariableId) -> Decoding<Found> {
        let placed = match variable {
            VariableId::Module(index) => self.loader.placed[index as usize],
            VariableId::Param(index) if self.function.is_entry => {
                return Ok(Found::Param(self.params[index as usize]));
            }
            VariableId::Param(index) => return Ok(Found::Frame(self.params[index as usize])),
            VariableId::Return(index) => return Ok(Found::Frame(self.returns[index as usize])),
            VariableId::Body(index) => {
                let variable = &self.body.variables[index as usize];
                match variable.space {
                    Space::Local | Space::Param => {
                        return Ok(Found::Frame(self.variables[index as usize]));
                    }
                    Space::Shared => self.shared[index as usize],
                    _ => return Err(format!("the variable `{}` in a function", variable.name)),
                }
            }
        };
        match placed {
            Placed::Global(global) if self.loader.globals[global as usize].is_extern => {
                let name = &self.loader.globals[global as usize].name;
                Err(format!("the variable `{name}` is `.extern`, and no text defines it"))
            }
            Placed::Global(global) => Ok(Found::Symbol(Symbol::Global(global, 0))),
            Placed::Shared(shared) => {
                self.uses.shared.push(shared);
                Ok(Found::Symbol(Symbol::Shared(shared, 0)))
            }
            Placed::Unsupported => {
                Err("a variable of a kind that is not supported: textures, samplers and surfaces, \
                and local variables outside of functions"
                    .to_owned())
            }
        }
    }
}

/// The place of a variable.
pub(super) enum Found {
    Symbol(Symbol),
    /// An offset in the parameters of the kernel.
    Param(u64),
    /// An offset in the frame of the function.
    Frame(u64),
}

impl Symbol {
    pub(super) fn plus(self, more: i64) -> Self {
        match self {
            Self::Global(global, offset) => Self::Global(global, offset.wrapping_add(more)),
            Self::Shared(shared, offset) => Self::Shared(shared, offset.wrapping_add(more)),
        }
    }
}

/// Returns an integer constant as a value of type `ty`.
fn integer(value: u64, ty: Type) -> Decoding<u64> {
    Ok(match ty {
        Type::Pred => u64::from(value != 0),
        Type::F32 | Type::F64 => {
            return Err("an integer constant for a floating-point operand".to_owned());
        }
        _ => match ty.bytes() {
            1 => value & 0xff,
            2 => value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        },
    })
}
