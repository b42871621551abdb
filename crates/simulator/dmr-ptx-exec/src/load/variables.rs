//! The variables of a module: which the caller places, and which are in shared memory.

use dmr_ptx_syntax::{InitialValue, Linkage, Space, Symbol as Named, Variable, VariableId};

use super::{Loader, Placed, SharedVariable};
use crate::program::{Global, InitialBytes, LoadError, Relocation};
use crate::space::{FUNCTION_STRIDE, FUNCTIONS};

impl Loader<'_> {
    /// Places the variables outside of functions.
    pub(super) fn place_variables(&mut self) -> Result<(), LoadError> {
        let module = self.module;
        for variable in &module.variables {
            let placed = match variable.space {
                Space::Global | Space::Const if !variable.opaque => {
                    self.globals.push(declare(variable));
                    Placed::Global(self.globals.len() as u32 - 1)
                }
                Space::Shared => self.share(variable),
                _ => Placed::Unsupported,
            };
            self.placed.push(placed);
        }
        for (index, variable) in module.variables.iter().enumerate() {
            if let Placed::Global(global) = self.placed[index] {
                self.initialise(global as usize, variable)?;
            }
        }
        Ok(())
    }

    /// Records a variable in shared memory.
    pub(super) fn share(&mut self, variable: &Variable) -> Placed {
        self.shared.push(SharedVariable { bytes: variable.bytes(), align: variable.align.max(1) });
        Placed::Shared(self.shared.len() as u32 - 1)
    }

    fn initialise(&mut self, global: usize, variable: &Variable) -> Result<(), LoadError> {
        let refuse = |message: &str| {
            Err(LoadError::Unsupported {
                function: format!("variable `{}`", variable.name),
                line: variable.at.line,
                message: message.to_owned(),
            })
        };
        for initial in &variable.initial {
            let address = match &initial.value {
                InitialValue::Bytes(bytes) => {
                    let bytes = InitialBytes { offset: initial.offset, bytes: bytes.clone() };
                    self.globals[global].initial.push(bytes);
                    continue;
                }
                InitialValue::Address(address) => address,
            };
            match address.symbol {
                Named::Function(function) => {
                    let function = self.resolve_alias(function.0);
                    let value = (FUNCTIONS + u64::from(function) * FUNCTION_STRIDE)
                        .wrapping_add_signed(address.addend);
                    let value = (value & address.mask) >> (address.mask.trailing_zeros() & 63);
                    let len = (address.bytes as usize).min(8);
                    let bytes = InitialBytes {
                        offset: initial.offset,
                        bytes: value.to_le_bytes()[..len].to_vec(),
                    };
                    self.globals[global].initial.push(bytes);
                    self.taken.push(function);
                }
                Named::Variable(VariableId::Module(index)) => {
                    let Some(Placed::Global(target)) = self.placed.get(index as usize).copied()
                    else {
                        return refuse(
                            "its initial value is an address that is not in global or constant memory",
                        );
                    };
                    if self.globals[target as usize].is_extern {
                        return refuse("its initial value is an address that no text defines");
                    }
                    self.globals[global].relocations.push(Relocation {
                        offset: initial.offset,
                        bytes: address.bytes,
                        global: target as usize,
                        addend: address.addend,
                        mask: address.mask,
                    });
                }
                Named::Variable(_) => {
                    return refuse("its initial value is the address of a variable of a function");
                }
            }
        }
        Ok(())
    }

    /// Returns the function that a name stands for.
    pub(super) fn resolve_alias(&self, function: u32) -> u32 {
        let alias =
            self.module.functions.get(function as usize).and_then(|function| function.alias_of);
        alias.map_or(function, |function| function.0)
    }
}

fn declare(variable: &Variable) -> Global {
    Global {
        name: variable.name.clone(),
        is_constant: variable.space == Space::Const,
        is_extern: variable.linkage == Linkage::Extern,
        bytes: variable.bytes().unwrap_or(0),
        align: variable.align.max(1),
        initial: Vec::new(),
        relocations: Vec::new(),
    }
}
