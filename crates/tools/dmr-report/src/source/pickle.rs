//! Reads a pickle without executing anything: values only, and no classes.
//!
//! Memory is at most a constant times the size of the file: no opcode makes more than it is long,
//! and a value that is named twice is kept once.

/// The items of a dictionary that a key is looked for in: a snapshot's dictionaries have fewer than
/// 30, and one of a million would be searched for each event that names it.
const MAX_KEYS: usize = 256;

/// The position of an opcode, and the problem with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PickleProblem {
    pub(crate) at: usize,
    pub(crate) problem: String,
}

/// A value. Lists, dictionaries and texts are rows of the [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    /// Larger integers are the largest one.
    Int(i64),
    Float(f64),
    Text(u32),
    /// A list or a tuple.
    List(u32),
    Dict(u32),
}

/// A key of a dictionary and its value.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: Value,
    value: Value,
}

/// A range of the file.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

/// The values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'b> {
    bytes: &'b [u8],
    texts: Vec<Span>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<Item>>,
    pub(crate) root: Value,
}

impl<'b> Pickle<'b> {
    /// Reads a pickle.
    pub(crate) fn parse(bytes: &'b [u8]) -> Result<Self, PickleProblem> {
        let pickle = Self {
            bytes,
            texts: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            root: Value::None,
        };
        Machine { pickle, at: 0, stack: Vec::new(), marks: Vec::new(), memo: Vec::new() }.run()
    }

    /// Returns a text; `None` for another value, or one that is not UTF-8.
    pub(crate) fn text(&self, value: Value) -> Option<&'b str> {
        let Value::Text(text) = value else { return None };
        let Span { start, end } = self.texts[text as usize];
        str::from_utf8(&self.bytes[start..end]).ok()
    }

    fn is_text(&self, value: Value, text: &str) -> bool {
        let Value::Text(row) = value else { return false };
        let Span { start, end } = self.texts[row as usize];
        self.bytes[start..end] == *text.as_bytes()
    }

    /// Returns the values of a list or a tuple; none for another value.
    pub(crate) fn list(&self, value: Value) -> &[Value] {
        match value {
            Value::List(list) => &self.lists[list as usize],
            _ => &[],
        }
    }

    /// Returns the value of a key of a dictionary.
    pub(crate) fn get(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Dict(dict) = value else { return None };
        let items = self.dicts[dict as usize].iter();
        // The last one counts, as in Python.
        items.rev().take(MAX_KEYS).find(|item| self.is_text(item.key, key)).map(|item| item.value)
    }

    /// Returns a whole number of a dictionary; 0 if it is missing or negative.
    pub(crate) fn number(&self, value: Value, key: &str) -> u64 {
        match self.get(value, key) {
            Some(Value::Int(number)) => u64::try_from(number).unwrap_or(0),
            _ => 0,
        }
    }
}

struct Machine<'b> {
    pickle: Pickle<'b>,
    at: usize,
    stack: Vec<Value>,
    /// For each mark the length of the stack.
    marks: Vec<usize>,
    memo: Vec<Value>,
}

type Step<T = ()> = Result<T, String>;

