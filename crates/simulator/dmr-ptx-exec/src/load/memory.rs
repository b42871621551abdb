//! The decoding of instructions that access memory.

use dmr_ptx_syntax::Type;
use dmr_ptx_syntax::{Base, Operand, Symbol as Named};

use super::function::{Decoding, FunctionLoader};
use super::operands::Found;
use crate::atomic::Change;
use crate::cluster::ClusterInst;
use crate::code::{Atomic, Location, NO_REG, Op, Transfer};
use crate::fault::SpaceName;
use crate::global::{Qualifier, Scope};
use crate::program::Symbol;
use crate::space::window;

/// The modifiers of an instruction that accesses memory.
struct Modifiers {
    space: SpaceName,
    qualifier: Qualifier,
    scope: Scope,
    acquires: bool,
    releases: bool,
    is_ordered: bool,
    vector: usize,
    ty: Option<Type>,
    /// The operation of `atom` and `red`.
    operation: Option<String>,
}

impl Modifiers {
    fn parse(modifiers: &[&str]) -> Decoding<Self> {
        let mut all = Self {
            space: SpaceName::Generic,
            qualifier: Qualifier::Plain,
            scope: Scope::Gpu,
            acquires: false,
            releases: false,
            is_ordered: false,
            vector: 1,
            ty: None,
            operation: None,
        };
        for &modifier in modifiers {
            match modifier {
                "global" => all.space = SpaceName::Global,
                "const" => {
                    all.space = SpaceName::Const;
                    all.qualifier = Qualifier::Constant;
                }
                "shared" | "shared::cta" | "shared::cluster" => all.space = SpaceName::Shared,
                "local" => all.space = SpaceName::Local,
                "param" | "param::entry" | "param::func" => all.space = SpaceName::Param,
                "nc" => all.qualifier = Qualifier::Constant,
                "volatile" => all.qualifier = Qualifier::Volatile,
                "relaxed" | "mmio" => all.is_ordered = true,
                "acquire" | "release" | "acq_rel" => {
                    all.is_ordered = true;
                    all.acquires |= modifier != "release";
                    all.releases |= modifier != "acquire";
                }
                "cta" => all.scope = Scope::Cta,
                "cluster" => all.scope = Scope::Cluster,
                "gpu" => all.scope = Scope::Gpu,
                "sys" => all.scope = Scope::Sys,
                "v2" => all.vector = 2,
                "v4" => all.vector = 4,
                "v8" => all.vector = 8,
                "weak" | "noftz" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "unified" => {}
                "exch" | "cas" | "add" | "inc" | "dec" | "min" | "max" | "and" | "or" | "xor" => {
                    all.operation = Some(modifier.to_owned());
                }
                _ if modifier.starts_with("L1::") || modifier.starts_with("L2::") => {}
                _ => match Type::from_name(modifier) {
                    Some(ty) => all.ty = Some(ty),
                    None => return Err(format!("the modifier `.{modifier}` is not supported")),
                },
            }
        }
        if all.is_ordered {
            all.qualifier = Qualifier::Atomic(all.scope);
        }
        Ok(all)
    }
}

