//! Random texts for the parser: fixtures with bytes and lines changed, and tokens in random order.

/// PTX of kernels, and a text with every form of declaration and operand.
pub(crate) const FIXTURES: [&str; 5] = [
    include_str!("../fixtures/vectors.ptx"),
    include_str!("../fixtures/blocks.ptx"),
    include_str!("../fixtures/calls.ptx"),
    include_str!("../fixtures/matrices.ptx"),
    include_str!("../fixtures/forms.ptx"),
];

/// Tokens, with spaces where one would run into the next.
const TOKENS: [&str; 96] = [
    ".version 8.0\n",
    ".target sm_80\n",
    ".address_size 64\n",
    ".visible ",
    ".extern ",
    ".weak ",
    ".entry ",
    ".func ",
    ".reg ",
    ".param ",
    ".shared ",
    ".global ",
    ".const ",
    ".local ",
    ".align ",
    ".b8 ",
    ".u32 ",
    ".s64 ",
    ".f32 ",
    ".f64 ",
    ".pred ",
    ".v2 ",
    ".v4 ",
    ".b128 ",
    ".texref ",
    ".ptr ",
    ".loc ",
    ".file ",
    ".section ",
    ".pragma ",
    ".alias ",
    ".branchtargets ",
    ".calltargets ",
    ".callprototype ",
    ".maxntid ",
    ".noreturn ",
    ".attribute",
    ".managed",
    ".debug_str",
    "function_name ",
    "inlined_at ",
    "generic",
    "mask",
    "WARP_SZ",
    "call ",
    "bra ",
    "add.s32 ",
    "ld.global.v4.u32 ",
    "mov ",
    "ret",
    "%r<10>",
    "%r1",
    "%r5 ",
    "%r9999999999",
    "a ",
    "b ",
    "p ",
    "l ",
    "%tid",
    "%tid.x",
    ".x",
    ".b0",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ";",
    ":",
    "@",
    "!",
    "~",
    "+",
    "-",
    "*",
    "/",
    "%",
    "&",
    "|",
    "^",
    "=",
    "?",
    "_",
    " 0 ",
    " 1 ",
    "18446744073709551615",
    "4294967296 ",
    "1.5",
    "0f3F800000",
    "0d3FF0000000000000",
    "\"x\"",
    "\n",
];

/// Returns text number `number`: the same one at each call.
pub(crate) fn text(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    match random.u8(0..4) {
        0 => soup(&mut random),
        1 => kernel_of_soup(&mut random),
        _ => mutated(&mut random),
    }
}

fn soup(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut text = b".version 8.0\n.target sm_80\n".to_vec();
    for _ in 0..random.usize(0..60) {
        text.extend_from_slice(random.choice(TOKENS).unwrap_or_default().as_bytes());
    }
    text
}

/// Returns tokens where statements are expected, with names that are declared.
fn kernel_of_soup(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut text =
        b".version 8.0 .target sm_80 .global .u32 a[4]; .func b(); .entry k(.param .u64 l) {
        .reg .b32 %r<10>; .reg .pred p; .reg .v4 .f32 v; "
            .to_vec();
    for _ in 0..random.usize(1..6) {
        text.extend_from_slice(b"mov ");
        for _ in 0..random.usize(1..8) {
            text.extend_from_slice(random.choice(TOKENS).unwrap_or_default().as_bytes());
        }
        text.extend_from_slice(b"; ");
    }
    text.extend_from_slice(b"}");
    text
}

fn mutated(random: &mut fastrand::Rng) -> Vec<u8> {
    let fixture = random.choice(FIXTURES).unwrap_or_default();
    let whole = random.u8(0..3) == 0;
    let mut text =
        if whole { fixture.as_bytes().to_vec() } else { part(fixture, random).into_bytes() };
    for _ in 0..random.usize(0..4) {
        let at = random.usize(0..=text.len());
        let end = (at + random.usize(0..40)).min(text.len());
        match random.u8(0..6) {
            0 if at < text.len() => text[at] ^= 1 << random.u8(0..8),
            1 if at < text.len() => text[at] = random.u8(..),
            2 => drop(text.drain(at..end)),
            3 => {
                let copy = text[at..end].to_vec();
                let to = random.usize(0..=text.len());
                text.splice(to..to, copy);
            }
            4 => text.truncate(at.max(text.len() / 2)),
            _ => {
                let token = random.choice(TOKENS).unwrap_or_default();
                text.splice(at..at, token.bytes());
            }
        }
    }
    text
}

/// Returns the head of a text and some of its lines, so that one input takes microseconds.
fn part(text: &str, random: &mut fastrand::Rng) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let declared = lines.iter().position(|line| line.contains(".target")).unwrap_or(0) + 1;
    let start = random.usize(declared..lines.len());
    // Often from the beginning of a function, so that its names are declared.
    let entry =
        lines[..start].iter().rposition(|line| line.contains(".entry") || line.contains(".func"));
    let start = if random.bool() { entry.unwrap_or(start) } else { start };
    let end = (start + random.usize(1..80)).min(lines.len());
    let mut part = String::from(".version 8.0\n.target sm_80\n");
    for line in &lines[start..end] {
        part.push_str(line);
        part.push('\n');
    }
    if random.bool() {
        part.push_str("ret; }\n");
    }
    part
}
