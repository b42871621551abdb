//! Constant expressions, with the types of the PTX ISA ("Constant Expressions").

use super::error::ParseError;
use super::parser::Parser;
use super::token::{Number, Token};

use Number::{Double, Signed, Single, Unsigned};

/// The binary operators, each with how strongly it binds.
const OPERATORS: [(&str, u32); 18] = [
    ("||", 1),
    ("&&", 2),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("==", 6),
    ("!=", 6),
    ("<", 7),
    (">", 7),
    ("<=", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

/// The strength of `*`: a sum ends in front of a weaker operator.
pub(super) const PRODUCT: u32 = 10;

impl Parser<'_> {
    /// Reads a constant expression.
    pub(super) fn expression(&mut self) -> Result<Number, ParseError> {
        self.deeper()?;
        let condition = self.expression_of(1)?;
        let value = if self.take("?")? {
            let first = self.expression()?;
            self.expect(":")?;
            let second = self.expression()?;
            self.check(choose(condition, first, second))?
        } else {
            condition
        };
        self.shallower();
        Ok(value)
    }

    /// Reads an integer constant expression: its 64 bits in two's complement.
    pub(super) fn integer(&mut self) -> Result<u64, ParseError> {
        let at = self.at();
        let value = self.expression()?;
        value.bits().ok_or_else(|| ParseError { at, message: "this must be an integer".to_owned() })
    }

    /// Reads an expression of operators that bind at least this strongly.
    pub(super) fn expression_of(&mut self, weakest: u32) -> Result<Number, ParseError> {
        let mut left = self.unary()?;
        while let Token::Sign(sign) = self.token() {
            let Some(&(sign, strength)) = OPERATORS.iter().find(|(name, _)| *name == sign) else {
                break;
            };
            if strength < weakest {
                break;
            }
            self.advance()?;
            let right = self.expression_of(strength + 1)?;
            left = self.check(binary(sign, left, right))?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Number, ParseError> {
        let Token::Sign(sign @ ("+" | "-" | "!" | "~" | "(")) = self.token() else {
            return self.primary();
        };
        self.deeper()?;
        self.advance()?;
        let value = match sign {
            "(" => self.parenthesis()?,
            _ => {
                let operand = self.unary()?;
                self.check(unary(sign, operand))?
            }
        };
        self.shallower();
        Ok(value)
    }

    /// Reads what follows an opening parenthesis: a cast or an expression.
    fn parenthesis(&mut self) -> Result<Number, ParseError> {
        let Token::Dot(ty @ ("s64" | "u64")) = self.token() else {
            let value = self.expression()?;
            self.expect(")")?;
            return Ok(value);
        };
        self.advance()?;
        self.expect(")")?;
        let operand = self.unary()?;
        let bits = operand.bits().ok_or("a cast takes an integer");
        let bits = self.check(bits)?;
        Ok(if ty == "u64" { Unsigned(bits) } else { Signed(bits as i64) })
    }

    fn primary(&mut self) -> Result<Number, ParseError> {
        let value = match self.token() {
            Token::Number(value) => value,
            Token::Word("WARP_SZ") => Signed(32),
            _ => return Err(self.unexpected("a constant")),
        };
        self.advance()?;
        Ok(value)
    }

    fn check<T>(&self, result: Result<T, &'static str>) -> Result<T, ParseError> {
        result.map_err(|message| self.error(message))
    }
}

const NOT_FLOAT: &str = "this operator takes integers";

/// Returns the double of a floating-point constant.
fn double(value: Number) -> Option<f64> {
    match value {
        Double(value) => Some(value),
        Single(bits) => Some(f64::from(f32::from_bits(bits))),
        Signed(_) | Unsigned(_) => None,
    }
}

fn unary(sign: &str, operand: Number) -> Result<Number, &'static str> {
    Ok(match (sign, operand) {
        ("+", value) => value,
        ("-", Signed(value)) => Signed(value.wrapping_neg()),
        ("-", Unsigned(value)) => Unsigned(value.wrapping_neg()),
        ("-", Double(value)) => Double(-value),
        ("-", Single(bits)) => Single(bits ^ 0x8000_0000),
        (_, value) => {
            let bits = value.bits().ok_or(NOT_FLOAT)?;
            if sign == "!" { Signed(i64::from(bits == 0)) } else { Unsigned(!bits) }
        }
    })
}

fn binary(sign: &str, left: Number, right: Number) -> Result<Number, &'static str> {
    if let (Some(left), Some(right)) = (double(left), double(right)) {
        return of_doubles(sign, left, right);
    }
    let (Some(a), Some(b)) = (left.bits(), right.bits()) else {
        return Err("an integer and a floating-point constant cannot be combined");
    };
    // The usual conversions: unsigned if one of the two is.
    let unsigned = matches!(left, Unsigned(_)) || matches!(right, Unsigned(_));
    let usual = |bits: u64| if unsigned { Unsigned(bits) } else { Signed(bits as i64) };
    let truth = |value: bool| Ok(Signed(i64::from(value)));
    let order = if unsigned { a.cmp(&b) } else { (a as i64).cmp(&(b as i64)) };
    match sign {
        "+" => Ok(usual(a.wrapping_add(b))),
        "-" => Ok(usual(a.wrapping_sub(b))),
        "*" => Ok(usual(a.wrapping_mul(b))),
        "/" | "%" if b == 0 => Err("division by zero"),
        "/" if unsigned => Ok(Unsigned(a / b)),
        "/" => Ok(Signed((a as i64).wrapping_div(b as i64))),
        "%" => Ok(Signed((a % b) as i64)),
        "<<" => Ok(shifted(left, a.checked_shl(u32::try_from(b).unwrap_or(64)).unwrap_or(0))),
        ">>" => Ok(shift_right(left, b)),
        "&" => Ok(Unsigned(a & b)),
        "|" => Ok(Unsigned(a | b)),
        "^" => Ok(Unsigned(a ^ b)),
        "<" => truth(order.is_lt()),
        ">" => truth(order.is_gt()),
        "<=" => truth(order.is_le()),
        ">=" => truth(order.is_ge()),
        "==" => truth(a == b),
        "!=" => truth(a != b),
        "&&" => truth(a != 0 && b != 0),
        _ => truth(a != 0 || b != 0),
    }
}

/// Returns the bits with the type of the operand that was shifted.
fn shifted(left: Number, bits: u64) -> Number {
    if matches!(left, Unsigned(_)) { Unsigned(bits) } else { Signed(bits as i64) }
}

fn shift_right(left: Number, by: u64) -> Number {
    let by = by.min(64) as u32;
    match left {
        Signed(value) => Signed(value >> by.min(63)),
        left => Unsigned(left.bits().unwrap_or(0).checked_shr(by).unwrap_or(0)),
    }
}

fn of_doubles(sign: &str, a: f64, b: f64) -> Result<Number, &'static str> {
    let truth = |value: bool| Ok(Signed(i64::from(value)));
    match sign {
        "+" => Ok(Double(a + b)),
        "-" => Ok(Double(a - b)),
        "*" => Ok(Double(a * b)),
        "/" => Ok(Double(a / b)),
        "<" => truth(a < b),
        ">" => truth(a > b),
        "<=" => truth(a <= b),
        ">=" => truth(a >= b),
        #[expect(clippy::float_cmp, reason = "the comparison of the text")]
        "==" => truth(a == b),
        #[expect(clippy::float_cmp, reason = "the comparison of the text")]
        "!=" => truth(a != b),
        _ => Err(NOT_FLOAT),
    }
}

fn choose(condition: Number, first: Number, second: Number) -> Result<Number, &'static str> {
    let condition = condition.bits().ok_or("a condition must be an integer")? != 0;
    let chosen = if condition { first } else { second };
    match (first.bits(), second.bits()) {
        (Some(a), Some(b)) => {
            let bits = if condition { a } else { b };
            let unsigned = matches!(first, Unsigned(_)) || matches!(second, Unsigned(_));
            Ok(if unsigned { Unsigned(bits) } else { Signed(bits as i64) })
        }
        (None, None) => Ok(chosen),
        _ => Err("an integer and a floating-point constant cannot be combined"),
    }
}