impl FunctionLoader<'_, '_> {
    /// Decodes an instruction that accesses memory; `None` for any other.
    pub(super) fn decode_memory(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Option<Op>> {
        if let Some(op) = self.decode_mbarrier(name, modifiers, operands)? {
            return Ok(Some(op));
        }
        Ok(Some(match name {
            "ld" | "ldu" => self.decode_load(name, modifiers, operands)?,
            "st" | "red" if modifiers.first() == Some(&"async") => {
                self.decode_counted(name, &modifiers[1..], operands)?
            }
            "st" => self.decode_store(modifiers, operands)?,
            "atom" | "red" => self.decode_atomic(name, modifiers, operands)?,
            "cvta" => self.decode_convert(modifiers, operands)?,
            "isspacep" => {
                let [dst, src] = operands else { return Err("it has two operands".to_owned()) };
                let space = Modifiers::parse(modifiers)?.space;
                Op::IsSpace { dst: self.destination(dst)?, src: self.value(src, Type::U64)?, space }
            }
            "mapa" => {
                let [dst, src, rank] = operands else {
                    return Err("it has three operands".to_owned());
                };
                let src = self.value(src, Type::U64)?;
                let rank = self.value(rank, Type::U32)?;
                Op::Cluster(ClusterInst::Map { dst: self.destination(dst)?, src, rank })
            }
            "getctarank" => {
                let [dst, src] = operands else { return Err("it has two operands".to_owned()) };
                let src = self.value(src, Type::U64)?;
                Op::Cluster(ClusterInst::Rank { dst: self.destination(dst)?, src })
            }
            "cp" => self.decode_copy(modifiers, operands)?,
            "membar" | "fence" => match modifiers.last() {
                Some(&"cta") => Op::Fence(Scope::Cta),
                Some(&"sys") => Op::Fence(Scope::Sys),
                Some(&"cluster") => Op::Fence(Scope::Cluster),
                _ => Op::Fence(Scope::Gpu),
            },
            "prefetch" | "prefetchu" | "applypriority" => Op::Nop,
            "createpolicy" => {
                let dst = operands.first().ok_or("its destination is missing")?;
                Op::Copy { dst: self.destination(dst)?, src: self.loader.constant(0) }
            }
            _ => return Ok(None),
        }))
    }

    /// Returns where an address operand is.
    pub(super) fn location(&mut self, operand: &Operand, space: SpaceName) -> Decoding<Location> {
        let Operand::Address(address) = operand else {
            return Err("an address is missing".to_owned());
        };
        let zero = self.loader.constant(0);
        let mut location =
            Location { space, base: zero, offset: address.offset, frame: false, narrow: false };
        match address.base {
            Base::Absolute => {}
            Base::Register(id) => {
                location.base = self.value(&Operand::Register(id), Type::B64)?;
                location.narrow = self.is_narrow(id);
                if space == SpaceName::Param && !self.function.is_entry {
                    location.space = SpaceName::Local;
                }
            }
            Base::Symbol(Named::Function(_)) => return Err("the address of a function".to_owned()),
            Base::Symbol(Named::Variable(variable)) => match self.find(variable)? {
                Found::Symbol(symbol) => {
                    location.space = match symbol {
                        Symbol::Global(..) => SpaceName::Global,
                        Symbol::Shared(..) => SpaceName::Shared,
                    };
                    location.base = self.loader.symbol(symbol);
                }
                Found::Param(at) => {
                    location.space = SpaceName::Param;
                    location.offset = location.offset.wrapping_add(at as i64);
                }
                Found::Frame(at) => {
                    location.space = SpaceName::Local;
                    location.frame = true;
                    location.offset = location.offset.wrapping_add(at as i64);
                }
            },
        }
        if location.space == SpaceName::Const {
            location.space = SpaceName::Global;
        }
        Ok(location)
    }

    fn transfer(&mut self, address: &Operand, modifiers: &Modifiers) -> Decoding<Transfer> {
        let ty = modifiers.ty.ok_or("its type is missing")?;
        if ty == Type::Pred {
            return Err("predicates have no memory".to_owned());
        }
        let (element, count) = match ty {
            Type::B128 => (8, modifiers.vector * 2),
            _ => (ty.bytes(), modifiers.vector),
        };
        if count > 8 || element * count > 32 {
            return Err("more than 32 bytes of a lane".to_owned());
        }
        let zero = self.loader.constant(0);
        Ok(Transfer {
            location: self.location(address, modifiers.space)?,
            qualifier: modifiers.qualifier,
            fence: (modifiers.acquires || modifiers.releases).then_some(modifiers.scope),
            element: element as u8,
            count: count as u8,
            extend: 0,
            used: u32::MAX,
            registers: [NO_REG; 8],
            values: [zero; 8],
        })
    }

    fn decode_load(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Op> {
        let [dst, address, ..] = operands else { return Err("it has two operands".to_owned()) };
        let mut modifiers = Modifiers::parse(modifiers)?;
        if name == "ldu" {
            modifiers.qualifier = Qualifier::Constant;
        }
        let mut transfer = self.transfer(address, &modifiers)?;
        if modifiers.ty.is_some_and(Type::is_signed) {
            transfer.extend = self.width(dst);
        }
        let registers = self.destinations(dst)?;
        if registers.len() != usize::from(transfer.count) {
            return Err(format!("{} registers for {} elements", registers.len(), transfer.count));
        }
        transfer.registers[..registers.len()].copy_from_slice(&registers);
        Ok(Op::Load(transfer))
    }

    pub(super) fn decode_store(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Op> {
        let [address, src, ..] = operands else { return Err("it has two operands".to_owned()) };
        let modifiers = Modifiers::parse(modifiers)?;
        let mut transfer = self.transfer(address, &modifiers)?;
        let values = self.values(src, modifiers.ty.unwrap_or(Type::B32))?;
        if values.len() != usize::from(transfer.count) {
            return Err(format!("{} values for {} elements", values.len(), transfer.count));
        }
        transfer.values[..values.len()].copy_from_slice(&values);
        Ok(Op::Store(transfer))
    }

    pub(super) fn decode_atomic(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Op> {
        let modifiers = Modifiers::parse(modifiers)?;
        let (dst, rest) = match (name, operands) {
            ("red", rest) => (None, rest),
            (_, [dst, rest @ ..]) => (Some(dst), rest),
            _ => return Err("it has no operands".to_owned()),
        };
        let [address, operand, more @ ..] = rest else {
            return Err("it has too few operands".to_owned());
        };
        let ty = modifiers.ty.ok_or("its type is missing")?;
        let operation = modifiers.operation.as_deref().ok_or("its operation is missing")?;
        let change = Change::decode(operation, ty)
            .ok_or_else(|| format!("`.{operation}` of this type is not supported"))?;
        let zero = self.loader.constant(0);
        let mut atomic = Atomic {
            location: self.location(address, modifiers.space)?,
            scope: modifiers.scope,
            acquires: modifiers.acquires,
            releases: modifiers.releases,
            change,
            element: ty.bytes() as u8,
            count: modifiers.vector as u8,
            registers: [NO_REG; 8],
            values: [zero; 8],
            swap: [zero; 2],
        };
        if ty.bytes() * modifiers.vector > 16 {
            return Err("more than 16 bytes of a lane".to_owned());
        }
        let values = self.values(operand, ty)?;
        let registers = dst.map_or(Ok(Vec::new()), |dst| self.destinations(dst))?;
        let wanted = if ty == Type::B128 { 2 } else { modifiers.vector };
        let is_sink = matches!(dst, Some(Operand::Sink));
        if values.len() != wanted || (dst.is_some() && !is_sink && registers.len() != wanted) {
            return Err(format!(
                "{} values and {} registers for {wanted}",
                values.len(),
                registers.len()
            ));
        }
        atomic.values[..wanted].copy_from_slice(&values);
        if registers.len() == wanted {
            atomic.registers[..wanted].copy_from_slice(&registers);
        }
        if operation == "cas" {
            let swap = self.values(more.first().ok_or("its last operand is missing")?, ty)?;
            if swap.len() != wanted || wanted > 2 {
                return Err("its last operand has another type".to_owned());
            }
            atomic.swap[..wanted].copy_from_slice(&swap);
        }
        Ok(Op::Atomic(atomic))
    }

    fn decode_convert(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<Op> {
        let [dst, src] = operands else { return Err("it has two operands".to_owned()) };
        let to = modifiers.first() == Some(&"to");
        let mut space = Modifiers::parse(&modifiers[usize::from(to)..])?.space;
        if space == SpaceName::Param && !self.function.is_entry {
            space = SpaceName::Local;
        }
        let delta = if to { window(space).wrapping_neg() } else { window(space) };
        Ok(Op::ToGeneric { dst: self.destination(dst)?, src: self.value(src, Type::U64)?, delta })
    }
}
