//! Initial values of variables.

use super::error::ParseError;
use super::expression::PRODUCT;
use super::module::{Initial, InitialAddress, InitialValue, Symbol, Variable, VariableId};
use super::names::{Found, Meaning};
use super::parser::Parser;
use super::token::{Number, Token};
use super::variables::count;
use crate::Type;

/// The variable that the values of an initialiser are stored into.
struct Target<'v> {
    variable: &'v mut Variable,
    /// The bytes of one element of each dimension, the innermost last.
    strides: Vec<u64>,
}

impl Parser<'_> {
    /// Reads what follows `=`, and sets the length of an array that has none.
    pub(super) fn initial_value(
        &mut self,
        variable: &mut Variable,
        dimensions: &mut [Option<u64>],
    ) -> Result<(), ParseError> {
        if variable.opaque {
            return self.opaque_value();
        }
        let mut lengths = dimensions.to_vec();
        if variable.vector > 1 {
            lengths.push(Some(u64::from(variable.vector)));
        }
        let element = variable.element.bytes() as u64;
        let mut strides = Vec::with_capacity(lengths.len());
        for index in 0..lengths.len() {
            // The dimensions are bounded by the size of a variable, a vector by 32 bytes.
            strides.push(count(&lengths[index + 1..]).unwrap_or(0).saturating_mul(element));
        }
        let mut target = Target { variable, strides };
        let length = self.values(&mut target, &lengths, 0)?;
        if let Some(first @ None) = dimensions.first_mut() {
            *first = Some(length);
        }
        Ok(())
    }

    /// Goes past the values of a texture or sampler.
    fn opaque_value(&mut self) -> Result<(), ParseError> {
        self.expect("{")?;
        while !self.take("}")? {
            if self.token() == Token::End || self.is("{") {
                return Err(self.unexpected("`}`"));
            }
            self.advance()?;
        }
        Ok(())
    }

    /// Reads a value, or a list of values where there are dimensions left. Returns the length of
    /// the list.
    fn values(
        &mut self,
        target: &mut Target<'_>,
        lengths: &[Option<u64>],
        offset: u64,
    ) -> Result<u64, ParseError> {
        let Some((length, inner)) = lengths.split_first() else {
            self.value(target.variable, offset)?;
            return Ok(1);
        };
        self.expect("{")?;
        // As in C, values without braces of their own fill the inner dimensions one after the
        // other.
        let flat = !inner.is_empty() && !self.is("{");
        let row = if flat { count(inner).unwrap_or(0) } else { 1 };
        let limit = length.map(|length| length.saturating_mul(row));
        let (inner, stride) = match flat {
            true => (&[][..], target.variable.element.bytes() as u64),
            false => (inner, target.strides[target.strides.len() - lengths.len()]),
        };
        let mut index = 0u64;
        while !self.is("}") {
            if limit.is_some_and(|limit| index >= limit) {
                return Err(self.error("there are more values than elements"));
            }
            let at = index.checked_mul(stride).and_then(|bytes| offset.checked_add(bytes));
            let at = at.ok_or_else(|| self.error("there are too many values"))?;
            self.values(target, inner, at)?;
            index += 1;
            if !self.take(",")? {
                break;
            }
        }
        self.expect("}")?;
        Ok(index.div_ceil(row.max(1)))
    }

    fn value(&mut self, variable: &mut Variable, offset: u64) -> Result<(), ParseError> {
        let at = self.at();
        if matches!(self.token(), Token::Word(word) if word != "WARP_SZ") {
            let address = self.address(variable, u64::MAX)?;
            variable.initial.push(Initial { offset, value: InitialValue::Address(address) });
            return Ok(());
        }
        let mask = matches!(self.token(), Token::Number(number) if number.bits().is_some_and(is_byte_mask));
        let number = if mask && self.peek()? == Token::Sign("(") {
            let Token::Number(mask) = self.token() else { return Err(self.unexpected("a mask")) };
            let mask = mask.bits().unwrap_or(u64::MAX);
            self.advance()?;
            self.expect("(")?;
            if matches!(self.token(), Token::Word(word) if word != "WARP_SZ") {
                let address = self.address(variable, mask)?;
                self.expect(")")?;
                variable.initial.push(Initial { offset, value: InitialValue::Address(address) });
                return Ok(());
            }
            let value = self.integer()?;
            self.expect(")")?;
            Number::Unsigned((value & mask) >> mask.trailing_zeros())
        } else {
            self.expression()?
        };
        let bytes = bytes_of(variable.element, number)
            .map_err(|message| ParseError { at, message: message.to_owned() })?;
        let bytes = &bytes[..variable.element.bytes()];
        // Values that follow each other are one run of bytes.
        if let Some(Initial { offset: start, value: InitialValue::Bytes(run) }) =
            variable.initial.last_mut()
            && *start + run.len() as u64 == offset
        {
            run.extend_from_slice(bytes);
            return Ok(());
        }
        variable.initial.push(Initial { offset, value: InitialValue::Bytes(bytes.to_vec()) });
        Ok(())
    }

    /// Reads `symbol`, `symbol+4`, `generic(symbol)+4` or `mask(0xFF, symbol)`.
    fn address(&mut self, variable: &Variable, mask: u64) -> Result<InitialAddress, ParseError> {
        let at = self.at();
        let name = self.word("a symbol")?;
        if name == "mask" && mask == u64::MAX && self.take("(")? {
            let mask = self.integer()?;
            if !is_byte_mask(mask) {
                return Err(ParseError {
                    at,
                    message: "a mask is one whole byte of 64 bits".to_owned(),
                });
            }
            self.expect(",")?;
            let address = self.address(variable, mask)?;
            self.expect(")")?;
            return Ok(address);
        }
        let allowed = match variable.element.bytes() {
            1 => mask != u64::MAX,
            4 | 8 => !matches!(variable.element, Type::F32 | Type::F64),
            _ => false,
        };
        if !allowed {
            let message =
                "an address initialises an integer of 32 or 64 bits, or a byte if it has a mask";
            return Err(ParseError { at, message: message.to_owned() });
        }
        let generic = name == "generic" && self.take("(")?;
        let at = if generic { self.at() } else { at };
        let name = if generic { self.word("a symbol")? } else { name };
        let symbol = match self.names.find(name) {
            Some(Found::Plain(Meaning::Symbol(symbol), _)) if is_of_module(symbol) => symbol,
            Some(_) => {
                return Err(ParseError {
                    at,
                    message: "this has no address at load time".to_owned(),
                });
            }
            None => return Err(Self::unknown(name, at)),
        };
        let mut addend = self.offset()?;
        if generic {
            self.expect(")")?;
            addend = addend.wrapping_add(self.offset()?);
        }
        // Before PTX 3.1 every address was a generic one.
        let generic = generic || self.module.version < (3, 1);
        Ok(InitialAddress { symbol, addend, generic, mask, bytes: variable.element.bytes() as u32 })
    }

    /// Reads what is added to an address: `+4`, `-4`, `+4*2`, or nothing.
    pub(super) fn offset(&mut self) -> Result<i64, ParseError> {
        let mut offset = 0i64;
        loop {
            let negative = self.is("-");
            if !negative && !self.is("+") {
                return Ok(offset);
            }
            self.advance()?;
            let at = self.at();
            let value = self.expression_of(PRODUCT)?.bits();
            let value = value
                .ok_or(ParseError { at, message: "an offset is an integer".to_owned() })?
                as i64;
            offset = if negative { offset.wrapping_sub(value) } else { offset.wrapping_add(value) };
        }
    }
}

