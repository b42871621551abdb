//! The operands of instructions.

use super::body::{Place, label_operand};
use super::error::ParseError;
use super::module::{Address, Base, Operand, Position, RegisterId, Selector, Symbol, VariableId};
use super::names::{Found, Meaning};
use super::parser::Parser;
use super::special::SpecialRegister;
use super::token::{Number, Token};

impl<'a> Parser<'a> {
    /// Reads the operands up to the semicolon.
    pub(super) fn operands(&mut self) -> Result<Vec<Operand>, ParseError> {
        let mut operands = Vec::new();
        if self.is(";") {
            return Ok(operands);
        }
        loop {
            let place = self.body.place(operands.len());
            operands.push(self.operand(Some(place))?);
            if !self.take(",")? {
                return Ok(operands);
            }
        }
    }

    /// Reads the operands of `call`: return values, function, arguments, and what an indirect call
    /// may reach.
    pub(super) fn call_operands(&mut self) -> Result<Vec<Operand>, ParseError> {
        let mut operands = vec![Operand::List(Box::default())];
        if self.take("(")? {
            operands[0] = Operand::List(self.list(")")?);
            self.expect(",")?;
        }
        let at = self.at();
        let function = self.operand(None)?;
        if !matches!(function, Operand::Register(_) | Operand::Symbol(Symbol::Function(_), 0)) {
            return Err(ParseError { at, message: "expected a function or a register".to_owned() });
        }
        operands.push(function);
        operands.push(Operand::List(Box::default()));
        let mut more = self.take(",")?;
        if more && self.take("(")? {
            operands[2] = Operand::List(self.list(")")?);
            more = self.take(",")?;
        }
        if more {
            let place = self.body.place(operands.len());
            operands.push(self.operand(Some(place))?);
        }
        Ok(operands)
    }

    /// Reads operands up to the closing sign.
    fn list(&mut self, end: &str) -> Result<Box<[Operand]>, ParseError> {
        self.deeper()?;
        let mut list = Vec::new();
        while !self.take(end)? {
            list.push(self.operand(None)?);
            if !self.take(",")? {
                self.expect(end)?;
                break;
            }
        }
        self.shallower();
        Ok(list.into_boxed_slice())
    }

    /// Reads an operand. With a place, it may be a label that is declared later.
    fn operand(&mut self, place: Option<Place>) -> Result<Operand, ParseError> {
        match self.token() {
            Token::Sign("{") => {
                self.advance()?;
                Ok(Operand::Vector(self.list("}")?))
            }
            Token::Sign("[") => self.brackets(),
            Token::Sign("_") => {
                self.advance()?;
                self.pair(Operand::Sink)
            }
            Token::Sign(sign @ ("!" | "-")) if matches!(self.peek()?, Token::Word(word) if word != "WARP_SZ") =>
            {
                self.advance()?;
                let at = self.at();
                let operand = self.operand(None)?;
                match operand {
                    Operand::Register(register) if sign == "!" => Ok(Operand::Not(register)),
                    Operand::Register(_) | Operand::Element(..) if sign == "-" => {
                        Ok(Operand::Minus(Box::new(operand)))
                    }
                    _ => Err(ParseError { at, message: "expected a register".to_owned() }),
                }
            }
            Token::Word(name) if name != "WARP_SZ" => self.named(name, place),
            Token::Number(_) | Token::Word(_) | Token::Sign("(" | "+" | "-" | "!" | "~") => {
                Ok(match self.expression()? {
                    Number::Signed(value) => Operand::Integer(value as u64),
                    Number::Unsigned(value) => Operand::Integer(value),
                    Number::Double(value) => Operand::Float64(value.to_bits()),
                    Number::Single(bits) => Operand::Float32(bits),
                })
            }
            _ => Err(self.unexpected("an operand")),
        }
    }

    /// Reads an operand that begins with a name.
    fn named(&mut self, name: &'a str, place: Option<Place>) -> Result<Operand, ParseError> {
        let at = self.at();
        self.advance()?;
        match self.names.find(name) {
            Some(Found::Plain(Meaning::Symbol(symbol), _)) => self.symbol(symbol, at),
            Some(Found::Plain(Meaning::Register(..), _) | Found::OfRange(..) | Found::Twice) => {
                let register = self.register_named(name, at)?;
                if let Token::Dot(part) = self.token() {
                    self.advance()?;
                    return self.element(register, part, at);
                }
                // Of sums the assembler accepts those of an operand of its own, not in a vector or
                // a list.
                if self.is("+") && place.is_some() {
                    return Ok(Operand::Sum(register, self.offset()?));
                }
                self.pair(Operand::Register(register))
            }
            Some(Found::Plain(meaning, depth)) => {
                // An inner scope may declare the label again behind its use.
                let Some(operand) = label_operand(meaning) else {
                    return Err(Self::unknown(name, at));
                };
                if depth == self.names.depth() {
                    return Ok(operand);
                }
                self.label_later(name, at, place)
            }
            None => {
                let component = if let Token::Dot(part) = self.token() { Some(part) } else { None };
                if let Some(special) = SpecialRegister::from_name(name, component) {
                    if component.is_some() {
                        self.advance()?;
                    }
                    return Ok(Operand::Special(special));
                }
                self.label_later(name, at, place)
            }
        }
    }

