//! One function: its registers, frame and operands, and the decoding of arithmetic and moves.

use dmr_ptx_arith as arith;
use dmr_ptx_arith::lanes;
use dmr_ptx_syntax::Type;
use dmr_ptx_syntax::{Body, Function, Guard as NamedGuard, Instruction, Operand, Space, Variable};

use super::liveness::Insts;
use super::registers::Visitor;
use super::{Loader, Placed, Uses};
use crate::code::{ArithInst, Guard, Inst, NO_REG, Op, Reg};
use crate::program::{At, Formal, Function as Decoded, LoadError};

/// The result of decoding: an error is the reason why an instruction is not supported.
pub(super) type Decoding<T> = Result<T, String>;

/// The maximum bytes of the frame of a function.
const MOST_FRAME: u64 = 1 << 30;

/// The maximum number of registers of a function.
const MOST_REGISTERS: u32 = 1 << 16;

/// The numbers of a declared register.
#[derive(Clone, Copy)]
pub(super) struct Numbered {
    pub(super) first: Reg,
    pub(super) ty: Type,
    pub(super) vector: u32,
}

/// A function in the making.
pub(super) struct FunctionLoader<'l, 'm> {
    pub(super) loader: &'l mut Loader<'m>,
    pub(super) function: &'m Function,
    pub(super) body: &'m Body,
    pub(super) index: u32,
    pub(super) registers: Vec<Numbered>,
    pub(super) register_count: u32,
    pub(super) params: Vec<u64>,
    pub(super) returns: Vec<u64>,
    pub(super) variables: Vec<u64>,
    pub(super) frame_bytes: u64,
    pub(super) uses: Uses,
    /// The place in the text of the instructions that are added.
    at: At,
    /// The shared variables of the body, by their index.
    pub(super) shared: Vec<Placed>,
}

impl<'m> Loader<'m> {
    /// Decodes a function.
    pub(super) fn add_function(&mut self, index: usize) {
        let function = &self.module.functions[index];
        let decoded = Decoded { name: function.name.clone(), ..Decoded::default() };
        self.code.functions.push(decoded);
        self.uses.push(Uses::default());
        let Some(body) = &function.body else { return };
        let shared = body.variables.iter().map(|variable| match variable.space {
            Space::Shared => self.share(variable),
            _ => Placed::Unsupported,
        });
        let shared = shared.collect();
        let mut loader = FunctionLoader {
            loader: self,
            function,
            body,
            index: index as u32,
            registers: Vec::new(),
            register_count: 0,
            params: Vec::new(),
            returns: Vec::new(),
            variables: Vec::new(),
            frame_bytes: 0,
            uses: Uses::default(),
            at: At::default(),
            shared,
        };
        loader.number_registers();
        loader.lay_out_frame();
        loader.decode_body();
    }
}

impl FunctionLoader<'_, '_> {
    fn number_registers(&mut self) {
        for register in &self.body.registers {
            let ty = register.ty;
            let vector = register.vector;
            self.registers.push(Numbered { first: self.register_count, ty, vector });
            self.register_count += vector * if ty == Type::B128 { 2 } else { 1 };
        }
    }

    fn lay_out_frame(&mut self) {
        let mut end = 0u64;
        let mut place = |variable: &Variable, is_framed: bool| {
            if !is_framed {
                return 0;
            }
            let offset = end.next_multiple_of(variable.align.clamp(1, 256));
            end = offset.saturating_add(variable.bytes().unwrap_or(0)).min(1 << 48);
            offset
        };
        let callable = !self.function.is_entry;
        let framed = |variable: &Variable| callable && variable.space == Space::Param;
        self.params =
            self.function.params.iter().map(|variable| place(variable, framed(variable))).collect();
        self.returns = self
            .function
            .returns
            .iter()
            .map(|variable| place(variable, framed(variable)))
            .collect();
        let in_body = |variable: &Variable| matches!(variable.space, Space::Local | Space::Param);
        self.variables =
            self.body.variables.iter().map(|variable| place(variable, in_body(variable))).collect();
        if self.function.is_entry {
            let mut offset = 0u64;
            for (param, to) in self.function.params.iter().zip(&mut self.params) {
                *to = offset.next_multiple_of(param.align.max(1));
                offset = to.saturating_add(param.bytes().unwrap_or(0)).min(1 << 48);
            }
        }
        self.frame_bytes = end.next_multiple_of(16);
    }