fn is_of_module(symbol: Symbol) -> bool {
    matches!(symbol, Symbol::Function(_) | Symbol::Variable(VariableId::Module(_)))
}

/// Returns whether these are the bits of one byte of a 64-bit word.
fn is_byte_mask(mask: u64) -> bool {
    mask != 0 && mask >> (mask.trailing_zeros() / 8 * 8) == 0xFF
}

/// Returns the bytes of an element, followed by zeros.
fn bytes_of(ty: Type, value: Number) -> Result<[u8; 16], &'static str> {
    const RANGE: &str = "this value is out of the range of its type";
    let mut bytes = [0; 16];
    let mut put = |source: &[u8]| bytes[..source.len()].copy_from_slice(source);
    match (ty, value) {
        (Type::F64, Number::Double(value)) => put(&value.to_bits().to_le_bytes()),
        (Type::F64, Number::Single(bits)) => {
            put(&f64::from(f32::from_bits(bits)).to_bits().to_le_bytes())
        }
        (Type::F64, Number::Signed(value)) => put(&(value as f64).to_bits().to_le_bytes()),
        (Type::F64, Number::Unsigned(value)) => put(&(value as f64).to_bits().to_le_bytes()),
        (Type::F32, Number::Double(value)) => put(&(value as f32).to_bits().to_le_bytes()),
        (Type::F32 | Type::B32, Number::Single(bits)) => put(&bits.to_le_bytes()),
        (Type::F32, Number::Signed(value)) => put(&(value as f32).to_bits().to_le_bytes()),
        (Type::F32, Number::Unsigned(value)) => put(&(value as f32).to_bits().to_le_bytes()),
        (Type::B64, Number::Double(value)) => put(&value.to_bits().to_le_bytes()),
        (_, Number::Double(_) | Number::Single(_)) => {
            return Err("an integer is initialised by an integer");
        }
        (_, Number::Signed(value)) => {
            let bits = ty.bytes() as u32 * 8;
            if bits < 64 && !(-(1i64 << (bits - 1)) <= value && value < 1i64 << bits) {
                return Err(RANGE);
            }
            put(&i128::from(value).to_le_bytes());
        }
        (_, Number::Unsigned(value)) => {
            let bits = ty.bytes() as u32 * 8;
            // `~0` is unsigned: the high bits may be copies of the sign.
            let high = if bits < 64 { (value as i64) >> (bits - 1) } else { 0 };
            if bits < 64 && value >> bits != 0 && high != -1 {
                return Err(RANGE);
            }
            put(&value.to_le_bytes());
        }
    }
    Ok(bytes)
}
