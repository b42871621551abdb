//! Declarations of PTX text: what the module says about versions, variables, functions and source
//! lines.

use dmr_ptx::Type;
use dmr_ptx::syntax::{
    FunctionId, InitialAddress, InitialValue, Limits, Linkage, Module, Pointer, Space, Symbol,
    Variable, VariableId, parse,
};

fn module(text: &str) -> Module {
    parse(format!(".version 8.7\n.target sm_90a\n.address_size 64\n{text}").as_bytes()).unwrap()
}

/// Parses the declaration of the variable `x`, which may follow others.
fn variable(text: &str) -> Variable {
    let module = module(text);
    module.variables.into_iter().find(|variable| variable.name == "x").unwrap()
}

fn bytes(variable: &Variable) -> Vec<u8> {
    let mut bytes = vec![0; variable.bytes().unwrap() as usize];
    for initial in &variable.initial {
        let InitialValue::Bytes(run) = &initial.value else { panic!("an address") };
        bytes[initial.offset as usize..][..run.len()].copy_from_slice(run);
    }
    bytes
}

#[test]
fn the_head_of_a_text_is_read() {
    let text = ".version 8.10 .target sm_90a, texmode_independent, debug .address_size 32";
    let module = parse(text.as_bytes()).unwrap();
    assert_eq!(module.version, (8, 10));
    assert_eq!(module.target, "sm_90a");
    assert_eq!(module.target_options, ["texmode_independent", "debug"]);
    assert_eq!(module.address_bits, 32);
    assert_eq!(parse(b".version 1.4 .target sm_50").unwrap().address_bits, 64);
}

#[test]
fn the_text_ends_at_its_first_nul_byte() {
    let module = parse(b".version 7.0\n.target sm_50\n\0\xff.nonsense").unwrap();
    assert_eq!(module.version, (7, 0));
}

#[test]
fn comments_and_line_ends_of_every_kind_are_space() {
    let text =
        ".version 7.0\r\n.target/* \u{e9} .entry\n*/sm_50 // .func \u{e9}\r\n.global .u32\tx;//";
    assert_eq!(parse(text.as_bytes()).unwrap().variables[0].at.line, 4);
}

#[test]
fn a_variable_has_a_space_a_type_a_length_and_an_alignment() {
    let x = variable(".visible .global .align 16 .b8 x[24];");
    assert_eq!(
        (x.space, x.element, x.vector, x.count, x.align),
        (Space::Global, Type::B8, 1, Some(24), 16)
    );
    assert_eq!((x.bytes(), x.linkage), (Some(24), Linkage::Visible));
    let x = variable(".const .v4 .f32 x;");
    assert_eq!((x.space, x.vector, x.align, x.bytes()), (Space::Const, 4, 16, Some(16)));
    let x = variable(".shared .u16 x[19][19];");
    assert_eq!((x.count, x.align, x.bytes()), (Some(361), 2, Some(722)));
    let x = variable(".extern .shared .align 8 .b8 x[];");
    assert_eq!((x.linkage, x.count, x.bytes()), (Linkage::Extern, None, None));
    let x = variable(".global .attribute(.managed, .unified(0xAB, 19)) .s32 x;");
    assert!(x.managed);
    let x = variable(".global .u32 a, b[2], x;");
    assert_eq!(x.bytes(), Some(4));
    let x = variable(
        ".global .samplerref x = { addr_mode_0 = clamp_to_border, filter_mode = nearest };",
    );
    assert!(x.opaque);
    let x = variable(".global .u32 x[4 * (2 + 1)];");
    assert_eq!(x.count, Some(12));
}

#[test]
fn a_range_declares_variables_by_number() {
    let module = module(
        ".global .align 8 .u32 a<3>;
         .entry k() { .shared .f64 s<2>; .reg .u64 %a; mov.u64 %a, a2; mov.u64 %a, s1; }",
    );
    let names: Vec<&str> = module.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(names, ["a0", "a1", "a2"]);
    let body = module.functions[0].body.as_ref().unwrap();
    assert_eq!(body.variables[1].name, "s1");
    let symbol = |index: usize| body.instructions[index].operands[1].clone();
    let operand = |id: VariableId| dmr_ptx::syntax::Operand::Symbol(Symbol::Variable(id), 0);
    assert_eq!(
        (symbol(0), symbol(1)),
        (operand(VariableId::Module(2)), operand(VariableId::Body(1)))
    );
}