impl<'b> Machine<'b> {
    fn run(mut self) -> Result<Pickle<'b>, PickleProblem> {
        loop {
            let at = self.at;
            match self.step() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    self.pickle.root = root;
                    return Ok(self.pickle);
                }
                Err(problem) => return Err(PickleProblem { at, problem }),
            }
        }
    }

    /// Runs one opcode; returns the root after the last one.
    fn step(&mut self) -> Step<Option<Value>> {
        let [code] = self.take::<1>()?;
        match code {
            b'.' => return self.pop().map(Some),
            0x80 => drop(self.take::<1>()?),
            0x95 => drop(self.take::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_to_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'J' | b'K' | b'M' | 0x8a | 0x8b => self.integer(code)?,
            b'G' => {
                let float = f64::from_be_bytes(self.take()?);
                self.stack.push(Value::Float(float));
            }
            0x8c | b'X' | 0x8d | b'C' | b'B' | 0x8e | b'U' | b'T' => self.text(code)?,
            b']' => self.push_list(Vec::new())?,
            b')' => self.push_list(Vec::new())?,
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let from = self.stack.len().checked_sub(count).ok_or("the stack is empty")?;
                self.check_mark(from)?;
                let values = self.stack.split_off(from);
                self.push_list(values)?;
            }
            b't' | b'l' => {
                let values = self.pop_to_mark()?;
                self.push_list(values)?;
            }
            b'a' => {
                let value = self.pop()?;
                self.top_list()?.push(value);
            }
            b'e' => {
                let values = self.pop_to_mark()?;
                self.top_list()?.extend_from_slice(&values);
            }
            b'}' => self.push_dict(Vec::new())?,
            b'd' => {
                let values = self.pop_to_mark()?;
                self.push_dict(items(&values)?)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.top_dict()?.push(Item { key, value });
            }
            b'u' => {
                let values = self.pop_to_mark()?;
                self.top_dict()?.extend(items(&values)?);
            }
            b'h' | b'j' => {
                let index = self.index(code == b'j')?;
                let value = self.memo.get(index).ok_or("names a value that is not there")?;
                self.stack.push(*value);
            }
            b'q' | b'r' | 0x94 => {
                let index = match code {
                    0x94 => self.memo.len(),
                    _ => self.index(code == b'r')?,
                };
                let top = self.top()?;
                let count = self.memo.len();
                match self.memo.get_mut(index) {
                    Some(slot) => *slot = top,
                    None if index == count => self.memo.push(top),
                    None => return Err(format!("names a value by {index}, out of turn")),
                }
            }
            b'c' | 0x93 | b'R' | b'o' | b'i' | b'b' | 0x81 | 0x92 | b'P' | b'Q' => {
                return Err(format!(
                    "opcode {code:#04x} makes an object of a class, which is refused: a snapshot has \
                     lists, dictionaries, texts and numbers"
                ));
            }
            _ => return Err(format!("opcode {code:#04x} is not one of a snapshot's")),
        }
        Ok(None)
    }

    fn integer(&mut self, code: u8) -> Step {
        let number = match code {
            b'J' => i32::from_le_bytes(self.take()?).into(),
            b'K' => u8::from_le_bytes(self.take()?).into(),
            b'M' => u16::from_le_bytes(self.take()?).into(),
            _ => {
                let length = match code {
                    0x8a => u8::from_le_bytes(self.take()?).into(),
                    _ => u32::from_le_bytes(self.take()?) as usize,
                };
                long(self.take_slice(length)?)
            }
        };
        self.stack.push(Value::Int(number));
        Ok(())
    }

    fn text(&mut self, code: u8) -> Step {
        let length = match code {
            0x8c | b'C' | b'U' => u8::from_le_bytes(self.take()?).into(),
            0x8d | 0x8e => usize::try_from(u64::from_le_bytes(self.take()?)).unwrap_or(usize::MAX),
            _ => u32::from_le_bytes(self.take()?) as usize,
        };
        let end = self.at.saturating_add(length);
        let span = Span { start: self.at, end };
        self.take_slice(length)?;
        let index = row(self.pickle.texts.len())?;
        self.pickle.texts.push(span);
        self.stack.push(Value::Text(index));
        Ok(())
    }

    fn index(&mut self, is_long: bool) -> Step<usize> {
        Ok(match is_long {
            true => u32::from_le_bytes(self.take()?) as usize,
            false => u8::from_le_bytes(self.take()?).into(),
        })
    }

    fn take<const N: usize>(&mut self) -> Step<[u8; N]> {
        let bytes = self.take_slice(N)?;
        bytes.try_into().map_err(|_| "the file ends here".to_owned())
    }

    fn take_slice(&mut self, length: usize) -> Step<&'b [u8]> {
        let rest = &self.pickle.bytes[self.at..];
        let bytes = rest.get(..length).ok_or("the file ends within this opcode")?;
        self.at += length;
        Ok(bytes)
    }

    /// Checks that no mark is above this length of the stack.
    fn check_mark(&self, length: usize) -> Step {
        let is_below = self.marks.last().is_none_or(|mark| *mark <= length);
        if is_below { Ok(()) } else { Err("takes more values than there are".to_owned()) }
    }

    fn pop(&mut self) -> Step<Value> {
        self.check_mark(self.stack.len().saturating_sub(1))?;
        self.stack.pop().ok_or_else(|| "the stack is empty".to_owned())
    }

    fn pop_to_mark(&mut self) -> Step<Vec<Value>> {
        let mark = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&self) -> Step<Value> {
        self.check_mark(self.stack.len().saturating_sub(1))?;
        self.stack.last().copied().ok_or_else(|| "the stack is empty".to_owned())
    }

    fn push_list(&mut self, values: Vec<Value>) -> Step {
        self.stack.push(Value::List(row(self.pickle.lists.len())?));
        self.pickle.lists.push(values);
        Ok(())
    }

    fn push_dict(&mut self, items: Vec<Item>) -> Step {
        self.stack.push(Value::Dict(row(self.pickle.dicts.len())?));
        self.pickle.dicts.push(items);
        Ok(())
    }

    fn top_list(&mut self) -> Step<&mut Vec<Value>> {
        match self.top()? {
            Value::List(list) => Ok(&mut self.pickle.lists[list as usize]),
            _ => Err("appends to what is no list".to_owned()),
        }
    }

    fn top_dict(&mut self) -> Step<&mut Vec<Item>> {
        match self.top()? {
            Value::Dict(dict) => Ok(&mut self.pickle.dicts[dict as usize]),
            _ => Err("sets an item of what is no dictionary".to_owned()),
        }
    }
}

