//! Kernels, functions and prototypes: their parameters and directives.

use super::error::ParseError;
use super::module::{
    Function, FunctionId, Limits, Linkage, Position, Prototype, Space, Symbol, Variable, VariableId,
};
use super::names::{Found, Meaning, RegisterType};
use super::parser::Parser;
use super::token::Token;
use super::variables::Declared;

/// The directives around the name and parameters of a function.
#[derive(Default)]
struct Directives {
    limits: Limits,
    no_return: bool,
}

/// The parameters or return values of a function, and their names.
#[derive(Default)]
struct Signature<'a> {
    names: Vec<&'a str>,
    variables: Vec<Variable>,
}

impl<'a> Parser<'a> {
    /// Reads a kernel or function: a declaration or a definition.
    pub(super) fn function(&mut self, linkage: Linkage) -> Result<(), ParseError> {
        let is_entry = self.token() == Token::Dot("entry");
        self.advance()?;
        let mut directives = Directives::default();
        self.directives(&mut directives)?;
        let mut returns = if is_entry { Signature::default() } else { self.signature()? };
        let at = self.at();
        let name = self.word("the name of a function")?;
        let mut params = self.signature()?;
        self.directives(&mut directives)?;
        let id = self.add_function(
            name,
            Function {
                name: name.to_owned(),
                is_entry,
                linkage,
                params: params.variables.clone(),
                returns: returns.variables.clone(),
                no_return: directives.no_return,
                limits: directives.limits,
                alias_of: None,
                body: None,
                at,
            },
        )?;
        if !self.is("{") {
            return self.expect(";");
        }
        let function = &self.module.functions[id.0 as usize];
        if function.body.is_some() || function.alias_of.is_some() {
            return Err(ParseError {
                at,
                message: format!("{} is defined already", Token::Word(name).shown()),
            });
        }
        self.names.open();
        self.declare_signature(&mut returns, VariableId::Return)?;
        self.declare_signature(&mut params, VariableId::Param)?;
        let body = self.function_body()?;
        self.names.close();
        let function = &mut self.module.functions[id.0 as usize];
        function.params = params.variables;
        function.returns = returns.variables;
        function.body = Some(body);
        Ok(())
    }

    /// Adds a function, or checks it against its earlier declaration.
    fn add_function(
        &mut self,
        name: &'a str,
        function: Function,
    ) -> Result<FunctionId, ParseError> {
        if let Some(Found::Plain(Meaning::Symbol(Symbol::Function(id)), 0)) = self.names.find(name)
        {
            let known = &mut self.module.functions[id.0 as usize];
            let same = known.is_entry == function.is_entry
                && same_sizes(&known.params, &function.params)
                && same_sizes(&known.returns, &function.returns);
            if !same {
                let message = format!(
                    "{} is declared already, with other parameters",
                    Token::Word(name).shown()
                );
                return Err(ParseError { at: function.at, message });
            }
            if known.body.is_none() {
                known.no_return |= function.no_return;
                if function.linkage != Linkage::Extern {
                    known.linkage = function.linkage;
                }
                if function.limits != Limits::default() {
                    known.limits = function.limits;
                }
                known.at = function.at;
            }
            return Ok(id);
        }
        let id = FunctionId(self.module.functions.len() as u32);
        self.declare(name, Meaning::Symbol(Symbol::Function(id)), function.at)?;
        self.module.functions.push(function);
        Ok(id)
    }

    /// Declares parameters or return values within the function.
    fn declare_signature(
        &mut self,
        signature: &mut Signature<'a>,
        id: fn(u32) -> VariableId,
    ) -> Result<(), ParseError> {
        for (index, (&name, variable)) in
            signature.names.iter().zip(&mut signature.variables).enumerate()
        {
            if name == "_" {
                continue;
            }
            let mut meaning = Meaning::Symbol(Symbol::Variable(id(index as u32)));
            if variable.space == Space::Reg {
                let ty = RegisterType { ty: variable.element, vector: variable.vector };
                let register = self.body.add_register(name, ty);
                variable.register = Some(register);
                meaning = Meaning::Register(ty, Some(register));
            }
            self.declare(name, meaning, variable.at)?;
        }
        Ok(())
    }

