//! The decoding of branches, calls and barriers.

use dmr_ptx_syntax::Type;
use dmr_ptx_syntax::{FunctionId, LabelId, Operand, Space, Symbol as Named, Variable};

use super::function::{Decoding, FunctionLoader};
use super::operands::Found;
use crate::cluster::ClusterInst;
use crate::code::{Barrier, BarrierKind, NO_REG, Op, Value};
use crate::program::{Actual, Builtin, Call, Target};

/// The return values and parameters of a function.
type Formals<'m> = (&'m [Variable], &'m [Variable]);

impl FunctionLoader<'_, '_> {
    /// Decodes an instruction that changes the flow of control; `None` for any other.
    pub(super) fn decode_control(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Option<Op>> {
        Ok(Some(match (name, operands) {
            ("bra", [Operand::Label(label)]) => Op::Branch { target: self.target(*label) },
            ("brx", [index, Operand::BranchTargets(list)]) => {
                let labels = self
                    .body
                    .branch_targets
                    .get(*list as usize)
                    .ok_or("its list of targets is missing")?;
                let targets = labels.iter().map(|label| self.target(*label)).collect();
                self.loader.code.tables.push(targets);
                let table = self.loader.code.tables.len() as u32 - 1;
                Op::BranchIndex { index: self.value(index, Type::U32)?, table }
            }
            ("call", _) => self.decode_call(operands)?,
            ("ret", _) => Op::Return,
            ("exit", _) => Op::Exit,
            ("trap" | "brkpt", _) => Op::Trap,
            ("nanosleep", [duration]) => Op::Sleep(self.value(duration, Type::U32)?),
            ("pmevent" | "setmaxnreg" | "griddepcontrol" | "discard", _) => Op::Nop,
            ("bar", [members]) if modifiers.first() == Some(&"warp") => {
                Op::WarpBarrier { members: self.value(members, Type::B32)? }
            }
            ("barrier", []) if modifiers.first() == Some(&"cluster") => {
                decode_cluster_barrier(&modifiers[1..])?
            }
            ("bar" | "barrier", _) => self.decode_barrier(name, modifiers, operands)?,
            _ => return Ok(None),
        }))
    }

    /// Returns the parsed instruction of a label, which is replaced by the decoded one at the end.
    fn target(&self, label: LabelId) -> u32 {
        self.body.labels.get(label.0 as usize).map_or(u32::MAX, |label| label.instruction)
    }

    fn decode_barrier(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Op> {
        let mut kind = None;
        let mut aligned = name == "bar";
        let mut reduces = false;
        for &modifier in modifiers {
            match modifier {
                "cta" | "pred" | "u32" => {}
                "aligned" => aligned = true,
                "sync" => kind = Some(BarrierKind::Sync),
                "arrive" => kind = Some(BarrierKind::Arrive),
                "red" => reduces = true,
                "popc" if reduces => kind = Some(BarrierKind::Popc),
                "and" if reduces => kind = Some(BarrierKind::And),
                "or" if reduces => kind = Some(BarrierKind::Or),
                _ => return Err(format!("the modifier `.{modifier}` is not supported")),
            }
        }
        let kind = kind.ok_or("its kind is missing")?;
        let predicate = self.loader.constant(0);
        let mut barrier =
            Barrier { kind, id: predicate, threads: None, predicate, dst: NO_REG, aligned };
        let rest = if reduces {
            let [dst, rest @ .., predicate] = operands else {
                return Err("it has too few operands".to_owned());
            };
            barrier.dst = self.destination(dst)?;
            barrier.predicate = self.value(predicate, Type::Pred)?;
            rest
        } else {
            operands
        };
        let (id, threads) = match rest {
            [id] => (id, None),
            [id, threads] => (id, Some(threads)),
            _ => return Err(format!("{} operands", operands.len())),
        };
        barrier.id = self.value(id, Type::U32)?;
        barrier.threads = threads.map(|threads| self.value(threads, Type::U32)).transpose()?;
        if kind == BarrierKind::Arrive && barrier.threads.is_none() {
            return Err("the number of threads is missing".to_owned());
        }
        Ok(Op::Barrier(barrier))
    }

    fn decode_call(&mut self, operands: &[Operand]) -> Decoding<Op> {
        let [Operand::List(returns), callee, Operand::List(arguments), rest @ ..] = operands else {
            return Err("a form of call that is not supported".to_owned());
        };
        let module = self.loader.module;
        let (target, formals): (Target, Option<Formals<'_>>) = match callee {
            Operand::Symbol(Named::Function(FunctionId(id)), _) => {
                let id = self.loader.resolve_alias(*id);
                let function = &module.functions[id as usize];
                let target = match (&function.body, function.name.as_str()) {
                    (Some(_), _) => {
                        self.uses.functions.push(id);
                        Target::Function(id)
                    }
                    (None, "vprintf") => Target::Builtin(Builtin::Print),
                    (None, "__assertfail") => Target::Builtin(Builtin::AssertFail),
                    (None, name) => return Err(format!("`{name}` is not defined in the module")),
                };
                (target, Some((&function.returns, &function.params)))
            }
            Operand::Register(_) => {
                self.uses.calls_indirectly = true;
                let prototype = match rest.first() {
                    Some(Operand::Prototype(index)) => self.body.prototypes.get(*index as usize),
                    _ => None,
                };
                let formals =
                    prototype.map(|prototype| (&prototype.returns[..], &prototype.params[..]));
                (Target::Indirect(self.value(callee, Type::U64)?), formals)
            }
            _ => return Err("a form of call that is not supported".to_owned()),
        };
        let (result_formals, formals) = formals.unwrap_or((&[], &[]));
        let mut call = Call {
            caller: self.index,
            target,
            arguments: Vec::new(),
            returns: Vec::new(),
            registers: 0,
            frame_bytes: 0,
        };
        for (index, argument) in arguments.iter().enumerate() {
            call.arguments.push(self.actual(argument, formals.get(index))?);
        }
        for (index, result) in returns.iter().enumerate() {
            call.returns.push(self.actual(result, result_formals.get(index))?);
        }
        self.loader.code.calls.push(call);
        Ok(Op::Call(self.loader.code.calls.len() as u32 - 1))
    }

    fn actual(&mut self, operand: &Operand, formal: Option<&Variable>) -> Decoding<Actual> {
        match operand {
            Operand::Sink => return Ok(Actual::Frame { offset: 0, bytes: 0 }),
            Operand::Symbol(Named::Variable(variable), 0) => {
                if let Found::Frame(offset) = self.find(*variable)? {
                    let declared = match *variable {
                        dmr_ptx_syntax::VariableId::Body(index) => {
                            self.body.variables.get(index as usize)
                        }
                        dmr_ptx_syntax::VariableId::Param(index) => {
                            self.function.params.get(index as usize)
                        }
                        dmr_ptx_syntax::VariableId::Return(index) => {
                            self.function.returns.get(index as usize)
                        }
                        dmr_ptx_syntax::VariableId::Module(_) => None,
                    };
                    if declared.is_some_and(|declared| declared.space == Space::Param) {
                        return Ok(Actual::Frame {
                            offset,
                            bytes: declared.and_then(Variable::bytes).unwrap_or(0),
                        });
                    }
                }
            }
            _ => {}
        }
        let ty = formal.map_or(Type::B64, |formal| formal.element);
        let value: Value = self.value(operand, ty)?;
        let bytes =
            formal.map_or(u32::from(self.width(operand)) / 8, |formal| formal.value_bytes() as u32);
        Ok(Actual::Value { value, bytes })
    }
}

fn decode_cluster_barrier(modifiers: &[&str]) -> Decoding<Op> {
    let (verb, rest) = modifiers.split_first().ok_or("its kind is missing")?;
    if let Some(unknown) =
        rest.iter().find(|name| !matches!(**name, "aligned" | "release" | "acquire" | "relaxed"))
    {
        return Err(format!("the modifier `.{unknown}` is not supported"));
    }
    match *verb {
        "arrive" => Ok(Op::Cluster(ClusterInst::Arrive(!rest.contains(&"relaxed")))),
        "wait" => Ok(Op::Cluster(ClusterInst::Wait)),
        _ => Err(format!("the modifier `.{verb}` is not supported")),
    }
}