fn row(rows: usize) -> Step<u32> {
    u32::try_from(rows).map_err(|_| "more than 4,294,967,295 values".to_owned())
}

fn items(values: &[Value]) -> Step<Vec<Item>> {
    let pairs = values.chunks_exact(2);
    match pairs.remainder() {
        [] => Ok(pairs.map(|pair| Item { key: pair[0], value: pair[1] }).collect()),
        _ => Err("a key without a value".to_owned()),
    }
}

/// Returns a little-endian integer of two's complement; the nearest that fits.
fn long(bytes: &[u8]) -> i64 {
    let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let filler = if is_negative { 0xFF } else { 0 };
    let most = if is_negative { i64::MIN } else { i64::MAX };
    let mut low = [filler; 8];
    let kept = bytes.len().min(8);
    low[..kept].copy_from_slice(&bytes[..kept]);
    let number = i64::from_le_bytes(low);
    let fits = bytes.iter().skip(8).all(|byte| *byte == filler) && (number < 0) == is_negative;
    if fits { number } else { most }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(bytes: &[u8]) -> String {
        let PickleProblem { at, problem } = Pickle::parse(bytes).unwrap_err();
        format!("{at}: {problem}")
    }

    #[test]
    fn values_of_both_protocols_are_read() {
        // {'a': [1, -2, 300, 2**40], 'b': (None, True, 'x')}, protocol 4.
        let bytes =
            b"\x80\x04\x95\x2b\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01\
                      \x8a\x06\0\0\0\0\0\x01e\x8c\x01b\x94N\x88\x8c\x01x\x94\x87\x94u.";
        let pickle = Pickle::parse(bytes).unwrap();
        let list = pickle.get(pickle.root, "a").unwrap();
        let numbers = [1, -2, 300, 1 << 40].map(Value::Int);
        assert_eq!(pickle.list(list), numbers);
        let tuple = pickle.list(pickle.get(pickle.root, "b").unwrap());
        assert_eq!(tuple[..2], [Value::None, Value::Bool(true)]);
        assert_eq!(pickle.text(tuple[2]), Some("x"));
    }

    #[test]
    fn a_class_is_refused_and_nothing_is_called() {
        let found = problem(b"cos\nsystem\n(S'true'\ntR.");
        assert!(found.starts_with("0: opcode 0x63 makes an object of a class"), "{found}");
        assert!(problem(b"\x80\x04\x8c\x02os\x8c\x06system\x93.").starts_with("14: opcode 0x93"));
    }

    #[test]
    fn the_byte_of_a_problem_is_named() {
        assert_eq!(problem(b""), "0: the file ends within this opcode");
        assert_eq!(problem(b"K"), "0: the file ends within this opcode");
        assert_eq!(problem(b"NX\xff\xff\xff\xff"), "1: the file ends within this opcode");
        assert_eq!(problem(b"Na"), "1: the stack is empty");
        assert_eq!(problem(b"NNa"), "2: appends to what is no list");
        assert_eq!(problem(b"N(."), "2: takes more values than there are");
        assert_eq!(problem(b"}(Nu"), "3: a key without a value");
        assert_eq!(problem(b"Nr\xff\xff\xff\xff"), "1: names a value by 4294967295, out of turn");
        assert_eq!(problem(b"h\x01"), "0: names a value that is not there");
    }

    #[test]
    fn deeply_nested_lists_are_dropped_without_recursion() {
        let mut bytes = vec![b']'; 1_000_000];
        bytes.extend(vec![b'a'; 999_999]);
        bytes.push(b'.');
        assert!(Pickle::parse(&bytes).is_ok());
    }

    #[test]
    fn long_integers_saturate() {
        assert_eq!(long(&[]), 0);
        assert_eq!(long(&[0xFF]), -1);
        assert_eq!(long(&[0xFF, 0]), 255);
        assert_eq!(long(&[0xFF; 9]), -1);
        assert_eq!(long(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), i64::MAX);
        assert_eq!(long(&[1, 0, 0, 0, 0, 0, 0, 0, 0x80]), i64::MIN);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Pickle::parse(&bytes);
        }

        #[test]
        fn any_opcodes_are_read_or_refused(
            codes in proptest::collection::vec(
                proptest::sample::select(b"(}])NKe.ustlad012hq\x94\x88\x85\x86\x87".to_vec()), 0..200,
            ),
        ) {
            let _ = Pickle::parse(&codes);
        }
    }
}
