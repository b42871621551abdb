//! Where instructions come from: `.file`, `.loc`, and the names in the debug sections.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::ParseError;
use super::module::{Inlined, Module, Source, SourceFile, SourceId};
use super::parser::Parser;
use super::token::Token;

/// A name in `.debug_str`: a label and an offset behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NameAt<'a> {
    label: &'a str,
    offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    file: u32,
    line: u32,
    column: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SourceKey<'a> {
    place: Place,
    inlined_at: Option<SourceId>,
    function: Option<NameAt<'a>>,
}

/// The places of `.loc` directives, and what is known about the functions that were inlined.
#[derive(Debug, Default)]
pub(super) struct Lines<'a> {
    known: HashMap<SourceKey<'a>, SourceId>,
    /// The newest `.loc` of a place: `inlined_at` refers to it.
    newest: HashMap<Place, SourceId>,
    functions: Vec<(SourceId, NameAt<'a>)>,
    /// The strings of `.debug_str`, by their labels.
    strings: HashMap<&'a str, Vec<u8>>,
}

impl<'a> Lines<'a> {
    fn add(&mut self, sources: &mut Vec<Source>, key: SourceKey<'a>) -> SourceId {
        let id = *self.known.entry(key).or_insert_with(|| {
            let Place { file, line, column } = key.place;
            let inlined = key.inlined_at.map(|at| Inlined { function: None, at });
            sources.push(Source { file, line, column, inlined });
            let id = SourceId(sources.len() as u32 - 1);
            self.functions.extend(key.function.map(|name| (id, name)));
            id
        });
        self.newest.insert(key.place, id);
        id
    }

    /// Gives the inlined functions their names, which stand at the end of the text.
    pub(super) fn finish(&self, module: &mut Module) {
        let mut names: HashMap<NameAt<'a>, Option<Arc<str>>> = HashMap::new();
        for (id, at) in &self.functions {
            let name = names.entry(*at).or_insert_with(|| {
                let bytes = self.strings.get(at.label)?.get(usize::try_from(at.offset).ok()?..)?;
                let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                std::str::from_utf8(&bytes[..end]).ok().map(Arc::from)
            });
            if let Some(inlined) = &mut module.sources[id.0 as usize].inlined {
                inlined.function.clone_from(name);
            }
        }
    }
}

impl Parser<'_> {
    /// Reads `.file number "name"`, with or without a folder in front of the name, and a time and a
    /// size behind it.
    pub(super) fn file(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        let number = self.small()?;
        let Token::Text(mut name) = self.token() else {
            return Err(self.unexpected("the name of a file"));
        };
        self.advance()?;
        if let Token::Text(after_folder) = self.token() {
            name = after_folder;
            self.advance()?;
        }
        while self.take(",")? {
            self.integer()?;
        }
        self.module.files.push(SourceFile { number, name: name.to_owned() });
        Ok(())
    }

    /// Reads `.loc file line column`: the source of the instructions that follow.
    pub(super) fn loc(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        let place = self.place()?;
        let mut function = None;
        let mut inlined_at = None;
        while self.take(",")? {
            match self.word("`function_name` or `inlined_at`")? {
                "function_name" => {
                    let label = self.word("the label of a name")?;
                    let offset = if self.take("+")? { self.integer()? } else { 0 };
                    function = Some(NameAt { label, offset });
                }
                "inlined_at" => {
                    let at = self.place()?;
                    let known = self.lines.newest.get(&at).copied();
                    let plain = SourceKey { place: at, inlined_at: None, function: None };
                    let at =
                        known.unwrap_or_else(|| self.lines.add(&mut self.module.sources, plain));
                    inlined_at = Some(at);
                }
                _ => return Err(self.error("expected `function_name` or `inlined_at` before this")),
            }
        }
        let key = SourceKey { place, inlined_at, function };
        let id = self.lines.add(&mut self.module.sources, key);
        self.body.set_source(id);
        Ok(())
    }

    fn place(&mut self) -> Result<Place, ParseError> {
        let mut number = || {
            let Token::Number(number) = self.token() else {
                return Err(self.unexpected("a number"));
            };
            let value = number.bits().and_then(|bits| u32::try_from(bits).ok());
            let value =
                value.ok_or_else(|| self.error("this is no number of a file, line or column"))?;
            self.advance()?;
            Ok(value)
        };
        Ok(Place { file: number()?, line: number()?, column: number()? })
    }

    /// Goes past a section of debug data; keeps the strings of `.debug_str`.
    pub(super) fn section(&mut self) -> Result<(), ParseError> {
        self.advance()?;
        let strings = self.token() == Token::Dot("debug_str");
        self.advance()?;
        self.expect("{")?;
        let mut bytes: Option<Vec<u8>> = None;
        let mut label = "";
        loop {
            match self.token() {
                Token::End => return Err(self.error("this section has no end")),
                Token::Sign("}") => break,
                Token::Word(word) if strings && self.peek()? == Token::Sign(":") => {
                    self.keep_string(label, bytes.take());
                    label = word;
                    bytes = Some(Vec::new());
                }
                Token::Number(number) => {
                    if let (Some(bytes), Some(bits)) = (&mut bytes, number.bits()) {
                        bytes.push(bits as u8);
                    }
                }
                _ => {}
            }
            self.advance()?;
        }
        self.keep_string(label, bytes);
        self.advance()
    }
}

impl<'a> Parser<'a> {
    fn keep_string(&mut self, label: &'a str, bytes: Option<Vec<u8>>) {
        if let Some(bytes) = bytes {
            self.lines.strings.insert(label, bytes);
        }
    }
}
