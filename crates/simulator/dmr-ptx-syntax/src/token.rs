//! The tokens of PTX text, and the numbers among them.

use super::error::ParseError;
use super::module::Position;

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// An identifier: `add`, `%r1`, `$L__BB0_1`.
    Word(&'a str),
    /// A directive or modifier, without its dot: `reg`, `f32`, `L2::128B`.
    Dot(&'a str),
    /// A constant.
    Number(Number),
    /// A quoted string, without its quotes.
    Text(&'a str),
    /// A punctuation character or an operator.
    Sign(&'static str),
    /// The end of the text.
    End,
}

/// A constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// `.s64`
    Signed(i64),
    /// `.u64`: a `U` suffix, or a value that `.s64` does not hold.
    Unsigned(u64),
    /// `.f64`
    Double(f64),
    /// The bits of an `.f32` (`0f3F800000`).
    Single(u32),
}

impl Number {
    /// Returns the 64 bits of an integer in two's complement.
    pub(super) fn bits(self) -> Option<u64> {
        match self {
            Self::Signed(value) => Some(value as u64),
            Self::Unsigned(value) => Some(value),
            Self::Double(_) | Self::Single(_) => None,
        }
    }
}

impl Token<'_> {
    /// Returns the token as an error message shows it.
    pub(super) fn shown(&self) -> String {
        // A name can be as long as the text; a message is short.
        let short = |text: &str| text.chars().take(40).collect::<String>();
        match self {
            Self::Word(word) => format!("`{}`", short(word)),
            Self::Dot(word) => format!("`.{}`", short(word)),
            Self::Number(Number::Signed(value)) => format!("`{value}`"),
            Self::Number(Number::Unsigned(value)) => format!("`{value}`"),
            Self::Number(Number::Double(value)) => format!("`{value:?}`"),
            Self::Number(Number::Single(bits)) => format!("`0f{bits:08X}`"),
            Self::Text(text) => format!("\"{}\"", short(text)),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::End => "the end of the text".to_owned(),
        }
    }
}

/// A token and its place in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub(super) token: Token<'a>,
    pub(super) at: Position,
    /// The token as it is written.
    pub(super) text: &'a str,
}