#[test]
fn initial_values_follow_the_dimensions() {
    assert_eq!(bytes(&variable(".global .u8 x[4] = {1, 2, 0x7F};")), [1, 2, 127, 0]);
    assert_eq!(
        bytes(&variable(".global .s16 x[][2] = { {-1, 0}, {}, {258} };")),
        [255, 255, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0]
    );
    assert_eq!(bytes(&variable(".global .u8 x[2][3] = {1, 2, 3, 4};")), [1, 2, 3, 4, 0, 0]);
    assert_eq!(bytes(&variable(".global .u8 x[][2] = {1, 2, 3};")), [1, 2, 3, 0]);
    assert_eq!(bytes(&variable(".global .v2 .u8 x[2] = { {1, 2}, {3, 4} };")), [1, 2, 3, 4]);
    assert_eq!(
        bytes(&variable(".const .f32 x[3] = { 1.0, 0fBF800000, 2 };"))
            .chunks(4)
            .collect::<Vec<_>>(),
        [1f32.to_le_bytes(), (-1f32).to_le_bytes(), 2f32.to_le_bytes()]
    );
    assert_eq!(bytes(&variable(".const .f64 x = 0d3FF8000000000000;")), 1.5f64.to_le_bytes());
    assert_eq!(bytes(&variable(".const .u32 x = ~0;")), [255; 4]);
    assert_eq!(bytes(&variable(".const .u64 x = -1;")), [255; 8]);
    assert_eq!(bytes(&variable(".const .u8 x[2] = { 0xFF(1000 + 546), 0xFF00(1546) };")), [10, 6]);
    // Values that follow each other are one run, so that a table costs about as much as its bytes.
    let x = variable(".global .u32 x[1000000][1000] = { {1, 2}, {3} };");
    assert_eq!(x.initial.iter().map(|initial| initial.offset).collect::<Vec<_>>(), [0, 4000]);
}

#[test]
fn an_initial_value_can_be_an_address_or_a_byte_of_one() {
    let all = u64::MAX;
    let y = Symbol::Variable(VariableId::Module(0));
    let f = Symbol::Function(FunctionId(0));
    let address = |symbol, addend, generic, mask, bytes| InitialAddress {
        symbol,
        addend,
        generic,
        mask,
        bytes,
    };
    for (text, expected) in [
        (".u64 x = y", address(y, 0, false, all, 8)),
        (".u32 x = y+4*2-1", address(y, 7, false, all, 4)),
        (".u64 x = generic(y)+8", address(y, 8, true, all, 8)),
        (".u64 x = generic(y+16)", address(y, 16, true, all, 8)),
        (".u64 x = f", address(f, 0, false, all, 8)),
        (".u8 x = 0xFF00(y+4)", address(y, 4, false, 0xFF00, 1)),
        (".u8 x = mask(0xFF, generic(y))", address(y, 0, true, 0xFF, 1)),
    ] {
        let x = variable(&format!(".global .u32 y; .func f(); .global {text};"));
        assert_eq!(x.initial[0].value, InitialValue::Address(expected), "{text}");
    }
}

#[test]
fn an_extern_declaration_and_a_definition_are_one_variable() {
    let module =
        module(".extern .global .u32 x; .visible .global .u32 x = 7; .extern .global .u32 x;");
    assert_eq!(module.variables.len(), 1);
    assert_eq!(
        (module.variables[0].linkage, bytes(&module.variables[0])[0]),
        (Linkage::Visible, 7)
    );
}

