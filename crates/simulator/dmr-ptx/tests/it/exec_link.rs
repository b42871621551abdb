//! Texts that are linked: calls and variables across them, and what does not fit together.

use crate::exec_memory::{BASE, Buffer, HEADER};
use dmr_ptx::{Launch, LoadError, Program};

fn link(texts: &[&str]) -> Result<Program, LoadError> {
    let texts: Vec<String> = texts.iter().map(|text| format!("{HEADER}{text}")).collect();
    Program::link(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Calls `more` of the other text and adds variables of both; `.loc` names a file of its own.
const KERNEL: &str = ".file 1 \"kernel.cu\"
    .extern .global .align 4 .u32 there;
    .global .align 4 .u32 own = 100;
    .extern .func (.param .b32 result) more(.param .b32 of);
    .func (.param .b32 result) hidden(.param .b32 of) { st.param.b32 [result], 7; ret; }
    .visible .entry add(.param .u64 out) {
        .reg .b32 %r<9>; .reg .b64 %d<9>; .param .b32 of; .param .b32 result;
        ld.global.u32 %r1, [there]; ld.global.u32 %r2, [own];
        st.param.b32 [of], %r1;
        call (result), more, (of);
        ld.param.b32 %r3, [result];
        .loc 1 20 1
        add.s32 %r4, %r2, %r3;
        ld.param.u64 %d1, [out]; st.global.u32 [%d1], %r4;
        ret;
    }";

/// Has a function and a variable of its own with the names of the other text's.
const MORE: &str = ".file 1 \"more.cu\"
    .global .align 4 .u32 own = 5000;
    .visible .global .align 4 .u32 there = 3;
    .global .align 8 .u64 place[2] = {0, there};
    .func (.param .b32 result) hidden(.param .b32 of) {
        .reg .b32 %r<3>; ld.param.b32 %r1, [of]; add.s32 %r2, %r1, 20; st.param.b32 [result], %r2; ret;
    }
    .visible .func (.param .b32 result) more(.param .b32 of) {
        .reg .b32 %r<5>; .param .b32 x; .param .b32 y;
        ld.param.b32 %r1, [of];
        st.param.b32 [x], %r1;
        .loc 1 7 1
        call (y), hidden, (x);
        ld.param.b32 %r2, [y]; ld.global.u32 %r3, [own]; add.s32 %r4, %r2, %r3;
        st.param.b32 [result], %r4;
        ret;
    }";

#[test]
fn a_function_and_a_variable_of_another_text_are_used() {
    for texts in [[KERNEL, MORE], [MORE, KERNEL]] {
        let program = link(&texts).unwrap();
        let mut memory = Buffer::zeroed(64);
        let mut globals = Vec::new();
        for (index, global) in program.globals().iter().enumerate() {
            let start = 16 + 16 * index;
            globals.push(BASE + start as u64);
            for initial in &global.initial {
                let at = start + initial.offset as usize;
                memory.0[at..at + initial.bytes.len()].copy_from_slice(&initial.bytes);
            }
            for relocation in &global.relocations {
                assert_eq!(program.globals()[relocation.global].name, "there");
            }
        }
        assert_eq!(program.globals().len(), 4, "two variables `own`, one `there`");
        let kernel = program.kernel("add").unwrap();
        assert_eq!(kernel.refusal, None);
        let mut launch = Launch::new(&program, kernel, [1; 3], [1; 3]);
        let out = BASE.to_le_bytes();
        launch.params = &out;
        launch.globals = &globals;
        launch.run(&mut memory).unwrap();
        assert_eq!(memory.words()[0], 100 + 3 + 20 + 5000);
    }
}

#[test]
fn a_fault_names_the_line_and_the_source_of_its_own_text() {
    let trap = MORE.replace("call (y), hidden, (x);", "trap;");
    let program = link(&[KERNEL, &trap]).unwrap();
    let kernel = program.kernel("add").unwrap();
    let mut launch = Launch::new(&program, kernel, [1; 3], [1; 3]);
    let out = BASE.to_le_bytes();
    let globals = [1, 2, 3, 4].map(|n| BASE + 16 * n);
    launch.params = &out;
    launch.globals = &globals;
    let fault = launch.run(&mut Buffer::zeroed(64)).unwrap_err();
    assert_eq!((fault.place.function.as_str(), fault.place.line), ("more", 16));
    let source = fault.place.source.unwrap();
    assert_eq!((source.file.as_str(), source.line), ("more.cu", 7));
}

#[test]
fn a_kernel_that_uses_what_no_text_defines_is_refused_with_its_line() {
    for (line, missing) in [
        (11, MORE.replace(".visible .global .align 4 .u32 there = 3;", "").replace("there}", "0}")),
        (13, String::new()),
    ] {
        let only = KERNEL.replace("[there]", "[own]");
        let program = if missing.is_empty() { link(&[&only]) } else { link(&[KERNEL, &missing]) };
        let refusal = program.unwrap().kernel("add").unwrap().refusal.clone();
        let Some(LoadError::Unsupported { line: found, function, .. }) = refusal else {
            panic!("{refusal:?}");
        };
        assert_eq!((found, function.as_str()), (line, "kernel `add`"));
    }
}

#[test]
fn two_definitions_of_a_name_are_refused_and_a_weak_one_gives_way() {
    let visible = ".visible .global .u32 x = 1; .visible .func f() { ret; }";
    let weak = ".weak .global .u32 x = 2; .weak .func f() { ret; }";
    let value =
        |texts: &[&str]| link(texts).map(|program| program.globals()[0].initial[0].bytes[0]);
    assert_eq!(value(&[visible, weak]), Ok(1));
    assert_eq!(value(&[weak, visible]), Ok(1));
    assert_eq!(value(&[weak, weak]), Ok(2));
    for (second, name) in [
        (visible, "x"),
        (".visible .func f() { ret; }", "f"),
        (".extern .global .u64 x;", "x"),
        (".extern .func f(.param .b32 n);", "f"),
    ] {
        let error = link(&[visible, second]).unwrap_err();
        let LoadError::Link(error) = error else { panic!("{error}") };
        assert_eq!(error.name, name);
    }
}

#[test]
fn a_fault_in_an_inlined_function_names_the_line_of_the_outermost_call() {
    let inlined = ".loc 1 40 5
        .loc 2 12 3, function_name $L__info_string0, inlined_at 1 40 5
        .loc 2 9 1, function_name $L__info_string0, inlined_at 2 12 3
        trap;";
    let more = MORE.replace("call (y), hidden, (x);", inlined) + "\n.file 2 \"helper.cuh\"";
    let program = link(&[KERNEL, &more]).unwrap();
    let kernel = program.kernel("add").unwrap();
    let mut launch = Launch::new(&program, kernel, [1; 3], [1; 3]);
    let out = BASE.to_le_bytes();
    let globals = [1, 2, 3, 4].map(|n| BASE + 16 * n);
    launch.params = &out;
    launch.globals = &globals;
    let fault = launch.run(&mut Buffer::zeroed(64)).unwrap_err();
    let source = fault.place.source.unwrap();
    assert_eq!(source.to_string(), "helper.cuh:9, inlined at more.cu:40");
}