/// Splits a text into tokens.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    line_start: usize,
    after_number: bool,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1, line_start: 0, after_number: false }
    }

    /// Returns the next token.
    pub(super) fn next(&mut self) -> Result<Placed<'a>, ParseError> {
        self.skip_space()?;
        let start = self.at;
        let at = self.position();
        let token = self.token()?;
        self.after_number = matches!(token, Token::Number(_));
        Ok(Placed { token, at, text: &self.text[start..self.at] })
    }

    fn token(&mut self) -> Result<Token<'a>, ParseError> {
        let bytes = self.text.as_bytes();
        let Some(&first) = bytes.get(self.at) else { return Ok(Token::End) };
        let second = bytes.get(self.at + 1).copied().unwrap_or(0);
        match first {
            b'0'..=b'9' => self.number(),
            b'.' if second.is_ascii_digit() && !self.after_word() => self.number(),
            b'.' if is_word(second) => Ok(Token::Dot(self.dotted())),
            b'"' => self.quoted(),
            // `7%2` is a remainder, `%2` is a name.
            b'%' if self.after_number => self.sign(),
            b'_' | b'%' | b'$' if is_word(second) => Ok(Token::Word(self.word())),
            b'a'..=b'z' | b'A'..=b'Z' | b'$' => Ok(Token::Word(self.word())),
            _ => self.sign(),
        }
    }

    fn position(&self) -> Position {
        // 2^32 - 1 stands for everything behind it.
        let column = u32::try_from(self.at - self.line_start + 1).unwrap_or(u32::MAX);
        Position { line: self.line, column }
    }

    fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError { at: self.position(), message: message.into() }
    }

    /// Returns whether a word, modifier or closing bracket ends right here, so that a dot continues
    /// it.
    fn after_word(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.text.as_bytes().get(at));
        before.is_some_and(|&byte| is_word(byte))
    }

    fn skip_space(&mut self) -> Result<(), ParseError> {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                Some(b'\n') => self.new_line(),
                Some(byte) if byte.is_ascii_whitespace() || *byte == b'\x0b' => self.at += 1,
                Some(b'/') if bytes.get(self.at + 1) == Some(&b'/') => {
                    let end = self.text[self.at..].find('\n');
                    self.at = end.map_or(bytes.len(), |end| self.at + end);
                }
                Some(b'/') if bytes.get(self.at + 1) == Some(&b'*') => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn new_line(&mut self) {
        self.at += 1;
        self.line = self.line.saturating_add(1);
        self.line_start = self.at;
    }

    fn skip_comment(&mut self) -> Result<(), ParseError> {
        let start = self.error("this comment has no end");
        self.at += 2;
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                None => return Err(start),
                Some(b'*') if bytes.get(self.at + 1) == Some(&b'/') => {
                    self.at += 2;
                    return Ok(());
                }
                Some(b'\n') => self.new_line(),
                Some(_) => self.at += 1,
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.bytes().skip(1).position(|byte| !is_word(byte));
        let word = &rest[..end.map_or(rest.len(), |end| end + 1)];
        self.at += word.len();
        word
    }

    /// Reads a modifier after its dot; two colons join parts of one.
    fn dotted(&mut self) -> &'a str {
        self.at += 1;
        let rest = &self.text[self.at..];
        let bytes = rest.as_bytes();
        let mut end = 0;
        loop {
            match bytes.get(end) {
                Some(&byte) if is_word(byte) => end += 1,
                Some(b':')
                    if bytes.get(end + 1) == Some(&b':')
                        && bytes.get(end + 2).is_some_and(|&b| is_word(b)) =>
                {
                    end += 2;
                }
                _ => break,
            }
        }
        self.at += end;
        &rest[..end]
    }

    fn quoted(&mut self) -> Result<Token<'a>, ParseError> {
        let rest = &self.text[self.at + 1..];
        let bytes = rest.as_bytes();
        let mut end = 0;
        loop {
            match bytes.get(end) {
                None | Some(b'\n') => return Err(self.error("this string has no end")),
                Some(b'"') => break,
                Some(b'\\') if matches!(bytes.get(end + 1), Some(b'"' | b'\\')) => end += 2,
                Some(_) => end += 1,
            }
        }
        self.at += end + 2;
        Ok(Token::Text(&rest[..end]))
    }

    fn sign(&mut self) -> Result<Token<'a>, ParseError> {
        let rest = &self.text[self.at..];
        let Some(sign) = sign(rest.as_bytes()) else {
            let character = rest.chars().next().unwrap_or(' ');
            return Err(self.error(format!("{character:?} is not a character of PTX")));
        };
        self.at += sign.len();
        Ok(Token::Sign(sign))
    }

    fn number(&mut self) -> Result<Token<'a>, ParseError> {
        let rest = &self.text[self.at..];
        let bytes = rest.as_bytes();
        let mut end = 0;
        let prefixed = bytes[0] == b'0'
            && matches!(bytes.get(1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
        while let Some(&byte) = bytes.get(end) {
            let exponent = end > 0 && matches!(bytes[end - 1], b'e' | b'E') && !prefixed;
            let fraction = byte == b'.'
                && !prefixed
                && !bytes.get(end + 1).is_some_and(|&next| is_letter(next));
            if !(byte.is_ascii_alphanumeric()
                || byte == b'_'
                || fraction
                || exponent && matches!(byte, b'+' | b'-'))
            {
                break;
            }
            end += 1;
        }
        let digits = &rest[..end];
        let number = number(digits)
            .map_err(|message| self.error(format!("{}: {message}", Token::Word(digits).shown())))?;
        self.at += end;
        Ok(Token::Number(number))
    }
}

