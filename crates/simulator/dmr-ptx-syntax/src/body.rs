//! The statements of a function's body.

use std::collections::HashMap;

use super::error::ParseError;
use super::module::{
    Body, Guard, Instruction, Label, LabelId, Opcode, OpcodeId, Operand, Position, Register,
    RegisterId, SourceId, UsedBytes, Variable,
};
use super::names::{Found, Meaning, RangeKey, RegisterType};
use super::parser::Parser;
use super::token::Token;

/// The largest number of scopes within each other.
const MAX_SCOPES: u32 = 256;

/// The body that is being read.
#[derive(Debug, Default)]
pub(super) struct BodyBuilder<'a> {
    body: Body,
    /// The registers of ranges that have an id.
    of_ranges: HashMap<RangeKey, RegisterId>,
    /// Labels that are used before it is certain which one is meant.
    pending: Vec<Pending<'a>>,
    /// The number of pending labels when each scope was opened.
    scopes: Vec<usize>,
    source: Option<SourceId>,
}

/// A use of a label, and where its id belongs.
#[derive(Clone, Copy, Debug)]
struct Pending<'a> {
    name: &'a str,
    at: Position,
    place: Place,
}

/// Where the id of a label belongs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// An operand of the instruction that is being read.
    Operand { instruction: u32, operand: u32 },
    /// An element of a list of branch targets.
    Target { list: u32, index: u32 },
}

impl<'a> BodyBuilder<'a> {
    /// Sets the source of the instructions that follow.
    pub(super) fn set_source(&mut self, source: SourceId) {
        self.source = Some(source);
    }

    pub(super) fn variables(&self) -> usize {
        self.body.variables.len()
    }

    pub(super) fn add_variable(&mut self, variable: Variable) {
        self.body.variables.push(variable);
    }

    pub(super) fn add_register(&mut self, name: &str, ty: RegisterType) -> RegisterId {
        self.body.registers.push(Register { name: name.to_owned(), ty: ty.ty, vector: ty.vector });
        RegisterId(self.body.registers.len() as u32 - 1)
    }

    pub(super) fn register_of_range(
        &mut self,
        name: &str,
        ty: RegisterType,
        key: RangeKey,
    ) -> RegisterId {
        if let Some(&register) = self.of_ranges.get(&key) {
            return register;
        }
        let register = self.add_register(name, ty);
        self.of_ranges.insert(key, register);
        register
    }

    pub(super) fn register(&self, register: RegisterId) -> &Register {
        &self.body.registers[register.0 as usize]
    }

    pub(super) fn variable(&self, index: u32) -> &Variable {
        &self.body.variables[index as usize]
    }

    /// Returns the place of an operand of the instruction that is being read.
    pub(super) fn place(&self, operand: usize) -> Place {
        Place::Operand { instruction: self.body.instructions.len() as u32, operand: operand as u32 }
    }

    /// Defers the id of a label until its scope ends.
    pub(super) fn defer(&mut self, name: &'a str, at: Position, place: Place) {
        self.pending.push(Pending { name, at, place });
    }

    fn set(&mut self, place: Place, meaning: Meaning) -> Result<(), &'static str> {
        match place {
            Place::Operand { instruction, operand } => {
                let operands = &mut self.body.instructions[instruction as usize].operands;
                operands[operand as usize] = label_operand(meaning).ok_or("this is not a label")?;
            }
            Place::Target { list, index } => {
                let Meaning::Label(label) = meaning else {
                    return Err("this is not the label of an instruction");
                };
                self.body.branch_targets[list as usize][index as usize] = label;
            }
        }
        Ok(())
    }
}

/// Returns the operand of a label.
pub(super) fn label_operand(meaning: Meaning) -> Option<Operand> {
    match meaning {
        Meaning::Label(label) => Some(Operand::Label(label)),
        Meaning::BranchTargets(list) => Some(Operand::BranchTargets(list)),
        Meaning::CallTargets(list) => Some(Operand::CallTargets(list)),
        Meaning::Prototype(index) => Some(Operand::Prototype(index)),
        Meaning::Register(..) | Meaning::Symbol(_) => None,
    }
}

impl<'a> Parser<'a> {
    /// Reads the body of a function, from its opening brace to its closing one.
    pub(super) fn function_body(&mut self) -> Result<Body, ParseError> {
        let outer = self.names.depth();
        self.open_scope()?;
        while self.names.depth() > outer {
            self.statement()?;
        }
        let builder = std::mem::take(&mut self.body);
        match builder.pending.first() {
            Some(pending) => Err(Self::unknown(pending.name, pending.at)),
            None => Ok(builder.body),
        }
    }

