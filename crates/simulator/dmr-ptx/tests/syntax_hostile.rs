//! Text that is not PTX, or meant to exhaust the parser: an error with its place, in bounded memory
//! and time.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dmr_ptx::syntax::{Module, ParseError, parse};

/// The bytes that the parser takes for each byte of text, at most: beside 1 MiB, and the variables
/// of ranges.
const MULTIPLE: usize = 100;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One at a time: the counters are the process's.
static ALONE: Mutex<()> = Mutex::new(());

const HEAD: &str = ".version 8.0\n.target sm_80\n";

/// Parses a text, and checks what it takes against its length.
fn bounded(what: &str, text: &[u8]) -> Result<Module, ParseError> {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let result = parse(text);
    let time = start.elapsed();
    let taken = PEAK.load(Ordering::Relaxed) - before;
    assert!(
        taken <= MULTIPLE * text.len() + (1 << 20),
        "{what}: {taken} bytes for {} bytes of text",
        text.len()
    );
    // A step for each pair of bytes would take hours.
    assert!(time < Duration::from_secs(60), "{what}: {time:?}");
    result
}

#[test]
fn a_wrong_text_is_refused_with_its_place() {
    for (text, line, column, message) in [
        ("", 3, 1, "the text has no `.target`"),
        (".global .u32 x", 3, 15, "expected `;`, found the end of the text"),
        (".global .b8 x[18446744073709551615];", 3, 15, "larger than"),
        (".global .b8 x[18446744073709551616];", 3, 15, "too large for 64 bits"),
        (".global .u32 x[1048576][1048576];", 3, 14, "larger than"),
        (".global .f64 x[1099511627776];", 3, 14, "larger than"),
        (".global .u32 x[-1];", 3, 16, "larger than"),
        (".global .u32 x[];", 3, 14, "no length"),
        (".global .u32 x[2][];", 3, 19, "expected a constant"),
        (".global .align 3 .u32 x;", 3, 16, "power of two"),
        (".global .u32 .f32 x;", 3, 19, "`.f32` is not expected"),
        (".global .v4 .b128 x;", 3, 19, "at most 32 bytes"),
        (".global .pred x;", 3, 15, "a predicate is a register"),
        (".reg .u32 x;", 3, 1, "expected a variable"),
        (".global .u32 x; .global .u32 x;", 3, 30, "`x` is declared already"),
        (".global .u32 x; .func x();", 3, 23, "`x` is declared already"),
        (".global .u8 x = 256;", 3, 17, "out of the range"),
        (".global .u8 x = -129;", 3, 17, "out of the range"),
        (".global .u32 x = 1.5;", 3, 18, "an integer is initialised by an integer"),
        (".global .u32 x[2] = {1, 2, 3};", 3, 28, "more values than elements"),
        (".global .u32 x[1][2] = {1, 2, 3};", 3, 31, "more values than elements"),
        (".global .u32 x[2][0] = {1};", 3, 25, "more values than elements"),
        (".global .u32 x = {1};", 3, 18, "expected a constant"),
        (".global .u32 x[2] = 1;", 3, 21, "expected `{`"),
        (".global .u32 x = y;", 3, 18, "`y` is not declared"),
        (".global .u32 y; .global .u8 x = y;", 3, 33, "if it has a mask"),
        (".global .u32 x = 1/0;", 3, 21, "division by zero"),
        (".global .u32 x = 1.0 % 2.0;", 3, 27, "takes integers"),
        (".global .u32 x = 1 + 2.0;", 3, 25, "cannot be combined"),
        (".global .u32 a<65537>;", 3, 14, "ranges declare more than"),
        (".entry k() .nonsense { ret; }", 3, 22, "`.nonsense` is not a directive"),
        (".entry k() .maxntid 4294967296 { ret; }", 3, 21, "out of range"),
        (".entry k(.global .u32 x) { ret; }", 3, 23, "a parameter is declared with"),
        (".entry k() { ret; } .entry k() { ret; }", 3, 28, "`k` is defined already"),
        (".func f(.param .b32 a); .func f(.param .b64 a);", 3, 31, "with other parameters"),
        (".func f(); .alias f, f;", 3, 19, "no alias itself"),
        (".alias f, g;", 3, 8, "`f` is not declared"),
        (".entry k() { ret;", 3, 18, "has no end"),
        (".entry k() { ret }", 3, 18, "expected an operand, found `}`"),
        (".entry k() { } }", 3, 16, "expected a directive"),
        (".entry k() { add.s32 %r1, 1, 2; }", 3, 22, "`%r1` is not declared"),
        (".entry k() { bra nowhere; }", 3, 18, "`nowhere` is not declared"),
        (".entry k() { { l: ret; } bra l; }", 3, 30, "`l` is not declared"),
        (".entry k() { @%p ret; }", 3, 15, "`%p` is not declared"),
        (".entry k() { l: ret; l: ret; }", 3, 22, "`l` is declared already"),
        (".entry k() { .reg .b32 %r<10>; add %r10; }", 3, 36, "`%r10` is not declared"),
        (".entry k() { .reg .b32 %r<10>, %r5; }", 3, 32, "`%r5` is declared already"),
        (".entry k() { .reg .b32 %r5, %r<10>; add %r5; }", 3, 41, "`%r5` is declared twice"),
        (".entry k() { .reg .b32 %r<4294967296>; }", 3, 27, "no number of variables"),
        (".entry k() { .reg .v2 .f32 v; mov v.z; }", 3, 35, "the register has no `.z`"),
        (".entry k() { ld [x]; }", 3, 18, "`x` is not declared"),
        (".entry k() { call f; }", 3, 19, "`f` is not declared"),
        (".entry k() { .reg .b32 r; call 7; }", 3, 32, "expected a function or a register"),
        (".entry k() { x: .branchtargets y; }", 3, 32, "`y` is not declared"),
        (".pragma nounroll;", 3, 9, "expected a string"),
        (".pragma \"x;\n", 3, 9, "this string has no end"),
        ("/* x", 3, 1, "this comment has no end"),
        ("\u{e9}", 3, 1, "is not a character of PTX"),
        (".global .u32 x = 08;", 3, 18, "not a number"),
        (".global .f32 x = 0f123;", 3, 18, "8 hexadecimal digits"),
        (".section .debug_str { .b8 1", 3, 28, "this section has no end"),
    ] {
        let head = if text.is_empty() { ".version 8.0\n\n" } else { HEAD };
        let error = parse(format!("{head}{text}").as_bytes()).unwrap_err();
        assert_eq!((error.at.line, error.at.column), (line, column), "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }
    let error = parse(b".version 8.0\n.target sm_80 // \xff").unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 18: the text is not UTF-8");
    assert_eq!(
        parse(b"int main() {}").unwrap_err().to_string(),
        "line 1, column 1: expected `.version`, found `int`"
    );
    assert!(parse(b"").is_err());
}

#[test]
fn nesting_without_end_is_an_error() {
    let _alone = ALONE.lock();
    for (what, open) in [
        ("parentheses", ".global .u32 x = ("),
        ("negations", ".global .u32 x = ~"),
        ("conditions", ".global .u32 x = 1 ? 1 :"),
        ("casts", ".global .u32 x = (.u64)"),
        ("vectors", ".entry k() { op {"),
        ("brackets", ".entry k() { op [0, "),
        ("signs", ".entry k() { .reg .b32 r; op - - "),
        ("dimensions", ".global .u32 x[1"),
        ("scopes", ".entry k() { {"),
        ("initialisers", ".global .u32 x[1][1][1] = {"),
    ] {
        let repeated = match what {
            "conditions" => "1 ? 1 :",
            "casts" => "(.u64)",
            "brackets" => "[0, ",
            "dimensions" => "][1",
            _ => &open[open.len() - 1..],
        };
        let repeated = if what == "signs" { "- " } else { repeated };
        let text = format!("{HEAD}{open}{}", repeated.repeat(1_000_000));
        let error = bounded(what, text.as_bytes()).unwrap_err();
        // At the limit, not at the end of the text.
        assert!(error.at.column < 1000, "{what}: {error}");
    }
}

#[test]
fn a_megabyte_of_anything_takes_bounded_memory_and_time() {
    const BYTES: usize = 1_000_000;
    let _alone = ALONE.lock();
    let fill = |unit: &str| unit.repeat(BYTES / unit.len());
    let numbered = |unit: &dyn Fn(usize) -> String| {
        let mut text = String::with_capacity(BYTES);
        let mut number = 0;
        while text.len() < BYTES {
            text.push_str(&unit(number));
            number += 1;
        }
        text
    };
    let kernel = |body: &str| format!("{HEAD}.entry k() {{ .reg .b32 %r<4294967295>, a; {body} }}");
    for (what, valid, text) in [
        ("spaces", true, format!("{HEAD}{}", fill(" "))),
        ("line ends", true, format!("{HEAD}{}", fill("\n"))),
        ("comments", true, format!("{HEAD}{}", fill("/**/"))),
        ("an open comment", false, format!("{HEAD}/*{}", fill("*"))),
        ("a long name", false, format!("{HEAD}{}", fill("a"))),
        ("a long number", false, format!("{HEAD}.global .u32 x = {}", fill("1"))),
        ("a long fraction", true, format!("{HEAD}.global .f64 x = 0.{};", fill("3"))),
        ("a long string", true, format!("{HEAD}.pragma \"{}\";", fill("x"))),
        ("a long opcode", true, kernel(&format!("op{};", fill(".x")))),
        ("opcodes", true, kernel(&numbered(&|n| format!("i{n};")))),
        ("instructions", true, kernel(&fill("a;"))),
        ("registers", true, kernel(&numbered(&|n| format!("a %r{n};")))),
        ("operands", true, kernel(&format!("op a{};", fill(",a")))),
        ("constants", true, kernel(&format!("op 1{};", fill("+1")))),
        ("scopes one after the other", true, kernel(&fill("{}"))),
        ("scopes that hide a name", true, kernel(&fill("{.reg .b32 a;a a;}"))),
        ("labels", true, kernel(&numbered(&|n| format!("l{n}:")))),
        ("labels behind their uses", true, kernel(&numbered(&|n| format!("{{bra l{n};}}l{n}:")))),
        (
            "labels of a deep scope",
            false,
            kernel(&format!("{}{}", "{".repeat(250), fill("bra l;"))),
        ),
        ("branch tables", true, kernel(&format!("l: t: .branchtargets l{};", fill(",l")))),
        (
            "branch tables of one",
            true,
            kernel(&format!("l: {}", numbered(&|n| format!("t{n}:.branchtargets l;")))),
        ),
        ("prototypes", true, kernel(&numbered(&|n| format!("p{n}:.callprototype _;")))),
        ("ranges", true, kernel(&numbered(&|n| format!(".reg .b32 a{n}x<9>;")))),
        (
            "ranges within each other",
            false,
            kernel(&numbered(&|n| format!("{{.reg .b32 %r<{n}>;a %r99999;"))),
        ),
        ("variables", true, format!("{HEAD}{}", numbered(&|n| format!(".global .u8 x{n};")))),
        (
            "variables of a list",
            true,
            format!("{HEAD}.global .u8 x{};", numbered(&|n| format!(",x{n}"))),
        ),
        ("functions", true, format!("{HEAD}{}", numbered(&|n| format!(".func f{n};")))),
        ("definitions", true, format!("{HEAD}{}", numbered(&|n| format!(".func f{n}{{}}")))),
        ("parameters", true, format!("{HEAD}.func f(.param .b8 _{});", fill(",.param .b8 _"))),
        ("declarations of one function", true, format!("{HEAD}{}", fill(".func f;"))),
        ("bytes", true, format!("{HEAD}.global .u8 x[] = {{1{}}};", fill(",1"))),
        ("bytes apart", true, format!("{HEAD}.global .u8 x[][2] = {{{{1}}{}}};", fill(",{1}"))),
        (
            "addresses",
            true,
            format!("{HEAD}.global .u32 y; .global .u32 x[] = {{y{}}};", fill(",y")),
        ),
        ("source lines", true, kernel(&numbered(&|n| format!(".loc 1 {n} 0\n")))),
        (
            "inlined lines",
            true,
            kernel(&numbered(&|n| format!(".loc 1 {n} 0, function_name f, inlined_at 1 1 1\n"))),
        ),
        ("files", true, format!("{HEAD}{}", numbered(&|n| format!(".file {n} \"\"\n")))),
        (
            "section",
            true,
            format!("{HEAD}.section .debug_str {{ {} }}", numbered(&|n| format!("l{n}: .b8 1\n"))),
        ),
    ] {
        assert_eq!(bounded(what, text.as_bytes()).is_ok(), valid, "{what}");
    }
}

#[test]
fn a_long_name_of_an_inlined_function_is_kept_once() {
    let _alone = ALONE.lock();
    let lines: String =
        (0..20_000).map(|n| format!(".loc 1 {n} 0, function_name f, inlined_at 1 1 1\n")).collect();
    let name = "65,".repeat(1_000_000);
    let text =
        format!("{HEAD}.entry k() {{ {lines} ret; }} .section .debug_str {{ f: .b8 {name}0 }}");
    bounded("a long name", text.as_bytes()).unwrap();
}
