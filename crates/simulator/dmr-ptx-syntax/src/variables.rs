//! Declarations of variables and registers.

use super::error::ParseError;
use super::module::{Linkage, Pointer, Position, Space, Symbol, Variable, VariableId};
use super::names::{Meaning, RangeOf, RegisterType};
use super::parser::Parser;
use super::token::Token;
use crate::Type;

/// The largest size of a variable, in bytes.
const MAX_BYTES: u64 = 1 << 40;
/// The largest alignment, in bytes.
const MAX_ALIGN: u64 = 1 << 20;
/// The largest number of dimensions of an array.
const MAX_DIMENSIONS: usize = 16;
/// The largest number of variables that ranges (`a<10>`) declare in one text. Registers do not
/// count.
const MAX_RANGED_VARIABLES: u64 = 1 << 16;

/// The directives in front of the names of a declaration.
pub(super) struct Specifier {
    pub(super) space: Space,
    element: Type,
    opaque: bool,
    vector: u32,
    align: Option<u64>,
    managed: bool,
    pointer: Option<Pointer>,
}

/// A variable and its name in the text.
pub(super) struct Declared<'a> {
    pub(super) name: &'a str,
    pub(super) variable: Variable,
}

impl<'a> Parser<'a> {
    /// Reads variables of the module.
    pub(super) fn module_variables(&mut self, linkage: Linkage) -> Result<(), ParseError> {
        let specifier = self.specifier()?;
        self.each_declarator(|parser| {
            let Declared { name, variable } = parser.declarator(&specifier, linkage)?;
            if !parser.is("<") {
                return parser.add_variable(name, variable);
            }
            let first = VariableId::Module(parser.module.variables.len() as u32);
            let count = parser.range(name, &variable, RangeOf::Variables(first))?;
            let named = (0..count).map(|number| named(&variable, number));
            parser.module.variables.extend(named);
            Ok(())
        })
    }

    /// Reads variables or registers of a function's body.
    pub(super) fn body_variables(&mut self) -> Result<(), ParseError> {
        let specifier = self.specifier()?;
        self.each_declarator(|parser| {
            if specifier.space == Space::Reg {
                return parser.registers(&specifier);
            }
            let Declared { name, variable } = parser.declarator(&specifier, Linkage::Internal)?;
            let first = VariableId::Body(parser.body.variables() as u32);
            if !parser.is("<") {
                parser.declare(name, Meaning::Symbol(Symbol::Variable(first)), variable.at)?;
                parser.body.add_variable(variable);
                return Ok(());
            }
            let count = parser.range(name, &variable, RangeOf::Variables(first))?;
            for number in 0..count {
                parser.body.add_variable(named(&variable, number));
            }
            Ok(())
        })
    }

    fn each_declarator(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<(), ParseError>,
    ) -> Result<(), ParseError> {
        loop {
            read(self)?;
            if !self.take(",")? {
                return self.expect(";");
            }
        }
    }

    /// Reads registers: `%r1` or `%r<10>`.
    fn registers(&mut self, specifier: &Specifier) -> Result<(), ParseError> {
        let ty = RegisterType { ty: specifier.element, vector: specifier.vector };
        let at = self.at();
        let name = self.word("the name of a register")?;
        if self.is("<") {
            let count = self.range_count()?;
            return self.declare_range(name, count, RangeOf::Registers(ty), at);
        }
        self.declare(name, Meaning::Register(ty, None), at)
    }

    /// Reads and declares a range of variables; returns how many they are.
    fn range(
        &mut self,
        name: &'a str,
        variable: &Variable,
        of: RangeOf,
    ) -> Result<u32, ParseError> {
        let count = self.range_count()?;
        self.ranged_variables += u64::from(count);
        if self.ranged_variables > MAX_RANGED_VARIABLES {
            let message = format!("ranges declare more than {MAX_RANGED_VARIABLES} variables");
            return Err(ParseError { at: variable.at, message });
        }
        self.declare_range(name, count, of, variable.at)?;
        Ok(count)
    }

    fn declare_range(
        &mut self,
        name: &'a str,
        count: u32,
        of: RangeOf,
        at: Position,
    ) -> Result<(), ParseError> {
        if self.names.declare_range(name, count, of) {
            return Ok(());
        }
        Err(ParseError {
            at,
            message: format!("{} is declared already", Token::Word(name).shown()),
        })
    }

    /// Reads `<10>`.
    fn range_count(&mut self) -> Result<u32, ParseError> {
        self.expect("<")?;
        let Token::Number(number) = self.token() else { return Err(self.unexpected("a number")) };
        let count = number.bits().and_then(|bits| u32::try_from(bits).ok());
        let count = count.ok_or_else(|| self.error("this is no number of variables"))?;
        self.advance()?;
        self.expect(">")?;
        Ok(count)
    }

