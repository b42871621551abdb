//! The names that are declared where the parser is: scopes, and ranges of registers (`%r<10>`).

use std::collections::HashMap;

use super::module::{LabelId, RegisterId, Symbol, VariableId};
use crate::Type;

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegisterType {
    pub(super) ty: Type,
    pub(super) vector: u32,
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    /// A register; without an id until an instruction names it.
    Register(RegisterType, Option<RegisterId>),
    Symbol(Symbol),
    Label(LabelId),
    BranchTargets(u32),
    CallTargets(u32),
    Prototype(u32),
}

/// A name and its scope.
#[derive(Clone, Copy, Debug)]
struct Declared<'a> {
    name: &'a str,
    meaning: Meaning,
    depth: u32,
    /// The declaration of the same name in an outer scope.
    outer: Option<u32>,
}

/// The meaning of the names of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RangeOf {
    Registers(RegisterType),
    /// Variables whose indices follow each other, from this one on.
    Variables(VariableId),
}

/// The names of one declaration: `prefix0` to `prefix` and the number below `count`.
#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    prefix: &'a str,
    of: RangeOf,
    count: u32,
    depth: u32,
    /// Tells apart ranges of one prefix in scopes that follow each other.
    serial: u32,
    outer: Option<u32>,
}

/// The result of looking a name up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Found {
    /// A name of its own, and the depth of its scope.
    Plain(Meaning, u32),
    /// A register of a range, and its key in the table of those that have an id.
    OfRange(RegisterType, RangeKey),
    /// A register that is declared by name and as part of a range.
    Twice,
}

/// A register of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RangeKey {
    serial: u32,
    number: u32,
}

/// The names in scope. Depth 0 is the module.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    declared: Vec<Declared<'a>>,
    ranges: Vec<Range<'a>>,
    by_name: HashMap<&'a str, u32>,
    by_prefix: HashMap<&'a str, u32>,
    scopes: Vec<Scope>,
    serial: u32,
}

/// The numbers of declarations when a scope was opened.
#[derive(Debug)]
struct Scope {
    declared: usize,
    ranges: usize,
}

impl<'a> Names<'a> {
    /// Returns the number of scopes that are open.
    pub(super) fn depth(&self) -> u32 {
        self.scopes.len() as u32
    }

    /// Opens a scope.
    pub(super) fn open(&mut self) {
        self.scopes.push(Scope { declared: self.declared.len(), ranges: self.ranges.len() });
    }

    /// Closes the innermost scope: its names are gone, those that they have hidden are back.
    pub(super) fn close(&mut self) {
        let Some(scope) = self.scopes.pop() else { return };
        for declared in self.declared.drain(scope.declared..).rev() {
            match declared.outer {
                Some(outer) => self.by_name.insert(declared.name, outer),
                None => self.by_name.remove(declared.name),
            };
        }
        for range in self.ranges.drain(scope.ranges..).rev() {
            match range.outer {
                Some(outer) => self.by_prefix.insert(range.prefix, outer),
                None => self.by_prefix.remove(range.prefix),
            };
        }
    }

    /// Declares a name in the innermost scope; returns false if the scope has it already.
    #[must_use]
    pub(super) fn declare(&mut self, name: &'a str, meaning: Meaning) -> bool {
        let depth = self.depth();
        let outer = self.by_name.get(name).copied();
        let hides = |index: u32| self.declared[index as usize].depth == depth;
        if outer.is_some_and(hides) || self.of_range(name).is_some_and(|range| range.depth == depth)
        {
            return false;
        }
        self.by_name.insert(name, self.declared.len() as u32);
        self.declared.push(Declared { name, meaning, depth, outer });
        true
    }

    /// Declares a range of names in the innermost scope; returns false if the scope has it, or its
    /// first, already.
    #[must_use]
    pub(super) fn declare_range(&mut self, prefix: &'a str, count: u32, of: RangeOf) -> bool {
        let depth = self.depth();
        let outer = self.by_prefix.get(prefix).copied();
        if outer.is_some_and(|index| self.ranges[index as usize].depth == depth) {
            return false;
        }
        self.by_prefix.insert(prefix, self.ranges.len() as u32);
        self.serial += 1;
        self.ranges.push(Range { prefix, of, count, depth, serial: self.serial, outer });
        true
    }

