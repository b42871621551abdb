//! Loaded modules: their kernels, and their variables in device memory.

use std::ffi::CString;
use std::sync::Arc;

use dmr_ptx::{Global, Program};

use crate::abi::*;
use crate::kernel::image::{program_of, texts_in};
use crate::kernel::{CompilerLog, Kernel, Loaded, Module, Placed, Refused};
use crate::machine::{CopyWork, FillWork, Rows, Session};

impl Session<'_> {
    /// Returns a loaded module.
    pub(crate) fn module(&self, index: u32) -> Outcome<&Module> {
        self.kernels.modules.get(&index).ok_or(ERROR_INVALID_HANDLE)
    }

    /// Returns the kernel of a function, if its module is still loaded.
    pub(crate) fn entry(&self, index: u32) -> Outcome<&dmr_ptx::Kernel> {
        let &(module, place) =
            self.kernels.functions.get(index as usize).ok_or(ERROR_INVALID_HANDLE)?;
        self.module(module)?.kernels().get(place).ok_or(ERROR_INVALID_HANDLE)
    }

    /// Returns the PTX texts of an image, for the devices of this machine.
    pub(crate) fn texts_in(&self, image: &[u8]) -> Result<Vec<String>, Refused> {
        const MAJOR: i32 = 75;
        const MINOR: i32 = 76;
        let attribute = |number| self.attribute(number).unwrap_or(0).unsigned_abs();
        texts_in(image, attribute(MAJOR) * 10 + attribute(MINOR))
    }

    /// Returns the kernel of a function as PTX, or the reason why the interpreter cannot run it.
    pub(crate) fn interpreted(&self, function: u32) -> Outcome<Result<Kernel, Refused>> {
        let &(module, place) =
            self.kernels.functions.get(function as usize).ok_or(ERROR_INVALID_HANDLE)?;
        Ok(self.module(module)?.loaded.kernel(place).map_err(Refused::from))
    }

    /// Loads the module of an image onto the device of the calling thread's context. What its
    /// kernels cannot do is in the log.
    pub(crate) fn load_image(
        &mut self,
        image: Result<&[u8], Refused>,
        log: &mut CompilerLog,
    ) -> Outcome<u32> {
        self.context()?;
        let texts = image.and_then(|image| self.texts_in(image));
        let program = match texts.and_then(|texts| program_of(&texts)) {
            Ok(program) => program,
            Err(refused) => return Err(self.refuse_image(refused, log)),
        };
        let index = self.place_module(program)?;
        let loaded = Arc::clone(&self.module(index)?.loaded);
        for kernel in loaded.program.kernels() {
            if let Some(refusal) = kernel.refusal.clone() {
                let refused = Refused::from(refusal);
                let line = format!("kernel `{}` cannot run: {}\n", kernel.name, refused.reason);
                log.information.push_str(&line);
                self.refuse_kernel(&kernel.name, refused);
            }
        }
        Ok(index)
    }

    /// Allocates the variables of a program, and keeps it as a module.
    fn place_module(&mut self, program: Program) -> Outcome<u32> {
        let device = self.device()?;
        let legacy = self.contexts[self.context()? as usize].legacy;
        let mut globals: Vec<u64> = Vec::new();
        let mut placed = Vec::new();
        for variable in program.globals() {
            let at = match variable.is_extern || variable.bytes == 0 {
                true => Ok(0),
                false => self.allocate_now(device, variable.bytes),
            };
            match at {
                Ok(0) => globals.push(0),
                Ok(at) => {
                    globals.push(at);
                    placed.push(Placed { name: variable.name.clone(), at, bytes: variable.bytes });
                    self.name_allocation(at, variable.name.as_str().into());
                    self.objects.variables.insert(at);
                }
                Err(code) => {
                    self.free_variables(placed);
                    return Err(code);
                }
            }
        }
        let variables = program.globals().iter().zip(&globals).filter(|(_, at)| **at != 0);
        for (variable, &at) in variables {
            if let Err(code) = self.initialise(legacy, at, variable, &globals) {
                self.free_variables(placed);
                return Err(code);
            }
        }
        let name =
            |kernel: &dmr_ptx::Kernel| CString::new(kernel.name.as_str()).unwrap_or_default();
        let names = program.kernels().iter().map(name).collect();
        let checks = self.config.checks;
        let limits = self.config.limits;
        let program = Arc::new(program);
        let loaded = Arc::new(Loaded { program, globals, checks, limits });
        let index = self.kernels.next_module;
        self.kernels.next_module += 1;
        self.kernels.modules.insert(index, Module { loaded, names, variables: placed });
        Ok(index)
    }

    /// Unloads a module: frees its variables after all work of their device.
    pub(crate) fn unload_module(&mut self, index: u32) -> Outcome {
        let module = self.kernels.modules.remove(&index).ok_or(ERROR_INVALID_HANDLE)?;
        self.free_variables(module.variables);
        Ok(())
    }

    /// Writes the initial bytes of a variable, before all work that comes after the load.
    fn initialise(&mut self, legacy: u32, at: u64, variable: &Global, globals: &[u64]) -> Outcome {
        let zeros = FillWork { rows: Rows::one(at, variable.bytes), pattern: [0; 4] };
        let mut last = self.fill(legacy, zeros)?;
        for (offset, bytes) in initial_bytes(variable, globals) {
            let count = bytes.len() as u64;
            let to = Rows::one(at + offset, count);
            let from = Rows::one(1, count);
            let work = CopyWork { to, from, to_host: false, from_host: true, by_address: false };
            last = Some(self.copy_in(legacy, &work, |_| bytes.as_slice().into())?);
        }
        if let Some(last) = last {
            self.wait_for(last);
        }
        Ok(())
    }

    fn free_variables(&mut self, variables: Vec<Placed>) {
        for variable in variables {
            self.objects.variables.remove(&variable.at);
            // It is live: only this driver frees it.
            let _ = self.free_now(variable.at);
        }
    }
}

/// Returns the initial bytes of a variable, with their offsets; all others are zero.
fn initial_bytes(variable: &Global, globals: &[u64]) -> Vec<(u64, Vec<u8>)> {
    let bytes = variable.initial.iter().map(|initial| (initial.offset, initial.bytes.clone()));
    let addresses = variable.relocations.iter().map(|relocation| {
        let address = globals.get(relocation.global).copied().unwrap_or(0);
        let address = address.wrapping_add_signed(relocation.addend) & relocation.mask;
        let value = address >> (relocation.mask.trailing_zeros() & 63);
        let count = (relocation.bytes as usize).min(8);
        (relocation.offset, value.to_le_bytes()[..count].to_vec())
    });
    bytes.chain(addresses).filter(|(_, bytes)| !bytes.is_empty()).collect()
}
