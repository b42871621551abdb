//! PTX text into a module: declarations and instructions with their places in the text.

mod body;
mod debug;
mod error;
mod expression;
mod functions;
mod initial;
mod instruction;
mod link;
mod module;
mod names;
mod operands;
mod parser;
mod special;
mod token;
mod variables;

pub use error::ParseError;
pub use link::{LinkError, link};
pub use module::*;
pub use special::SpecialRegister;

/// The longest text, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Parses the text of a PTX module.
///
/// The text ends at its first NUL byte, if it has one; it may have up to 1 GiB. It is read once,
/// from front to back. What the result takes is bounded by a multiple of the text's length,
/// whatever it says: a register that no instruction names takes nothing, an array takes the values
/// that the text gives it.
///
/// Instructions are not checked: an opcode may be any name, with any operands.
///
/// # Errors
///
/// Text that is not PTX: the first place that is wrong, and what was expected there.
pub fn parse(text: &[u8]) -> Result<Module, ParseError> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let text = &text[..end];
    if text.len() > MAX_BYTES {
        let message = format!("the text is longer than {MAX_BYTES} bytes");
        return Err(ParseError { at: Position { line: 1, column: 1 }, message });
    }
    match std::str::from_utf8(text) {
        Ok(text) => parser::Parser::new(text)?.module(),
        Err(error) => {
            let before = &text[..error.valid_up_to()];
            let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
            let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
            let at = Position { line: line as u32, column: column as u32 };
            Err(ParseError { at, message: "the text is not UTF-8".to_owned() })
        }
    }
}
