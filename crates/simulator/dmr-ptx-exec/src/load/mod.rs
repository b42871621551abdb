//! A parsed module into a program: variables are placed, instructions decoded, kernels described.

mod control;
mod copies;
mod function;
mod kernels;
mod lanes;
mod liveness;
mod mbarriers;
mod memory;
mod operands;
mod registers;
mod variables;

pub(super) use registers::{Use, Visitor};

use std::collections::HashMap;

use dmr_ptx_arith::WARP;
use dmr_ptx_syntax::{self as syntax, Module};

use super::code::Value;
use super::fault::{CallLine, SourceLine};
use super::program::{Code, Global, LoadError, Program, Symbol};

/// Parses, links and decodes the texts of modules.
pub(super) fn load(texts: &[&str]) -> Result<Program, LoadError> {
    let modules = texts.iter().map(|text| syntax::parse(text.as_bytes()));
    let module = syntax::link(modules.collect::<Result<Vec<_>, _>>()?)?;
    let mut loader = Loader::new(&module);
    loader.place_variables()?;
    loader.add_sources();
    for index in 0..module.functions.len() {
        loader.add_function(index);
    }
    let kernels = loader.kernels();
    let target = module.target.chars().filter(char::is_ascii_digit).collect::<String>();
    let target = target.parse().unwrap_or(0);
    Ok(Program { code: loader.code, kernels, globals: loader.globals, target })
}

/// A variable in shared memory.
#[derive(Clone, Copy, Debug)]
struct SharedVariable {
    /// `None` for dynamic shared memory.
    bytes: Option<u64>,
    align: u64,
}

/// The place of a variable of the module.
#[derive(Clone, Copy, Debug)]
enum Placed {
    /// An index of the globals.
    Global(u32),
    /// An index of the shared variables.
    Shared(u32),
    Unsupported,
}

/// The variables and functions that a function uses, and the reason why it cannot run.
#[derive(Debug, Default)]
struct Uses {
    /// Indices of shared variables.
    shared: Vec<u32>,
    /// The functions that it calls, or takes the address of.
    functions: Vec<u32>,
    calls_indirectly: bool,
    refusal: Option<LoadError>,
}

/// A program in the making.
struct Loader<'m> {
    module: &'m Module,
    code: Code,
    globals: Vec<Global>,
    shared: Vec<SharedVariable>,
    /// By the index of the module's variable.
    placed: Vec<Placed>,
    /// By the index of the function.
    uses: Vec<Uses>,
    /// The functions whose address is taken.
    taken: Vec<u32>,
    constants: HashMap<u64, Value>,
    symbols: HashMap<Symbol, Value>,
    specials: HashMap<syntax::SpecialRegister, Value>,
}

impl<'m> Loader<'m> {
    fn new(module: &'m Module) -> Self {
        Self {
            module,
            code: Code::default(),
            globals: Vec::new(),
            shared: Vec::new(),
            placed: Vec::new(),
            uses: Vec::new(),
            taken: Vec::new(),
            constants: HashMap::new(),
            symbols: HashMap::new(),
            specials: HashMap::new(),
        }
    }

    fn constant(&mut self, value: u64) -> Value {
        let constants = &mut self.code.constants;
        *self.constants.entry(value).or_insert_with(|| {
            constants.push([value; WARP]);
            Value::constant(constants.len() as u32 - 1)
        })
    }

    fn symbol(&mut self, symbol: Symbol) -> Value {
        let symbols = &mut self.code.symbols;
        *self.symbols.entry(symbol).or_insert_with(|| {
            symbols.push(symbol);
            Value::address(symbols.len() as u32 - 1)
        })
    }

    fn special(&mut self, register: syntax::SpecialRegister) -> Value {
        let specials = &mut self.code.specials;
        *self.specials.entry(register).or_insert_with(|| {
            specials.push(register);
            Value::special(specials.len() as u32 - 1)
        })
    }

    fn add_sources(&mut self) {
        for source in &self.module.sources {
            let file = self.module.file(source.file).unwrap_or_default().to_owned();
            // A call is in front of what was inlined there.
            let call = source.inlined.as_ref().and_then(|inlined| {
                let call = self.code.sources.get(inlined.at.0 as usize)?;
                let outer = call.inlined_at.clone();
                Some(outer.unwrap_or_else(|| {
                    Box::new(CallLine { file: call.file.clone(), line: call.line })
                }))
            });
            self.code.sources.push(SourceLine { file, line: source.line, inlined_at: call });
        }
    }
}
