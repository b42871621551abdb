//! Parses NVIDIA's PTX: text into a module, several modules into one, and texts in fat binaries.
//!
//! A part of `dmr-ptx`, which re-exports what users need. It decodes no instruction: an opcode is
//! a name with operands, which `dmr-ptx-arith` and `dmr-ptx-exec` decode.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `types` | the scalar types of PTX |
//! | [`module`], `instruction`, `special` | what a text becomes: declarations and instructions with their places in the text |
//! | `token`, `expression` | characters into tokens; constant expressions |
//! | `parser`, `variables`, `functions`, `body`, `operands`, `initial` | tokens into declarations and instructions |
//! | `names` | what a name means at a place in the text |
//! | `debug` | `.loc` and `.file`: lines of the source |
//! | `link` | several modules into one |
//! | [`fatbin`] | module images: PTX text, alone or in a fat binary |

#![forbid(unsafe_code)]

mod body;
mod debug;
mod error;
mod expression;
pub mod fatbin;
mod functions;
mod initial;
mod instruction;
mod link;
pub mod module;
mod names;
mod operands;
mod parser;
mod special;
mod token;
mod types;
mod variables;

pub use error::ParseError;
pub use link::{LinkError, link};
pub use module::*;
pub use special::SpecialRegister;
pub use types::Type;

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
