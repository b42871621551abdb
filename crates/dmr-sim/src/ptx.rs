//! Kernel names and parameter layouts, read from PTX text.
//!
//! Only `.entry` declarations are read (PTX ISA, "Kernel and Function Directives"); tests register
//! bodies as closures.

/// One `.entry`: its name, and the size of each parameter in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelEntry {
    pub(crate) name: String,
    pub(crate) params: Vec<usize>,
}

/// The maximum size of a kernel's parameters (PTX ISA 8.1, sm_70 and later).
const MAX_PARAMETER_BYTES: usize = 32_764;

/// Returns the entries of a module; `None` if the text is not PTX.
pub(crate) fn parse(text: &str) -> Option<Vec<KernelEntry>> {
    let text = strip_comments(text);
    let mut words = Words(&text);
    let mut is_ptx = false;
    let mut entries = Vec::new();
    while let Some(word) = words.next() {
        match word {
            ".version" => is_ptx = true,
            ".entry" => entries.push(entry(&mut words)?),
            _ => {}
        }
    }
    is_ptx.then_some(entries)
}

fn entry(words: &mut Words<'_>) -> Option<KernelEntry> {
    let name = words.next()?.to_owned();
    let mut params = Vec::new();
    if words.peek() == Some("(") {
        words.next();
        let mut size = None;
        loop {
            match words.next()? {
                ")" => {
                    params.extend(size);
                    break;
                }
                "," => params.extend(size.take()),
                "[" => {
                    let count: usize = words.next()?.parse().ok()?;
                    size = size.and_then(|size: usize| size.checked_mul(count));
                }
                // The number of an alignment is not a size.
                ".align" => {
                    words.next()?;
                }
                word => {
                    if let Some(bytes) = type_size(word) {
                        size = Some(bytes);
                    }
                }
            }
        }
    }
    let total = params.iter().try_fold(0usize, |sum, &bytes| sum.checked_add(bytes))?;
    (total <= MAX_PARAMETER_BYTES).then_some(KernelEntry { name, params })
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
        const PUNCTUATION: [char; 8] = ['(', ')', '[', ']', ',', '{', '}', ';'];
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
        let entry =
            |name: &str, params: &[usize]| KernelEntry { name: name.into(), params: params.into() };
        assert_eq!(
            parse(text).unwrap(),
            [entry("saxpy", &[8, 4, 24, 4]), entry("nothing", &[]), entry("bare", &[])]
        );
    }

    #[test]
    fn what_is_not_ptx_is_refused() {
        assert_eq!(parse("extern \"C\" __global__ void f() {}"), None);
        assert_eq!(parse(".version 8.0 .entry open(.param .u64 a"), None);
        assert_eq!(parse(""), None);
    }
}