#[test]
fn a_kernel_has_parameters_and_limits() {
    let module = module(
        ".visible .entry saxpy(
            .param .u64 .ptr .global .align 16 saxpy_param_0,
            .param .f32 saxpy_param_1,
            .param .align 8 .b8 saxpy_param_2[24],
            .param .u64 .ptr saxpy_param_3
         ) .maxntid 256, 1, 1 .minnctapersm 2 .maxnreg 40 .reqnctapercluster 2, 4 .explicitcluster
           .pragma \"nounroll\";
         { .loc 1 2 3 ret; }
         .entry bare { ret; }
         .entry other() .reqntid 32 .maxnctapersm 3 .maxclusterrank 8 .blocksareclusters { ret; }",
    );
    let kernel = module.function("saxpy").unwrap();
    assert!(kernel.is_entry && kernel.linkage == Linkage::Visible);
    let sizes: Vec<_> = kernel.params.iter().map(|param| param.bytes().unwrap()).collect();
    assert_eq!(sizes, [8, 4, 24, 8]);
    assert_eq!(kernel.params[0].pointer, Some(Pointer { space: Some(Space::Global), align: 16 }));
    assert_eq!(kernel.params[2].align, 8);
    assert_eq!(kernel.params[3].pointer, Some(Pointer { space: None, align: 4 }));
    let limits = Limits {
        max_threads: Some([256, 1, 1]),
        min_blocks_per_multiprocessor: Some(2),
        max_registers: Some(40),
        required_cluster: Some([2, 4, 1]),
        explicit_cluster: true,
        ..Limits::default()
    };
    assert_eq!(kernel.limits, limits);
    assert!(module.function("bare").unwrap().params.is_empty());
    let limits = Limits {
        required_threads: Some([32, 1, 1]),
        max_blocks_per_multiprocessor: Some(3),
        max_cluster_blocks: Some(8),
        blocks_are_clusters: true,
        ..Limits::default()
    };
    assert_eq!(module.function("other").unwrap().limits, limits);
}

#[test]
fn a_function_can_be_declared_before_it_is_defined_and_have_an_alias() {
    let module = module(
        ".extern .func (.param .b32 retval) vprintf (.param .b64 format, .param .b64 list);
         .func (.param .align 4 .b8 r[8]) f(.param .b32 a, .param .b8 rest[]) ;
         .visible .func (.param .align 4 .b8 r[8]) g(.param .b32 a, .param .b8 rest[]) ;
         .func (.param .align 4 .b8 r[8]) f(.param .b32 a, .param .b8 rest[]) .noreturn .unique { ret; }
         .func .attribute(.unified(1, 2)) (.reg .u32 out) h (.reg .u32 in) .abi_preserve 24 { mov.u32 out, in; ret; }
         .alias g, f;",
    );
    let names: Vec<&str> = module.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["vprintf", "f", "g", "h"]);
    assert!(module.functions[0].body.is_none());
    let f = &module.functions[1];
    assert!(
        f.body.is_some()
            && f.no_return
            && f.returns[0].bytes() == Some(8)
            && f.params[1].count.is_none()
    );
    assert_eq!(module.functions[2].alias_of, Some(FunctionId(1)));
    let h = &module.functions[3];
    let input = h.params[0].register.unwrap();
    let output = h.returns[0].register.unwrap();
    let registers = &h.body.as_ref().unwrap().registers;
    assert_eq!(
        (&*registers[input.0 as usize].name, &*registers[output.0 as usize].name),
        ("in", "out")
    );
}

#[test]
fn an_instruction_has_the_line_that_it_was_compiled_from() {
    let module = module(
        ".entry k()
         {
            ret;
            .loc 1 11 28
            .loc 1 7 5, function_name $L__info_string0, inlined_at 1 11 28
            exit;
            .loc 2 9 1, function_name $L__info_string0+4, inlined_at 1 7 5
            trap;
         }
         .file 1 \"/src/fill.cu\"
         .file 2 \"/include\" \"b.cuh\", 1700000000, 4711
         .section .debug_abbrev { .b8 1 .b8 17, 2 .b64 $L__begin - $L__end }
         .section .debug_str
         {
         $L__info_string0:
         .b8 102,105,108,108,0
         }",
    );
    let body = module.functions[0].body.as_ref().unwrap();
    let source =
        |index: usize| body.instructions[index].source.map(|id| &module.sources[id.0 as usize]);
    assert!(source(0).is_none());
    let exit = source(1).unwrap();
    assert_eq!((exit.file, exit.line, exit.column), (1, 7, 5));
    let inlined = exit.inlined.as_ref().unwrap();
    assert_eq!(inlined.function.as_deref(), Some("fill"));
    assert_eq!(module.sources[inlined.at.0 as usize].line, 11);
    // The call was in a line that was inlined itself.
    let trap = source(2).unwrap().inlined.as_ref().unwrap();
    assert_eq!(trap.function.as_deref(), Some(""));
    assert!(module.sources[trap.at.0 as usize].inlined.is_some());
    assert_eq!(
        (module.file(1), module.file(2), module.file(3)),
        (Some("/src/fill.cu"), Some("b.cuh"), None)
    );
    assert_eq!(body.instructions[1].at.line, 9);
}