    fn label_later(
        &mut self,
        name: &'a str,
        at: Position,
        place: Option<Place>,
    ) -> Result<Operand, ParseError> {
        let Some(place) = place else { return Err(Self::unknown(name, at)) };
        self.body.defer(name, at, place);
        Ok(Operand::Sink)
    }

    /// Reads what follows the first of two destinations, if there is a second.
    fn pair(&mut self, first: Operand) -> Result<Operand, ParseError> {
        if !self.take("|")? {
            return Ok(first);
        }
        if self.take("_")? {
            return Ok(Operand::Pair(Box::new([first, Operand::Sink])));
        }
        let at = self.at();
        let name = self.word("a register")?;
        let second = Operand::Register(self.register_named(name, at)?);
        Ok(Operand::Pair(Box::new([first, second])))
    }

    fn element(
        &self,
        register: RegisterId,
        part: &str,
        at: Position,
    ) -> Result<Operand, ParseError> {
        let vector = self.body.register(register).vector;
        let selector = if vector > 1 {
            let element = match part {
                "x" | "r" => 0,
                "y" | "g" => 1,
                "z" | "b" => 2,
                "w" | "a" => 3,
                _ => u8::MAX,
            };
            (u32::from(element) < vector).then_some(Selector::Element(element))
        } else {
            match part.as_bytes() {
                [b'b', digit @ b'0'..=b'3'] => Some(Selector::Byte(digit - b'0')),
                [b'h', digit @ b'0'..=b'1'] => Some(Selector::Half(digit - b'0')),
                _ => None,
            }
        };
        match selector {
            Some(selector) => Ok(Operand::Element(register, selector)),
            None => Err(ParseError {
                at,
                message: format!("the register has no {}", Token::Dot(part).shown()),
            }),
        }
    }

    /// Reads what follows a symbol: an index or an offset.
    fn symbol(&mut self, symbol: Symbol, at: Position) -> Result<Operand, ParseError> {
        if !self.take("[")? {
            return Ok(Operand::Symbol(symbol, self.offset()?));
        }
        let index = self.integer()?;
        self.expect("]")?;
        let Symbol::Variable(variable) = symbol else {
            return Err(ParseError { at, message: "a function has no elements".to_owned() });
        };
        let bytes = match variable {
            VariableId::Module(index) => self.module.variables[index as usize].value_bytes(),
            VariableId::Body(index) => self.body.variable(index).value_bytes(),
            VariableId::Param(_) | VariableId::Return(_) => {
                return Err(ParseError {
                    at,
                    message: "a parameter is read by its offset".to_owned(),
                });
            }
        };
        Ok(Operand::Symbol(symbol, index.wrapping_mul(bytes) as i64))
    }

    /// Reads an address in brackets, with coordinates where there are some.
    fn brackets(&mut self) -> Result<Operand, ParseError> {
        self.expect("[")?;
        self.deeper()?;
        let address = match self.token() {
            Token::Word(name) if name != "WARP_SZ" => {
                let at = self.at();
                self.advance()?;
                let base = match self.names.find(name) {
                    Some(Found::Plain(Meaning::Symbol(symbol), _)) => Base::Symbol(symbol),
                    Some(_) => Base::Register(self.register_named(name, at)?),
                    None => return Err(Self::unknown(name, at)),
                };
                Address { base, offset: self.offset()? }
            }
            _ => Address { base: Base::Absolute, offset: self.integer()? as i64 },
        };
        let mut parts = vec![Operand::Address(address)];
        while self.take(",")? {
            parts.push(self.operand(None)?);
        }
        self.expect("]")?;
        self.shallower();
        Ok(if parts.len() == 1 {
            Operand::Address(address)
        } else {
            Operand::Indexed(parts.into_boxed_slice())
        })
    }

    /// Returns the register of this name, which gets an id at its first use.
    pub(super) fn register_named(
        &mut self,
        name: &'a str,
        at: Position,
    ) -> Result<RegisterId, ParseError> {
        match self.names.find(name) {
            Some(Found::Plain(Meaning::Register(_, Some(register)), _)) => Ok(register),
            Some(Found::Plain(Meaning::Register(ty, None), _)) => {
                let register = self.body.add_register(name, ty);
                self.names.set(name, Meaning::Register(ty, Some(register)));
                Ok(register)
            }
            Some(Found::OfRange(ty, key)) => Ok(self.body.register_of_range(name, ty, key)),
            Some(Found::Twice) => {
                let message = format!("{} is declared twice", Token::Word(name).shown());
                Err(ParseError { at, message })
            }
            Some(Found::Plain(..)) => Err(ParseError {
                at,
                message: format!("{} is not a register", Token::Word(name).shown()),
            }),
            None => Err(Self::unknown(name, at)),
        }
    }
}
