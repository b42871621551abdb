//! The declarations of PTX text: kernels with the layout of their parameters, and variables.
//!
//! Only declarations are read (PTX ISA, "Kernel and Function Directives", "State Spaces"); tests register bodies as
//! closures.

/// The declarations of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declarations {
    pub(crate) entries: Vec<KernelEntry>,
    /// The variables in global and constant memory whose initial values are numbers.
    pub(crate) variables: Vec<Variable>,
}

/// One `.entry`: its name and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelEntry {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
}

impl KernelEntry {
    /// Returns the bytes of all parameters, packed as the driver packs them.
    pub(crate) fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |last| last.offset + last.bytes)
    }
}

/// A parameter: its place among all parameters, and its size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// A variable at module scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The initial bytes; those that are missing are 0.
    pub(crate) initial: Vec<u8>,
}

/// The maximum size of a kernel's parameters (PTX ISA 8.1, sm_70 and later).
const MAX_PARAMETER_BYTES: usize = 32_764;

/// Returns the declarations of a module; `None` if the text is not PTX.
pub(crate) fn parse(text: &str) -> Option<Declarations> {
    let text = strip_comments(text);
    let mut words = Words(&text);
    let mut is_ptx = false;
    let mut found = Declarations::default();
    let (mut depth, mut is_extern) = (0u32, false);
    while let Some(word) = words.next() {
        match word {
            ".version" => is_ptx = true,
            ".entry" => found.entries.push(entry(&mut words)?),
            ".extern" => is_extern = true,
            ".global" | ".const" if depth == 0 => {
                let declared = variable(&mut words);
                found.variables.extend(declared.filter(|_| !is_extern));
                is_extern = false;
            }
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            ";" => is_extern = false,
            _ => {}
        }
    }
    is_ptx.then_some(found)
}

/// Reads a variable up to the end of its declaration. `None` for one without a size, or whose initial value is not a
/// list of numbers.
fn variable(words: &mut Words<'_>) -> Option<Variable> {
    let mut rest: Vec<&str> = words.take_while(|word| *word != ";").collect();
    let initial = match rest.iter().position(|word| *word == "=") {
        Some(at) => rest.split_off(at).split_off(1),
        None => Vec::new(),
    };
    let (mut element, mut lanes, mut count, mut name) = (None, 1u64, 1u64, None);
    let mut words = rest.into_iter();
    while let Some(word) = words.next() {
        match word {
            ".align" => drop(words.next()?),
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            "[" => {
                count = count.checked_mul(words.next()?.parse().ok()?)?;
            }
            "]" => {}
            // .attribute(.managed)
            "(" => drop(words.find(|word| *word == ")")?),
            word if type_size(word).is_some() => element = type_size(word),
            word if word.starts_with('.') => {}
            word => name = Some(word),
        }
    }
    let element = element?;
    let bytes = count.checked_mul(lanes)?.checked_mul(element as u64).filter(|bytes| *bytes > 0)?;
    let mut values = Vec::new();
    for number in initial.into_iter().filter(|word| !["{", "}", ","].contains(word)) {
        let value = value_of(number)?.to_le_bytes();
        values.extend_from_slice(value.get(..element)?);
    }
    (values.len() as u64 <= bytes).then(|| Variable {
        name: name.unwrap_or_default().into(),
        bytes,
        initial: values,
    })
}