    /// Reads parameters in parentheses; there are none without parentheses.
    fn signature(&mut self) -> Result<Signature<'a>, ParseError> {
        let mut signature = Signature::default();
        if !self.take("(")? || self.take(")")? {
            return Ok(signature);
        }
        loop {
            let specifier = self.specifier()?;
            if !matches!(specifier.space, Space::Param | Space::Reg) {
                return Err(self.error("a parameter is declared with `.param` or `.reg`"));
            }
            let Declared { name, variable } = self.declarator(&specifier, Linkage::Internal)?;
            signature.names.push(name);
            signature.variables.push(variable);
            if !self.take(",")? {
                self.expect(")")?;
                return Ok(signature);
            }
        }
    }

    fn directives(&mut self, found: &mut Directives) -> Result<(), ParseError> {
        while let Token::Dot(directive) = self.token() {
            if directive == "pragma" {
                self.pragma()?;
                continue;
            }
            self.advance()?;
            let limits = &mut found.limits;
            match directive {
                "maxntid" => limits.max_threads = Some(self.dimensions()?),
                "reqntid" => limits.required_threads = Some(self.dimensions()?),
                "reqnctapercluster" => limits.required_cluster = Some(self.dimensions()?),
                "minnctapersm" => limits.min_blocks_per_multiprocessor = Some(self.small()?),
                "maxnctapersm" => limits.max_blocks_per_multiprocessor = Some(self.small()?),
                "maxnreg" => limits.max_registers = Some(self.small()?),
                "maxclusterrank" => limits.max_cluster_blocks = Some(self.small()?),
                "explicitcluster" => limits.explicit_cluster = true,
                "blocksareclusters" => limits.blocks_are_clusters = true,
                "noreturn" => found.no_return = true,
                "unique" => {}
                "abi_preserve" | "abi_preserve_control" => {
                    self.small()?;
                }
                "attribute" => {
                    self.attributes()?;
                }
                _ => {
                    return Err(self.error(format!(
                        "{} is not a directive of functions",
                        Token::Dot(directive).shown()
                    )));
                }
            }
        }
        Ok(())
    }

    fn dimensions(&mut self) -> Result<[u32; 3], ParseError> {
        let mut dimensions = [1; 3];
        for dimension in &mut dimensions {
            *dimension = self.small()?;
            if !self.take(",")? {
                break;
            }
        }
        Ok(dimensions)
    }

    /// Reads what follows `.callprototype`.
    pub(super) fn prototype(&mut self) -> Result<Prototype, ParseError> {
        let returns = self.signature()?.variables;
        match self.token() {
            Token::Sign("_") | Token::Word(_) => self.advance()?,
            _ => return Err(self.unexpected("`_`")),
        }
        let params = self.signature()?.variables;
        let mut directives = Directives::default();
        self.directives(&mut directives)?;
        self.expect(";")?;
        Ok(Prototype { returns, params, no_return: directives.no_return })
    }

    /// Reads the name of a function that is declared.
    pub(super) fn function_name(&mut self) -> Result<FunctionId, ParseError> {
        let at: Position = self.at();
        let name = self.word("the name of a function")?;
        match self.names.find(name) {
            Some(Found::Plain(Meaning::Symbol(Symbol::Function(id)), _)) => Ok(id),
            Some(_) => Err(ParseError {
                at,
                message: format!("{} is not a function", Token::Word(name).shown()),
            }),
            None => Err(Self::unknown(name, at)),
        }
    }
}

pub(super) fn same_sizes(known: &[Variable], found: &[Variable]) -> bool {
    known.len() == found.len()
        && known.iter().zip(found).all(|(known, found)| known.bytes() == found.bytes())
}
