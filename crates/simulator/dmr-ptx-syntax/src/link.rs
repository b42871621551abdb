//! Several parsed texts into one module: a declaration in one and the definition in another become
//! one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::functions::same_sizes;
use super::module::{
    Base, Body, Function, FunctionId, InitialValue, Instruction, Linkage, Module, Opcode, OpcodeId,
    Operand, SourceId, Symbol, Variable, VariableId,
};

/// Texts that cannot be linked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot link `{name}`: {message}")]
#[non_exhaustive]
pub struct LinkError {
    /// The variable or function.
    pub name: String,
    /// The reason.
    pub message: String,
}

impl LinkError {
    fn new(name: &str, message: &str) -> Self {
        Self { name: name.to_owned(), message: message.to_owned() }
    }
}

/// Links modules: names that are `.visible`, `.weak`, `.common` or `.extern` mean the same in all
/// of them. Lines stay those of each text.
///
/// # Errors
///
/// A name that two modules define, or that one declares and another defines with other sizes.
pub fn link(modules: impl IntoIterator<Item = Module>) -> Result<Module, LinkError> {
    let mut modules = modules.into_iter();
    let mut linked = modules.next().unwrap_or_default();
    for module in modules {
        Linker::new(&linked).add(&mut linked, module)?;
    }
    Ok(linked)
}

/// The numbers of a module's parts in the module that it is added to.
struct Linker {
    variables_by_name: HashMap<String, u32>,
    functions_by_name: HashMap<String, u32>,
    variables: Vec<u32>,
    functions: Vec<u32>,
    opcodes: Vec<u32>,
    /// Added to the numbers of sources and of files.
    sources: u32,
    files: u32,
}

impl Linker {
    fn new(linked: &Module) -> Self {
        let variables = linked.variables.iter().enumerate();
        let variables = variables.filter(|(_, variable)| variable.linkage != Linkage::Internal);
        let functions = linked.functions.iter().enumerate();
        let functions = functions.filter(|(_, function)| function.linkage != Linkage::Internal);
        let files = linked.files.iter().map(|file| file.number);
        let files = files.chain(linked.sources.iter().map(|source| source.file)).max();
        Self {
            variables_by_name: variables.map(|(i, v)| (v.name.clone(), i as u32)).collect(),
            functions_by_name: functions.map(|(i, f)| (f.name.clone(), i as u32)).collect(),
            variables: Vec::new(),
            functions: Vec::new(),
            opcodes: Vec::new(),
            sources: linked.sources.len() as u32,
            files: files.map_or(0, |last| last.saturating_add(1)),
        }
    }

    fn add(mut self, linked: &mut Module, mut module: Module) -> Result<(), LinkError> {
        linked.version = linked.version.max(module.version);
        self.add_opcodes(linked, std::mem::take(&mut module.opcodes));
        self.number_variables(linked, &module.variables)?;
        self.number_functions(linked, &module.functions)?;
        for mut variable in std::mem::take(&mut module.variables) {
            self.change_variable(&mut variable);
            self.put_variable(linked, variable);
        }
        for mut function in std::mem::take(&mut module.functions) {
            self.change_function(&mut function);
            self.put_function(linked, function);
        }
        for mut source in module.sources {
            source.file = source.file.saturating_add(self.files);
            if let Some(inlined) = &mut source.inlined {
                inlined.at.0 += self.sources;
            }
            linked.sources.push(source);
        }
        for mut file in module.files {
            file.number = file.number.saturating_add(self.files);
            linked.files.push(file);
        }
        Ok(())
    }