/// Returns the bits of a number: decimal, hexadecimal, octal, or the bits of a float (`0f3F800000`).
fn value_of(number: &str) -> Option<u128> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number),
    };
    let digits = digits.trim_end_matches('U');
    let hexadecimal = ["0x", "0X", "0f", "0F", "0d", "0D"];
    let value = match hexadecimal.iter().find_map(|prefix| digits.strip_prefix(prefix)) {
        Some(digits) => u128::from_str_radix(digits, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => {
            u128::from_str_radix(digits, 8).ok()?
        }
        None => digits.parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

fn entry(words: &mut Words<'_>) -> Option<KernelEntry> {
    let name = words.next()?.to_owned();
    let mut params = Vec::new();
    let mut end = 0usize;
    if words.peek() == Some("(") {
        words.next();
        let mut is_last = false;
        while !is_last {
            let (mut size, mut align, mut is_pointer) = (None, None, false);
            loop {
                match words.next()? {
                    "," => break,
                    ")" => {
                        is_last = true;
                        break;
                    }
                    "[" => {
                        let count: usize = words.next()?.parse().ok()?;
                        size = size.and_then(|size: usize| size.checked_mul(count));
                    }
                    // What follows describes the memory that the parameter points to.
                    ".ptr" => is_pointer = true,
                    ".align" => {
                        let bytes: usize = words.next()?.parse().ok()?;
                        if !is_pointer {
                            align = Some(bytes);
                        }
                    }
                    word => {
                        if let Some(bytes) = type_size(word) {
                            size = Some(bytes);
                            align = align.or(Some(bytes));
                        }
                    }
                }
            }
            if let Some(bytes) = size {
                let offset = end.checked_next_multiple_of(align?.max(1))?;
                params.push(Param { offset, bytes });
                end = offset.checked_add(bytes)?;
            }
        }
    }
    (end <= MAX_PARAMETER_BYTES).then_some(KernelEntry { name, params })
}

/// Returns the size of a type: `.u64` is 8 bytes, `.b8` is 1; other directives are no types.
fn type_size(word: &str) -> Option<usize> {
    let mut chars = word.strip_prefix('.')?.chars();
    if !matches!(chars.next()?, 'u' | 's' | 'b' | 'f') {
        return None;
    }
    match chars.as_str() {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

fn strip_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        out.push_str(before);
        let end = match comment.as_bytes().get(1) {
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            Some(b'*') => comment.find("*/").map_or(comment.len(), |end| end + 2),
            _ => {
                out.push('/');
                1
            }
        };
        out.push(' ');
        rest = &comment[end..];
    }
    out.push_str(rest);
    out
}

/// Splits text into words and the punctuation that is needed.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        Words(self.0).next()
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        const PUNCTUATION: [char; 9] = ['(', ')', '[', ']', ',', '{', '}', ';', '='];
        let text = self.0.trim_start();
        let first = text.chars().next()?;
        let end = if PUNCTUATION.contains(&first) {
            1
        } else {
            let ends = |c: char| c.is_whitespace() || PUNCTUATION.contains(&c);
            text.find(ends).unwrap_or(text.len())
        };
        self.0 = &text[end..];
        Some(&text[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_the_sizes_of_their_parameters_are_read() {
        let text = "
            // .entry not_this(
            .version 8.0 /* .entry nor_this( */
            .target sm_90
            .address_size 64
            .visible .entry saxpy(
                .param .u64 .ptr .global .align 16 saxpy_param_0,
                .param .f32 saxpy_param_1,
                .param .align 8 .b8 saxpy_param_2[24],
                .param .u32 saxpy_param_3
            ) .maxntid 256, 1, 1 { ld.param.u64 %rd1, [saxpy_param_0]; ret; }
            .func helper(.param .b64 x) { ret; }
            .entry nothing() { ret; }
            .entry bare { ret; }";
        let entry = |name: &str, params: &[(usize, usize)]| KernelEntry {
            name: name.into(),
            params: params.iter().map(|&(offset, bytes)| Param { offset, bytes }).collect(),
        };
        let saxpy = entry("saxpy", &[(0, 8), (8, 4), (16, 24), (40, 4)]);
        assert_eq!(saxpy.param_bytes(), 44);
        assert_eq!(
            parse(text).unwrap().entries,
            [saxpy, entry("nothing", &[]), entry("bare", &[])]
        );
    }

    #[test]
    fn variables_at_module_scope_are_read_with_their_initial_bytes() {
        let text = "
            .version 8.0
            .visible .global .align 4 .u32 counter;
            .const .align 2 .b16 table[2][3]={1, 0x203, -1};
            .global .attribute(.managed) .v2 .f32 pair = {0f3F800000, 0f00000000};
            .extern .global .u32 elsewhere;
            .global .u64 address = counter;
            .visible .entry k() { .shared .b8 tile[64]; { ld.global.u32 %r1, [counter]; } ret; }
            .global .s8 last = 010;";
        let variable = |name: &str, bytes, initial: &[u8]| Variable {
            name: name.into(),
            bytes,
            initial: initial.into(),
        };
        assert_eq!(
            parse(text).unwrap().variables,
            [
                variable("counter", 4, &[]),
                variable("table", 12, &[1, 0, 3, 2, 255, 255]),
                variable("pair", 8, &[0, 0, 128, 63, 0, 0, 0, 0]),
                variable("last", 1, &[8]),
            ]
        );
    }

    #[test]
    fn what_is_not_ptx_is_refused() {
        assert_eq!(parse("extern \"C\" __global__ void f() {}"), None);
        assert_eq!(parse(".version 8.0 .entry open(.param .u64 a"), None);
        assert_eq!(parse(""), None);
    }
}