    fn decode_body(&mut self) {
        let entry = self.loader.code.insts.len();
        let mut starts = Vec::with_capacity(self.body.instructions.len() + 1);
        self.at = At { function: self.index, line: self.function.at.line, source: None };
        if self.frame_bytes > MOST_FRAME {
            self.refuse(format!("a frame of {} bytes of local memory", self.frame_bytes));
        }
        for instruction in &self.body.instructions {
            starts.push(self.loader.code.insts.len() as u32);
            self.at.line = instruction.at.line;
            self.at.source = instruction.source.map(|source| source.0);
            if let Err(reason) = self.decode(instruction) {
                let name = self.loader.module.opcodes[instruction.opcode.0 as usize].clone();
                let name =
                    std::iter::once(name.name).chain(name.modifiers).collect::<Vec<_>>().join(".");
                self.refuse(format!("`{name}`: {reason}"));
            }
        }
        starts.push(self.loader.code.insts.len() as u32);
        for used in &self.body.used_bytes {
            let inst = starts.get(used.instruction as usize).copied().unwrap_or(u32::MAX);
            if let Some(Inst { op: Op::Load(transfer), .. }) =
                self.loader.code.insts.get_mut(inst as usize)
            {
                transfer.used = used.mask;
            }
        }
        self.push(Guard::NONE, Op::Return);
        self.resolve_labels(entry, &starts);
        if self.function.is_entry {
            self.exit_at_branches(entry);
        }
        let is_entry = self.function.is_entry;
        let formal = |variable: &Variable, offset: u64| {
            let bytes = variable.bytes().unwrap_or(0);
            match variable.register.filter(|_| variable.space == Space::Reg) {
                Some(id) => Formal::Register {
                    register: self.registers[id.0 as usize].first,
                    bytes: bytes as u32,
                },
                None => Formal::Frame { offset, bytes },
            }
        };
        let formals = |variables: &[Variable], offsets: &[u64]| -> Vec<Formal> {
            variables
                .iter()
                .zip(offsets)
                .map(|(variable, &offset)| formal(variable, offset))
                .collect()
        };
        let mut returns = formals(&self.function.returns, &self.returns);
        let mut formals = formals(&self.function.params, &self.params);
        let code = &mut self.loader.code;
        let mut visitor = Visitor {
            calls: &mut code.calls,
            warp_insts: &mut code.warp_insts,
            returns: &mut returns,
        };
        let mut insts = Insts {
            insts: &mut code.insts[entry..],
            first: entry as u32,
            tables: &code.tables,
            registers: self.register_count,
            formals: &mut formals,
        };
        self.register_count = insts.renumber(&mut visitor);
        let decoded = &mut self.loader.code.functions[self.index as usize];
        decoded.entry = entry as u32;
        decoded.registers = self.register_count.max(1);
        decoded.frame_bytes = self.frame_bytes;
        decoded.formals = formals;
        decoded.returns = returns;
        decoded.is_callable = !is_entry;
        if self.register_count > MOST_REGISTERS {
            let message = format!("{} registers", self.register_count);
            let function = format!("function `{}`", self.function.name);
            let line = self.function.at.line;
            self.uses.refusal.get_or_insert(LoadError::Unsupported { function, line, message });
        }
        for call in self.loader.code.calls.iter_mut().filter(|call| call.caller == self.index) {
            call.registers = self.register_count.max(1);
            call.frame_bytes = self.frame_bytes;
        }
        self.loader.uses[self.index as usize] = std::mem::take(&mut self.uses);
    }

    /// Makes branches to the end of a kernel lead to an exit, as the compiler of a GPU does: their
    /// threads exit early.
    fn exit_at_branches(&mut self, entry: usize) {
        let exit = self.loader.code.insts.len() as u32;
        self.push(Guard::NONE, Op::Exit);
        let insts = &mut self.loader.code.insts;
        for index in entry..insts.len() {
            let Op::Branch { target } = insts[index].op else { continue };
            let end = &insts[target as usize];
            if end.guard == Guard::NONE && matches!(end.op, Op::Return) {
                insts[index].op = Op::Branch { target: exit };
            }
        }
    }

    /// Replaces the indices of parsed instructions in branches by those of decoded ones.
    fn resolve_labels(&mut self, entry: usize, starts: &[u32]) {
        let code = &mut self.loader.code;
        for inst in &mut code.insts[entry..] {
            match &mut inst.op {
                Op::Branch { target } => *target = starts[(*target as usize).min(starts.len() - 1)],
                Op::BranchIndex { table, .. } => {
                    for target in &mut code.tables[*table as usize] {
                        *target = starts[(*target as usize).min(starts.len() - 1)];
                    }
                }
                _ => {}
            }
        }
    }

    fn refuse(&mut self, message: String) {
        let kind = if self.function.is_entry { "kernel" } else { "function" };
        let function = format!("{kind} `{}`", self.function.name);
        self.loader.code.refusals.push(message.clone());
        let index = self.loader.code.refusals.len() as u32 - 1;
        self.push(Guard::NONE, Op::Refused(index));
        self.uses.refusal.get_or_insert(LoadError::Unsupported {
            function,
            line: self.at.line,
            message,
        });
    }

    /// Adds an instruction.
    pub(super) fn push(&mut self, guard: Guard, op: Op) {
        self.loader.code.insts.push(Inst { guard, op });
        self.loader.code.places.push(self.at);
    }

    /// Returns a register of no name.
    pub(super) fn temporary(&mut self) -> Reg {
        self.register_count += 1;
        self.register_count - 1
    }