/// Returns the operator or punctuation that the text begins with.
fn sign(text: &[u8]) -> Option<&'static str> {
    Some(match text {
        [b'<', b'<', ..] => "<<",
        [b'>', b'>', ..] => ">>",
        [b'<', b'=', ..] => "<=",
        [b'>', b'=', ..] => ">=",
        [b'=', b'=', ..] => "==",
        [b'!', b'=', ..] => "!=",
        [b'&', b'&', ..] => "&&",
        [b'|', b'|', ..] => "||",
        [b'(', ..] => "(",
        [b')', ..] => ")",
        [b'[', ..] => "[",
        [b']', ..] => "]",
        [b'{', ..] => "{",
        [b'}', ..] => "}",
        [b'<', ..] => "<",
        [b'>', ..] => ">",
        [b',', ..] => ",",
        [b';', ..] => ";",
        [b':', ..] => ":",
        [b'@', ..] => "@",
        [b'!', ..] => "!",
        [b'~', ..] => "~",
        [b'+', ..] => "+",
        [b'-', ..] => "-",
        [b'*', ..] => "*",
        [b'/', ..] => "/",
        [b'%', ..] => "%",
        [b'&', ..] => "&",
        [b'|', ..] => "|",
        [b'^', ..] => "^",
        [b'=', ..] => "=",
        [b'?', ..] => "?",
        [b'.', ..] => ".",
        [b'_', ..] => "_",
        _ => return None,
    })
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Returns the value of a constant.
fn number(digits: &str) -> Result<Number, &'static str> {
    const MALFORMED: &str = "this is not a number";
    let bytes = digits.as_bytes();
    let float = |rest: &str, length: usize| {
        let exact = rest.len() == length && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = if exact { u64::from_str_radix(rest, 16).ok() } else { None };
        bits.ok_or("a constant of exact bits has 8 hexadecimal digits behind 0f, 16 behind 0d")
    };
    if bytes[0] == b'0' {
        match bytes.get(1) {
            Some(b'f' | b'F') => return Ok(Number::Single(float(&digits[2..], 8)? as u32)),
            Some(b'd' | b'D') => {
                return Ok(Number::Double(f64::from_bits(float(&digits[2..], 16)?)));
            }
            _ => {}
        }
    }
    let hexadecimal = digits.starts_with("0x") || digits.starts_with("0X");
    if !hexadecimal && digits.contains(['.', 'e', 'E']) {
        // Rust's reading of decimals is exact. It is linear in the digits, and words such as `inf`
        // do not get here.
        return match digits.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Number::Double(value)),
            Ok(_) => Err("this is too large for .f64"),
            Err(_) => Err(MALFORMED),
        };
    }
    let (digits, unsigned) = match digits.strip_suffix('U') {
        Some(digits) => (digits, true),
        None => (digits, false),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(MALFORMED);
    }
    let value = u64::from_str_radix(digits, radix).map_err(|_| "this is too large for 64 bits")?;
    Ok(match i64::try_from(value) {
        Ok(value) if !unsigned => Number::Signed(value),
        _ => Number::Unsigned(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text);
        let mut tokens = Vec::new();
        loop {
            match lexer.next().unwrap().token {
                Token::End => return tokens,
                token => tokens.push(token),
            }
        }
    }

    #[test]
    fn constants_have_the_types_of_the_isa() {
        use Number::{Double, Signed, Single, Unsigned};
        for (text, expected) in [
            ("0", Signed(0)),
            ("017", Signed(15)),
            ("0x7fffffffffffffff", Signed(i64::MAX)),
            ("0x8000000000000000", Unsigned(1 << 63)),
            ("18446744073709551615", Unsigned(u64::MAX)),
            ("5U", Unsigned(5)),
            ("0b101", Signed(5)),
            ("0xDEADBEEFU", Unsigned(0xDEAD_BEEF)),
            ("0xe", Signed(14)),
            ("0f3F800000", Single(0x3F80_0000)),
            ("0d3FF0000000000000", Double(1.0)),
            ("1.5", Double(1.5)),
            ("1e3", Double(1000.0)),
            ("1.5E-3", Double(0.0015)),
            (".5", Double(0.5)),
            ("2.", Double(2.0)),
        ] {
            assert_eq!(tokens(text), [Token::Number(expected)], "{text}");
        }
        for text in [
            "18446744073709551616",
            "08",
            "0x",
            "0b2",
            "0f3F80000",
            "12abc",
            "1e",
            "1e999",
            "1.2.3",
            "0b",
        ] {
            assert!(Lexer::new(text).next().is_err(), "{text}");
        }
    }

    #[test]
    fn a_percent_sign_behind_a_number_is_a_remainder() {
        let seven = Token::Number(Number::Signed(7));
        assert_eq!(tokens("7%7"), [seven, Token::Sign("%"), seven]);
        assert_eq!(tokens("@%p7"), [Token::Sign("@"), Token::Word("%p7")]);
    }

    #[test]
    fn a_modifier_may_hold_colons_and_begin_with_a_digit() {
        let expected = [
            Token::Word("ld"),
            Token::Dot("L2::128B"),
            Token::Dot("2d"),
            Token::Sign(":"),
            Token::Sign(":"),
        ];
        assert_eq!(tokens("ld.L2::128B.2d::"), expected);
    }
}