    /// Reads what stands in front of the names: the space, the alignment, the type.
    pub(super) fn specifier(&mut self) -> Result<Specifier, ParseError> {
        let Token::Dot(space) = self.token() else { return Err(self.unexpected("a state space")) };
        let space_of = |name: &str| match name {
            "reg" => Some(Space::Reg),
            "tex" => Some(Space::Global),
            name => memory_space(name),
        };
        let Some(space) = space_of(space) else { return Err(self.unexpected("a state space")) };
        let mut opaque = self.token() == Token::Dot("tex");
        self.advance()?;
        let mut align = None;
        let mut vector = 1;
        let mut element = None;
        let mut managed = false;
        let mut pointer = None;
        while let Token::Dot(word) = self.token() {
            self.advance()?;
            match word {
                "align" => align = Some(self.alignment()?),
                "attribute" => managed |= self.attributes()?,
                "ptr" => pointer = Some(self.pointer()?),
                "v2" | "v4" | "v8" => vector = u32::from(word.as_bytes()[1] - b'0'),
                "texref" | "samplerref" | "surfref" => {
                    opaque = true;
                    element = Some(Type::B64);
                }
                _ => {
                    let ty = Type::from_name(word);
                    if ty.is_none() || element.is_some() {
                        return Err(self.error(format!(
                            "{} is not expected before this",
                            Token::Dot(word).shown()
                        )));
                    }
                    element = ty;
                }
            }
        }
        let Some(element) = element else { return Err(self.unexpected("a type")) };
        if element == Type::Pred && (space != Space::Reg || vector != 1) {
            return Err(self.error("a predicate is a register, without elements"));
        }
        if element.bytes() as u32 * vector > 32 {
            return Err(self.error("a vector has at most 32 bytes"));
        }
        Ok(Specifier { space, element, opaque, vector, align, managed, pointer })
    }

    /// Reads `.ptr .global .align 16` behind `.ptr`.
    fn pointer(&mut self) -> Result<Pointer, ParseError> {
        let mut pointer = Pointer { space: None, align: 4 };
        while let Token::Dot(word) = self.token() {
            match (word, memory_space(word)) {
                ("align", _) => {
                    self.advance()?;
                    pointer.align = self.alignment()?;
                }
                (_, Some(space)) => {
                    self.advance()?;
                    pointer.space = Some(space);
                }
                _ => break,
            }
        }
        Ok(pointer)
    }

    fn alignment(&mut self) -> Result<u64, ParseError> {
        let at = self.at();
        let align = self.integer()?;
        if align.is_power_of_two() && align <= MAX_ALIGN {
            return Ok(align);
        }
        Err(ParseError {
            at,
            message: format!("an alignment is a power of two, at most {MAX_ALIGN}"),
        })
    }

    /// Reads what follows `.attribute`; returns whether it has `.managed`.
    pub(super) fn attributes(&mut self) -> Result<bool, ParseError> {
        let mut managed = false;
        self.expect("(")?;
        loop {
            let Token::Dot(name) = self.token() else {
                return Err(self.unexpected("an attribute"));
            };
            self.advance()?;
            managed |= name == "managed";
            if self.take("(")? {
                self.integer()?;
                while self.take(",")? {
                    self.integer()?;
                }
                self.expect(")")?;
            }
            if !self.take(",")? {
                self.expect(")")?;
                return Ok(managed);
            }
        }
    }

    /// Reads a name with its dimensions and initial value.
    pub(super) fn declarator(
        &mut self,
        specifier: &Specifier,
        linkage: Linkage,
    ) -> Result<Declared<'a>, ParseError> {
        let at = self.at();
        let name = if self.take("_")? { "_" } else { self.word("a name")? };
        let value_bytes = specifier.element.bytes() as u64 * u64::from(specifier.vector);
        let mut variable = Variable {
            name: name.to_owned(),
            space: specifier.space,
            element: specifier.element,
            opaque: specifier.opaque,
            vector: specifier.vector,
            count: Some(1),
            align: specifier.align.unwrap_or(value_bytes),
            linkage,
            managed: specifier.managed,
            pointer: specifier.pointer,
            register: None,
            initial: Vec::new(),
            at,
        };
        let mut dimensions = self.array_dimensions()?;
        if self.take("=")? {
            self.initial_value(&mut variable, &mut dimensions)?;
        }
        variable.count = count(&dimensions);
        let may_be_open = linkage == Linkage::Extern || specifier.space == Space::Param;
        if variable.count.is_none() && !(may_be_open && dimensions.first() == Some(&None)) {
            return Err(ParseError { at, message: "this array has no length".to_owned() });
        }
        let bytes = variable.count.map_or(Some(0), |count| count.checked_mul(value_bytes));
        if bytes.is_none_or(|bytes| bytes > MAX_BYTES) {
            return Err(ParseError {
                at,
                message: format!("this is larger than {MAX_BYTES} bytes"),
            });
        }
        Ok(Declared { name, variable })
    }

    /// Reads `[4][]`: `None` is a dimension without a number, which only the first may be.
    fn array_dimensions(&mut self) -> Result<Vec<Option<u64>>, ParseError> {
        let mut dimensions = Vec::new();
        let mut elements = 1u64;
        while self.is("[") {
            if dimensions.len() == MAX_DIMENSIONS {
                return Err(self.error(format!("an array has at most {MAX_DIMENSIONS} dimensions")));
            }
            self.advance()?;
            if dimensions.is_empty() && self.take("]")? {
                dimensions.push(None);
                continue;
            }
            let at = self.at();
            let length = self.integer()?;
            elements = elements.saturating_mul(length.max(1));
            if elements > MAX_BYTES {
                return Err(ParseError {
                    at,
                    message: format!("this is larger than {MAX_BYTES} bytes"),
                });
            }
            self.expect("]")?;
            dimensions.push(Some(length));
        }
        Ok(dimensions)
    }
}

/// Returns the number of values of an array; `None` if a dimension has no number.
pub(super) fn count(dimensions: &[Option<u64>]) -> Option<u64> {
    dimensions.iter().try_fold(1u64, |count, length| count.checked_mul((*length)?))
}

fn memory_space(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}

/// Returns the variable of this number of a range.
fn named(variable: &Variable, number: u32) -> Variable {
    Variable { name: format!("{}{number}", variable.name), ..variable.clone() }
}
