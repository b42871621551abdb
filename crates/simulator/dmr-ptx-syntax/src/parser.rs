//! The parser's place in the text, and what a module holds outside of functions.

use std::collections::HashMap;

use super::body::BodyBuilder;
use super::debug::Lines;
use super::error::ParseError;
use super::module::{Linkage, Module, OpcodeId, Position, VariableId};
use super::module::{Symbol, Variable};
use super::names::{Found, Meaning, Names};
use super::token::{Lexer, Placed, Token};

/// The deepest nesting of expressions, vectors and initialisers.
const MAX_DEPTH: u32 = 64;

/// Reads a text from front to back.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    current: Placed<'a>,
    next: Option<Placed<'a>>,
    depth: u32,
    pub(super) module: Module,
    pub(super) names: Names<'a>,
    pub(super) opcodes: HashMap<String, OpcodeId>,
    pub(super) lines: Lines<'a>,
    /// The body that is being read.
    pub(super) body: BodyBuilder<'a>,
    /// Variables that a range (`.global .u32 a<10>`) has declared.
    pub(super) ranged_variables: u64,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, ParseError> {
        let mut lexer = Lexer::new(text);
        let current = lexer.next()?;
        Ok(Self {
            lexer,
            current,
            next: None,
            depth: 0,
            module: Module { address_bits: 64, ..Module::default() },
            names: Names::default(),
            opcodes: HashMap::new(),
            lines: Lines::default(),
            body: BodyBuilder::default(),
            ranged_variables: 0,
        })
    }

    pub(super) fn token(&self) -> Token<'a> {
        self.current.token
    }

    /// Returns where the current token begins.
    pub(super) fn at(&self) -> Position {
        self.current.at
    }

    /// Returns the token behind the current one.
    pub(super) fn peek(&mut self) -> Result<Token<'a>, ParseError> {
        let next = match self.next {
            Some(next) => next,
            None => self.lexer.next()?,
        };
        self.next = Some(next);
        Ok(next.token)
    }

    pub(super) fn advance(&mut self) -> Result<(), ParseError> {
        self.current = match self.next.take() {
            Some(next) => next,
            None => self.lexer.next()?,
        };
        Ok(())
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError { at: self.at(), message: message.into() }
    }

    pub(super) fn unexpected(&self, expected: &str) -> ParseError {
        self.error(format!("expected {expected}, found {}", self.token().shown()))
    }

    /// Returns whether the current token is this sign.
    pub(super) fn is(&self, sign: &str) -> bool {
        matches!(self.token(), Token::Sign(found) if found == sign)
    }

    /// Goes past the sign, if it is the current token. What follows it is read with the next token.
    pub(super) fn take(&mut self, sign: &str) -> Result<bool, ParseError> {
        let found = self.is(sign);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<(), ParseError> {
        if self.take(sign)? { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    pub(super) fn word(&mut self, expected: &str) -> Result<&'a str, ParseError> {
        let Token::Word(word) = self.token() else { return Err(self.unexpected(expected)) };
        self.advance()?;
        Ok(word)
    }

    /// Reads a constant expression whose value is an unsigned 32-bit number.
    pub(super) fn small(&mut self) -> Result<u32, ParseError> {
        let at = self.at();
        let value = self.integer()?;
        u32::try_from(value)
            .map_err(|_| ParseError { at, message: format!("{} is out of range", value as i64) })
    }

    /// Counts one more level of nesting.
    pub(super) fn deeper(&mut self) -> Result<(), ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("this is nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }

    pub(super) fn shallower(&mut self) {
        self.depth -= 1;
    }

    /// Reads the whole text.
    pub(super) fn module(mut self) -> Result<Module, ParseError> {
        if self.token() != Token::Dot("version") {
            return Err(self.unexpected("`.version`"));
        }
        while self.token() != Token::End {
            self.item()?;
        }
        if self.module.target.is_empty() {
            return Err(self.error("the text has no `.target`"));
        }
        self.lines.finish(&mut self.module);
        Ok(self.module)
    }

    fn item(&mut self) -> Result<(), ParseError> {
        let Token::Dot(directive) = self.token() else {
            return if self.take(";")? { Ok(()) } else { Err(self.unexpected("a directive")) };
        };
        match directive {
            "version" => self.version(),
            "target" => self.target(),
            "address_size" => self.address_size(),
            "file" => self.file(),
            "loc" => self.loc(),
            "section" => self.section(),
            "pragma" => self.pragma().map(drop),
            "alias" => self.alias(),
            _ => {
                let linkage = self.linkage()?;
                match self.token() {
                    Token::Dot("entry" | "func") => self.function(linkage),
                    Token::Dot("global" | "const" | "shared" | "local" | "param" | "tex") => {
                        self.module_variables(linkage)
                    }
                    _ => Err(self.unexpected("a variable, `.entry` or `.func`")),
                }
            }
        }
    }

    fn linkage(&mut self) -> Result<Linkage, ParseError> {
        let mut linkage = Linkage::Internal;
        while let Token::Dot(word) = self.token() {
            linkage = match word {
                "extern" => Linkage::Extern,
                "visible" => Linkage::Visible,
                "weak" => Linkage::Weak,
                "common" => Linkage::Common,
                _ => break,
            };
            self.advance()?;
        }
        Ok(linkage)
    }

    fn version(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        // 8.10 is not 8.1: the digits count, not the number.
        let parts = self.current.text.split_once('.');
        let version =
            parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let Some(version) = version else { return Err(self.unexpected("a version such as 8.0")) };
        self.module.version = version;
        self.advance()
    }

    fn target(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        loop {
            let word = self.word("an architecture such as `sm_80`")?;
            if self.module.target.is_empty()
                && (word.starts_with("sm_") || word.starts_with("compute_"))
            {
                self.module.target = word.to_owned();
            } else {
                self.module.target_options.push(word.to_owned());
            }
            if !self.take(",")? {
                return Ok(());
            }
        }
    }

    fn address_size(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        self.module.address_bits = match self.token() {
            Token::Number(number) if number.bits() == Some(64) => 64,
            Token::Number(number) if number.bits() == Some(32) => 32,
            _ => return Err(self.unexpected("32 or 64")),
        };
        self.advance()
    }

    /// Reads `.pragma "...";`, and returns the mask of `used_bytes_mask`: no other one changes the
    /// result of a program.
    pub(super) fn pragma(&mut self) -> Result<Option<u32>, ParseError> {
        self.advance()?;
        let mut used = None;
        loop {
            let Token::Text(text) = self.token() else { return Err(self.unexpected("a string")) };
            used = used_bytes_mask(text).or(used);
            self.advance()?;
            if !self.take(",")? {
                self.expect(";")?;
                return Ok(used);
            }
        }
    }

    fn alias(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        let at = self.at();
        let alias = self.function_name()?;
        self.expect(",")?;
        let target = self.function_name()?;
        self.expect(";")?;
        let refused = |message: &str| Err(ParseError { at, message: message.to_owned() });
        if self.module.functions[target.0 as usize].alias_of.is_some() || alias == target {
            return refused("an alias must name a function that is no alias itself");
        }
        let function = &mut self.module.functions[alias.0 as usize];
        if function.body.is_some() || function.alias_of.is_some() {
            return refused("this function is defined already");
        }
        function.alias_of = Some(target);
        Ok(())
    }

    /// Adds a variable of the module. A definition replaces its `.extern` declaration.
    pub(super) fn add_variable(
        &mut self,
        name: &'a str,
        variable: Variable,
    ) -> Result<(), ParseError> {
        let at = variable.at;
        if let Some(Found::Plain(Meaning::Symbol(Symbol::Variable(VariableId::Module(index))), 0)) =
            self.names.find(name)
        {
            let known = &mut self.module.variables[index as usize];
            let same =
                known.space == variable.space && known.value_bytes() == variable.value_bytes();
            if same && known.linkage == Linkage::Extern {
                *known = variable;
                return Ok(());
            }
            if same && variable.linkage == Linkage::Extern {
                return Ok(());
            }
        }
        let id = VariableId::Module(self.module.variables.len() as u32);
        self.declare(name, Meaning::Symbol(Symbol::Variable(id)), at)?;
        self.module.variables.push(variable);
        Ok(())
    }

    /// Declares a name in the innermost scope.
    pub(super) fn declare(
        &mut self,
        name: &'a str,
        meaning: Meaning,
        at: Position,
    ) -> Result<(), ParseError> {
        if self.names.declare(name, meaning) {
            return Ok(());
        }
        Err(ParseError {
            at,
            message: format!("{} is declared already", Token::Word(name).shown()),
        })
    }

    /// Returns the error of a name without a declaration.
    pub(super) fn unknown(name: &str, at: Position) -> ParseError {
        ParseError { at, message: format!("{} is not declared", Token::Word(name).shown()) }
    }
}

/// Returns the mask of the text of `.pragma "used_bytes_mask MASK"`.
fn used_bytes_mask(text: &str) -> Option<u32> {
    let number = text.strip_prefix("used_bytes_mask")?.trim();
    match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    }
}