    fn add_opcodes(&mut self, linked: &mut Module, opcodes: Vec<Opcode>) {
        let known = linked.opcodes.iter().enumerate();
        let mut known: HashMap<Opcode, u32> =
            known.map(|(index, opcode)| (opcode.clone(), index as u32)).collect();
        for opcode in opcodes {
            let index = match known.entry(opcode) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    linked.opcodes.push(new.key().clone());
                    *new.insert(linked.opcodes.len() as u32 - 1)
                }
            };
            self.opcodes.push(index);
        }
    }

    /// Finds the number of each variable: that of the same name, or a new one.
    fn number_variables(&mut self, linked: &Module, new: &[Variable]) -> Result<(), LinkError> {
        let mut numbers = linked.variables.len() as u32..;
        for variable in new {
            let is_external = variable.linkage != Linkage::Internal;
            let known = self.variables_by_name.get(&variable.name).filter(|_| is_external);
            let Some(&index) = known else {
                self.variables.extend(numbers.next());
                continue;
            };
            let known = &linked.variables[index as usize];
            if known.space != variable.space || known.value_bytes() != variable.value_bytes() {
                return Err(LinkError::new(&known.name, "two texts declare it with other sizes"));
            }
            if known.linkage == Linkage::Visible && variable.linkage == Linkage::Visible {
                return Err(LinkError::new(&known.name, "two texts define it"));
            }
            self.variables.push(index);
        }
        Ok(())
    }

    /// Finds the number of each function, as for variables.
    fn number_functions(&mut self, linked: &Module, new: &[Function]) -> Result<(), LinkError> {
        let mut numbers = linked.functions.len() as u32..;
        for function in new {
            let is_external = function.linkage != Linkage::Internal;
            let known = self.functions_by_name.get(&function.name).filter(|_| is_external);
            let Some(&index) = known else {
                self.functions.extend(numbers.next());
                continue;
            };
            let known = &linked.functions[index as usize];
            if known.is_entry != function.is_entry
                || !same_sizes(&known.params, &function.params)
                || !same_sizes(&known.returns, &function.returns)
            {
                let message = "two texts declare it with other parameters";
                return Err(LinkError::new(&known.name, message));
            }
            let is_weak = |function: &Function| function.linkage == Linkage::Weak;
            if is_defined(known) && is_defined(function) && !is_weak(known) && !is_weak(function) {
                return Err(LinkError::new(&known.name, "two texts define it"));
            }
            self.functions.push(index);
        }
        Ok(())
    }

    /// Adds a variable, or replaces the one of its name by a definition that comes before it.
    fn put_variable(&self, linked: &mut Module, variable: Variable) {
        let known = self.variables_by_name.get(&variable.name);
        match known.filter(|_| variable.linkage != Linkage::Internal) {
            None => linked.variables.push(variable),
            Some(&index) => {
                let known = &mut linked.variables[index as usize];
                let is_larger = known.linkage == Linkage::Common
                    && variable.linkage == Linkage::Common
                    && variable.count > known.count;
                if rank(variable.linkage) > rank(known.linkage) || is_larger {
                    *known = variable;
                }
            }
        }
    }

    fn put_function(&self, linked: &mut Module, function: Function) {
        let known = self.functions_by_name.get(&function.name);
        match known.filter(|_| function.linkage != Linkage::Internal) {
            None => linked.functions.push(function),
            Some(&index) => {
                let known = &mut linked.functions[index as usize];
                let is_first = !is_defined(known) || function.linkage != Linkage::Weak;
                if is_defined(&function) && is_first {
                    *known = function;
                }
            }
        }
    }

    fn change_variable(&self, variable: &mut Variable) {
        for initial in &mut variable.initial {
            if let InitialValue::Address(address) = &mut initial.value {
                self.change(&mut address.symbol);
            }
        }
    }

    fn change_function(&self, function: &mut Function) {
        if let Some(target) = &mut function.alias_of {
            self.change_id(target);
        }
        let Some(body) = &mut function.body else { return };
        let Body { variables, instructions, call_targets, .. } = body;
        variables.iter_mut().for_each(|variable| self.change_variable(variable));
        call_targets.iter_mut().flatten().for_each(|target| self.change_id(target));
        for Instruction { opcode, source, operands, .. } in instructions {
            *opcode = OpcodeId(self.opcodes[opcode.0 as usize]);
            if let Some(SourceId(source)) = source {
                *source += self.sources;
            }
            self.change_operands(operands);
        }
    }

    fn change_operands(&self, operands: &mut [Operand]) {
        for operand in operands {
            match operand {
                Operand::Symbol(symbol, _) => self.change(symbol),
                Operand::Address(address) => {
                    if let Base::Symbol(symbol) = &mut address.base {
                        self.change(symbol);
                    }
                }
                Operand::Indexed(parts) | Operand::Vector(parts) | Operand::List(parts) => {
                    self.change_operands(parts);
                }
                Operand::Pair(parts) => self.change_operands(&mut parts[..]),
                Operand::Minus(part) => self.change_operands(std::slice::from_mut(part)),
                _ => {}
            }
        }
    }

    fn change(&self, symbol: &mut Symbol) {
        match symbol {
            Symbol::Variable(VariableId::Module(index)) => {
                *index = self.variables[*index as usize];
            }
            Symbol::Variable(_) => {}
            Symbol::Function(function) => self.change_id(function),
        }
    }

    fn change_id(&self, function: &mut FunctionId) {
        function.0 = self.functions[function.0 as usize];
    }
}

/// Returns which of two variables of one name is the definition: the higher rank, or the first.
fn rank(linkage: Linkage) -> u32 {
    match linkage {
        Linkage::Extern => 0,
        Linkage::Common => 1,
        Linkage::Weak => 2,
        Linkage::Visible | Linkage::Internal => 3,
    }
}

fn is_defined(function: &Function) -> bool {
    function.body.is_some() || function.alias_of.is_some()
}