    fn statement(&mut self) -> Result<(), ParseError> {
        match self.token() {
            Token::Sign("}") => self.close_scope(),
            Token::Sign("{") => self.open_scope(),
            Token::Sign(";") => self.advance(),
            Token::Sign("@") => {
                let guard = self.guard()?;
                self.instruction(Some(guard))
            }
            Token::Dot("loc") => self.loc(),
            Token::Dot("pragma") => {
                if let Some(mask) = self.pragma()? {
                    let instruction = self.body.body.instructions.len() as u32;
                    self.body.body.used_bytes.push(UsedBytes { instruction, mask });
                }
                Ok(())
            }
            Token::Dot("file") => self.file(),
            Token::Dot("reg" | "local" | "shared" | "param" | "global" | "const") => {
                self.body_variables()
            }
            Token::Word(name) if self.peek()? == Token::Sign(":") => self.label(name),
            Token::Word(_) => self.instruction(None),
            Token::End => Err(self.error("the body of this function has no end")),
            _ => Err(self.unexpected("an instruction")),
        }
    }

    fn open_scope(&mut self) -> Result<(), ParseError> {
        if self.names.depth() >= MAX_SCOPES {
            return Err(
                self.error(format!("there are more than {MAX_SCOPES} scopes within each other"))
            );
        }
        self.expect("{")?;
        self.names.open();
        self.body.scopes.push(self.body.pending.len());
        Ok(())
    }

    /// Closes a scope. Uses of its labels get their ids; the others are left to the scope around
    /// it.
    fn close_scope(&mut self) -> Result<(), ParseError> {
        let start = self.body.scopes.pop().unwrap_or(0);
        let depth = self.names.depth();
        let mut kept = start;
        for index in start..self.body.pending.len() {
            let pending = self.body.pending[index];
            match self.names.find(pending.name) {
                Some(Found::Plain(meaning, found)) if found == depth => {
                    let set = self.body.set(pending.place, meaning);
                    set.map_err(|message| ParseError {
                        at: pending.at,
                        message: message.to_owned(),
                    })?;
                }
                _ => {
                    self.body.pending[kept] = pending;
                    kept += 1;
                }
            }
        }
        self.body.pending.truncate(kept);
        self.names.close();
        self.expect("}")
    }

    /// Reads a label, and what it is the label of if that is a list or a prototype.
    fn label(&mut self, name: &'a str) -> Result<(), ParseError> {
        let at = self.at();
        self.advance()?;
        self.expect(":")?;
        let meaning = match self.token() {
            Token::Dot("branchtargets") => {
                self.advance()?;
                Meaning::BranchTargets(self.branch_targets()?)
            }
            Token::Dot("calltargets") => {
                self.advance()?;
                let mut list = vec![self.function_name()?];
                while self.take(",")? {
                    list.push(self.function_name()?);
                }
                self.expect(";")?;
                self.body.body.call_targets.push(list);
                Meaning::CallTargets(self.body.body.call_targets.len() as u32 - 1)
            }
            Token::Dot("callprototype") => {
                self.advance()?;
                let prototype = self.prototype()?;
                self.body.body.prototypes.push(prototype);
                Meaning::Prototype(self.body.body.prototypes.len() as u32 - 1)
            }
            _ => {
                let body = &mut self.body.body;
                let instruction = body.instructions.len() as u32;
                body.labels.push(Label { name: name.to_owned(), instruction });
                Meaning::Label(LabelId(body.labels.len() as u32 - 1))
            }
        };
        self.declare(name, meaning, at)
    }

    fn branch_targets(&mut self) -> Result<u32, ParseError> {
        let list = self.body.body.branch_targets.len() as u32;
        let mut labels = Vec::new();
        loop {
            let at = self.at();
            let name = self.word("a label")?;
            self.body.defer(name, at, Place::Target { list, index: labels.len() as u32 });
            // Every pending label gets its id, or the text is refused.
            labels.push(LabelId(u32::MAX));
            if !self.take(",")? {
                break;
            }
        }
        self.expect(";")?;
        self.body.body.branch_targets.push(labels);
        Ok(list)
    }

    fn guard(&mut self) -> Result<Guard, ParseError> {
        self.expect("@")?;
        let negated = self.take("!")?;
        let at = self.at();
        let name = self.word("a predicate")?;
        let register = self.register_named(name, at)?;
        Ok(Guard { register, negated })
    }

    fn instruction(&mut self, guard: Option<Guard>) -> Result<(), ParseError> {
        let at = self.at();
        let opcode = self.opcode()?;
        let is_call = self.module.opcodes[opcode.0 as usize].name == "call";
        let operands = if is_call { self.call_operands()? } else { self.operands()? };
        self.expect(";")?;
        let source = self.body.source;
        let operands = operands.into_boxed_slice();
        self.body.body.instructions.push(Instruction { guard, opcode, source, at, operands });
        Ok(())
    }

    fn opcode(&mut self) -> Result<OpcodeId, ParseError> {
        let mut key = self.word("an instruction")?.to_owned();
        while let Token::Dot(part) = self.token() {
            key.push('.');
            key.push_str(part);
            self.advance()?;
        }
        if let Some(&known) = self.opcodes.get(&key) {
            return Ok(known);
        }
        let mut parts = key.split('.').map(str::to_owned);
        let name = parts.next().unwrap_or_default();
        self.module.opcodes.push(Opcode { name, modifiers: parts.collect() });
        let id = OpcodeId(self.module.opcodes.len() as u32 - 1);
        self.opcodes.insert(key, id);
        Ok(id)
    }
}