    fn decode(&mut self, instruction: &Instruction) -> Decoding<()> {
        let opcode = &self.loader.module.opcodes[instruction.opcode.0 as usize];
        let modifiers: Vec<&str> = opcode.modifiers.iter().map(String::as_str).collect();
        let guard = self.guard(instruction.guard);
        let operands = &instruction.operands[..];
        if let Some(op) = self.decode_control(&opcode.name, &modifiers, operands)? {
            self.push(guard, op);
            return Ok(());
        }
        if let Some(op) = self.decode_memory(&opcode.name, &modifiers, operands)? {
            self.push(guard, op);
            return Ok(());
        }
        if opcode.name == "mov" {
            return self.decode_move(&modifiers, operands, guard);
        }
        if let Some(decoded) = lanes::decode(&opcode.name, &modifiers) {
            return self.decode_lanes(decoded?, operands, guard);
        }
        match arith::decode(&opcode.name, &modifiers) {
            Some(decoded) => self.decode_arith(decoded?, operands, guard),
            None => Err("the instruction is not supported".to_owned()),
        }
    }

    fn guard(&mut self, guard: Option<NamedGuard>) -> Guard {
        match guard {
            None => Guard::NONE,
            Some(guard) => Guard {
                register: self.registers[guard.register.0 as usize].first,
                negated: guard.negated,
            },
        }
    }

    fn decode_arith(
        &mut self,
        arith: arith::Arith,
        operands: &[Operand],
        guard: Guard,
    ) -> Decoding<()> {
        let shape = *arith.operands();
        let (destination, sources) = operands.split_first().ok_or("it has no operands")?;
        let (first, second) = match destination {
            Operand::Pair(pair) => (&pair[0], Some(&pair[1])),
            one => (one, None),
        };
        if second.is_some() && shape.result_count < 2 {
            return Err("it has one destination".to_owned());
        }
        if sources.len() < shape.required_sources || sources.len() > shape.source_count {
            return Err(format!("{} sources of {}", sources.len(), shape.source_count));
        }
        for (register, ty) in [Some(first), second].into_iter().flatten().zip(shape.results()) {
            if usize::from(self.width(register)) < 8 * ty.bytes() {
                return Err(format!("a destination is narrower than {ty:?}"));
            }
        }
        let dst = self.destination(first)?;
        let second = second.map_or(Ok(NO_REG), |second| self.destination(second))?;
        let bits = if shape.extends { self.width(first) } else { 64 };
        let mut values = [self.loader.constant(0); 6];
        for ((value, operand), &ty) in values.iter_mut().zip(sources).zip(shape.sources()) {
            *value = self.value(operand, ty)?;
        }
        let count = sources.len() as u8;
        self.push(guard, Op::Arith(ArithInst { arith, dst, second, sources: values, count, bits }));
        Ok(())
    }

    fn decode_move(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand],
        guard: Guard,
    ) -> Decoding<()> {
        let [dst, src] = operands else { return Err("it has two operands".to_owned()) };
        let ty =
            modifiers.last().and_then(|name| Type::from_name(name)).ok_or("its type is missing")?;
        let targets = self.destinations(dst)?;
        let sources = self.values(src, ty)?;
        if targets.len() > 8 || sources.len() > 8 {
            return Err("a vector of more than 8 elements".to_owned());
        }
        let bits = 8 * ty.bytes() as u8;
        let zero = self.loader.constant(0);
        if matches!(dst, Operand::Vector(_)) && !matches!(src, Operand::Vector(_)) {
            let mut all = [NO_REG; 8];
            all[..targets.len()].copy_from_slice(&targets);
            let mut halves = [zero; 2];
            halves[..sources.len().min(2)].copy_from_slice(&sources[..sources.len().min(2)]);
            let each = bits / targets.len().max(1) as u8;
            self.push(
                guard,
                Op::Unpack { dst: all, sources: halves, count: targets.len() as u8, bits: each },
            );
        } else if matches!(src, Operand::Vector(_)) && targets.len() != sources.len() {
            let mut all = [zero; 8];
            all[..sources.len()].copy_from_slice(&sources);
            let mut halves = [NO_REG; 2];
            halves[..targets.len().min(2)].copy_from_slice(&targets[..targets.len().min(2)]);
            let each = bits / sources.len().max(1) as u8;
            self.push(
                guard,
                Op::Pack { dst: halves, sources: all, count: sources.len() as u8, bits: each },
            );
        } else if targets.len() != sources.len() {
            return Err(format!("{} values for {} registers", sources.len(), targets.len()));
        } else {
            for (&dst, &src) in targets.iter().zip(&sources) {
                let narrow = bits < 32
                    && ty != Type::Pred
                    && matches!(src.source(), crate::code::Source::Special(_));
                let mut all = [NO_REG; 8];
                all[0] = dst;
                self.push(
                    guard,
                    match narrow {
                        true => Op::Unpack { dst: all, sources: [src, zero], count: 1, bits },
                        false => Op::Copy { dst, src },
                    },
                );
            }
        }
        Ok(())
    }
}