    /// Looks a name up.
    pub(super) fn find(&self, name: &str) -> Option<Found> {
        let plain = self.by_name.get(name).map(|&index| &self.declared[index as usize]);
        // A register that has an id was looked up before: no range of its scope has it.
        if let Some(Declared { meaning: meaning @ Meaning::Register(_, Some(_)), depth, .. }) =
            plain
            && *depth == self.depth()
        {
            return Some(Found::Plain(*meaning, *depth));
        }
        let Some(range) = self.of_range(name) else {
            return plain.map(|plain| Found::Plain(plain.meaning, plain.depth));
        };
        match plain {
            Some(plain) if plain.depth > range.depth => {
                Some(Found::Plain(plain.meaning, plain.depth))
            }
            Some(plain) if plain.depth == range.depth => Some(Found::Twice),
            _ => Some(range.found()),
        }
    }

    /// Changes what the innermost declaration of a name stands for.
    pub(super) fn set(&mut self, name: &str, meaning: Meaning) {
        if let Some(&index) = self.by_name.get(name) {
            self.declared[index as usize].meaning = meaning;
        }
    }

    /// Returns the register of the innermost range that has this name.
    fn of_range(&self, name: &str) -> Option<RangeFound> {
        let mut found: Option<RangeFound> = None;
        if self.ranges.is_empty() {
            return None;
        }
        let digits = name.bytes().rev().take(10).take_while(u8::is_ascii_digit).count();
        for length in 1..=digits {
            let (prefix, number) = name.split_at(name.len() - length);
            if length > 1 && number.starts_with('0') {
                continue;
            }
            let (Some(&first), Ok(number)) = (self.by_prefix.get(prefix), number.parse::<u32>())
            else {
                continue;
            };
            let mut next = Some(first);
            while let Some(range) = next.map(|index| &self.ranges[index as usize]) {
                if number < range.count {
                    if found.is_none_or(|found| found.depth < range.depth) {
                        let key = RangeKey { serial: range.serial, number };
                        found = Some(RangeFound { of: range.of, key, depth: range.depth });
                    }
                    break;
                }
                next = range.outer;
            }
        }
        found
    }
}

#[derive(Clone, Copy)]
struct RangeFound {
    of: RangeOf,
    key: RangeKey,
    depth: u32,
}

impl RangeFound {
    fn found(self) -> Found {
        let number = self.key.number;
        let id = match self.of {
            RangeOf::Registers(ty) => return Found::OfRange(ty, self.key),
            RangeOf::Variables(VariableId::Module(first)) => VariableId::Module(first + number),
            RangeOf::Variables(VariableId::Body(first)) => VariableId::Body(first + number),
            // A parameter is not declared in a range.
            RangeOf::Variables(other) => other,
        };
        Found::Plain(Meaning::Symbol(Symbol::Variable(id)), self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B32: RegisterType = RegisterType { ty: Type::B32, vector: 1 };
    const R32: RangeOf = RangeOf::Registers(B32);
    const F64: RegisterType = RegisterType { ty: Type::F64, vector: 1 };

    fn type_of(names: &Names<'_>, name: &str) -> Option<Type> {
        match names.find(name)? {
            Found::Plain(Meaning::Register(ty, _), _) | Found::OfRange(ty, _) => Some(ty.ty),
            _ => None,
        }
    }

    #[test]
    fn an_inner_scope_hides_names_until_it_is_closed() {
        let mut names = Names::default();
        names.open();
        assert!(names.declare_range("%r", 100, R32));
        assert!(names.declare("%x", Meaning::Register(B32, None)));
        names.open();
        assert!(names.declare_range("%r", 10, RangeOf::Registers(F64)));
        assert!(names.declare("%r50", Meaning::Register(F64, None)));
        assert_eq!(type_of(&names, "%r9"), Some(Type::F64));
        assert_eq!(type_of(&names, "%r10"), Some(Type::B32));
        assert_eq!(type_of(&names, "%r50"), Some(Type::F64));
        assert_eq!(type_of(&names, "%r100"), None);
        assert_eq!(type_of(&names, "%r01"), None);
        names.close();
        assert_eq!(type_of(&names, "%r9"), Some(Type::B32));
        assert_eq!(type_of(&names, "%r50"), Some(Type::B32));
    }

    #[test]
    fn one_scope_declares_a_name_once() {
        let mut names = Names::default();
        assert!(names.declare("%x7", Meaning::Register(B32, None)));
        assert!(!names.declare("%x7", Meaning::Register(B32, None)));
        assert!(names.declare_range("%r", 10, R32));
        assert!(!names.declare_range("%r", 5, R32));
        assert!(!names.declare("%r9", Meaning::Register(B32, None)));
        assert!(names.declare("%r10", Meaning::Register(B32, None)));
        assert!(names.declare_range("%x", 8, R32));
        assert_eq!(names.find("%x7"), Some(Found::Twice));
    }
}
