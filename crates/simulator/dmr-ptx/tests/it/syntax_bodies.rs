//! Statements of PTX functions: registers, scopes, labels, operands, constant expressions.

use dmr_ptx::Type;
use dmr_ptx::syntax::{
    Address, Base, Body, FunctionId, Instruction, LabelId, Module, Operand, RegisterId, Selector,
    SpecialRegister, Symbol, VariableId, parse,
};

const SYMBOLS: &str = "
    .global .v2 .u32 table[8];
    .global .texref image;
    .func (.param .b32 out) helper(.param .b32 a, .param .b64 b);
    .func plain();";

fn module(text: &str) -> Module {
    parse(format!(".version 8.7\n.target sm_90a\n{SYMBOLS}\n{text}").as_bytes()).unwrap()
}

/// Parses the statements of a kernel with some registers.
fn body(text: &str) -> Body {
    let registers = ".reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .pred %p<4>, p, q; .reg .v4 .f32 v;";
    let module = module(&format!(
        ".entry k(.param .u64 n, .param .align 4 .b8 s[16]) {{ {registers} {text} }}"
    ));
    module.functions.into_iter().find_map(|function| function.body).unwrap()
}

/// Parses the operands of one instruction.
fn operands(text: &str) -> Vec<Operand> {
    let body = body(&format!("op {text};"));
    body.instructions[0].operands.to_vec()
}

fn operand(text: &str) -> Operand {
    let operands = operands(text);
    assert_eq!(operands.len(), 1, "{text}");
    operands.into_iter().next().unwrap()
}

fn integer(text: &str) -> i64 {
    match operand(text) {
        Operand::Integer(value) => value as i64,
        other => panic!("{text}: {other:?}"),
    }
}

const fn r(id: u32) -> Operand {
    Operand::Register(RegisterId(id))
}

const TABLE: Symbol = Symbol::Variable(VariableId::Module(0));

#[test]
fn a_register_gets_an_id_when_an_instruction_names_it() {
    let body = body("add.s32 %r7, %r2, %r7; mov.b64 %rd9, {%r2, %r7};");
    let names: Vec<&str> = body.registers.iter().map(|register| register.name.as_str()).collect();
    assert_eq!(names, ["%r7", "%r2", "%rd9"]);
    assert_eq!(body.registers[2].ty, Type::B64);
    assert_eq!(*body.instructions[0].operands, [r(0), r(1), r(0)]);
}

#[test]
fn an_opcode_is_its_dotted_parts_and_is_kept_once() {
    let module = module(
        ".entry k() { .reg .b32 a; ld.global.nc.L2::128B.v4.u32 {a,a,a,a}, [a]; ret; tex.2d .f32 a, a; ret; }",
    );
    assert_eq!(module.opcodes.len(), 3);
    assert_eq!(
        (&*module.opcodes[0].name, &module.opcodes[0].modifiers[..]),
        ("ld", &["global", "nc", "L2::128B", "v4", "u32"].map(String::from)[..])
    );
    assert_eq!(module.opcodes[2].modifiers, ["2d", "f32"]);
    let instructions = &module.functions.last().unwrap().body.as_ref().unwrap().instructions;
    assert_eq!(instructions[1].opcode, instructions[3].opcode);
    assert_eq!((instructions[1].at.line, instructions[1].at.column), (8, 72));
}

#[test]
fn a_guard_may_be_negated() {
    let body = body("@%p1 bra done; @!%p1 ret; done:");
    let guards: Vec<_> =
        body.instructions.iter().map(|at: &Instruction| at.guard.unwrap().negated).collect();
    assert_eq!(guards, [false, true]);
    assert_eq!(
        (body.instructions[0].operands[0].clone(), body.labels[0].instruction),
        (Operand::Label(LabelId(0)), 2)
    );
}

#[test]
fn an_inner_scope_has_registers_variables_and_labels_of_its_own() {
    let body = body(
        "{ .reg .f64 %r1; .shared .b8 x[4]; again: mov.f64 %r1, 1.0; @p bra again; @p bra done; done: }
         { .reg .f32 %r1; .shared .b8 x[8]; again: mov.f32 %r1, 1.0; @p bra again; @p bra done; done: }
         add.s32 %r1, %r1, 1;",
    );
    let types =
        body.registers.iter().filter(|register| register.name == "%r1").map(|register| register.ty);
    assert_eq!(types.collect::<Vec<_>>(), [Type::F64, Type::F32, Type::B32]);
    assert_eq!(body.variables.iter().map(|x| x.bytes()).collect::<Vec<_>>(), [Some(4), Some(8)]);
    let targets: Vec<u32> = body
        .instructions
        .iter()
        .filter_map(|instruction| match instruction.operands[..] {
            [Operand::Label(label)] => Some(body.labels[label.0 as usize].instruction),
            _ => None,
        })
        .collect();
    assert_eq!(targets, [0, 3, 3, 6]);
}

#[test]
fn an_inner_range_hides_a_register_of_its_own_name() {
    let body = body(
        ".reg .b32 x1; { .reg .f64 x<2>; mov x1, 1; } mov x1, 1; { .reg .f32 x<1>; mov x1, 1; }",
    );
    assert_eq!(
        body.registers.iter().map(|register| register.ty).collect::<Vec<_>>(),
        [Type::F64, Type::B32]
    );
}

#[test]
fn a_label_means_that_of_the_innermost_scope_also_where_it_follows() {
    let body = body(
        "done: { bra done; done: ret; } bra done; { bra end; } end: { { bra end; } ret; end: }",
    );
    let target = |index: usize| match body.instructions[index].operands[0] {
        Operand::Label(label) => body.labels[label.0 as usize].instruction,
        ref other => panic!("{other:?}"),
    };
    assert_eq!((target(0), target(2), target(3)), (1, 0, 4));
    // The scope around the use declares it later.
    assert_eq!(target(4), 6);
}

#[test]
fn operands_of_every_form_are_read() {
    let address = |base, offset| Operand::Address(Address { base, offset });
    let register = Base::Register(RegisterId(0));
    for (text, expected) in [
        ("%r1", r(0)),
        ("7", Operand::Integer(7)),
        ("-7", Operand::Integer(-7i64 as u64)),
        ("0f3F800000", Operand::Float32(0x3F80_0000)),
        ("-0f3F800000", Operand::Float32(0xBF80_0000)),
        ("1.5", Operand::Float64(1.5f64.to_bits())),
        ("0d3FF0000000000000", Operand::Float64(1f64.to_bits())),
        ("WARP_SZ", Operand::Integer(32)),
        ("WARP_SZ*2", Operand::Integer(64)),
        ("%tid.x", Operand::Special(SpecialRegister::Tid(0))),
        ("%nctaid.z", Operand::Special(SpecialRegister::Nctaid(2))),
        ("%clock64", Operand::Special(SpecialRegister::Clock64)),
        ("%envreg31", Operand::Special(SpecialRegister::Envreg(31))),
        ("%pm3_64", Operand::Special(SpecialRegister::Pm64(3))),
        ("[%rd1]", address(register, 0)),
        ("[%rd1+16]", address(register, 16)),
        ("[%rd1+-16]", address(register, -16)),
        ("[%rd1-4*2+1]", address(register, -7)),
        ("[table+8]", address(Base::Symbol(TABLE), 8)),
        ("[n]", address(Base::Symbol(Symbol::Variable(VariableId::Param(0))), 0)),
        ("[s+12]", address(Base::Symbol(Symbol::Variable(VariableId::Param(1))), 12)),
        ("[4096]", address(Base::Absolute, 4096)),
        ("table", Operand::Symbol(TABLE, 0)),
        ("table+4", Operand::Symbol(TABLE, 4)),
        ("table[3]", Operand::Symbol(TABLE, 24)),
        ("helper", Operand::Symbol(Symbol::Function(FunctionId(0)), 0)),
        ("{%r1, _, 3}", Operand::Vector([r(0), Operand::Sink, Operand::Integer(3)].into())),
        ("v", r(0)),
        ("v.w", Operand::Element(RegisterId(0), Selector::Element(3))),
        ("v.g", Operand::Element(RegisterId(0), Selector::Element(1))),
        ("%r1.b2", Operand::Element(RegisterId(0), Selector::Byte(2))),
        ("%r1.h1", Operand::Element(RegisterId(0), Selector::Half(1))),
        ("-%r1", Operand::Minus(Box::new(r(0)))),
        ("!p", Operand::Not(RegisterId(0))),
        ("p|q", Operand::Pair(Box::new([r(0), r(1)]))),
        ("p|_", Operand::Pair(Box::new([r(0), Operand::Sink]))),
        ("_|p", Operand::Pair(Box::new([Operand::Sink, r(0)]))),
        ("_", Operand::Sink),
    ] {
        assert_eq!(operand(text), expected, "{text}");
    }
    let image = address(Base::Symbol(Symbol::Variable(VariableId::Module(1))), 0);
    let coordinates = Operand::Vector([r(0), r(1)].into());
    assert_eq!(operand("[image, {%r0, %r1}]"), Operand::Indexed([image, coordinates].into()));
}

#[test]
fn constant_expressions_have_the_types_of_the_isa() {
    for (text, expected) in [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("2-3-4", -5),
        ("7%2", 1),
        ("-7/2", -3),
        ("-1 < 0", 1),
        // One unsigned operand makes the comparison an unsigned one.
        ("-1 < 0U", 0),
        ("-8 >> 1", -4),
        ("(.u64)-8 >> 1", 0x7FFF_FFFF_FFFF_FFFC),
        ("1 << 64", 0),
        ("1 << 63", i64::MIN),
        ("~0 == 0xFFFFFFFFFFFFFFFF", 1),
        ("!5 || 3 && 0", 0),
        ("6 & 3 | 8 ^ 1", 11),
        ("1 ? 2 : 3", 2),
        ("0 ? 2 : 1 ? 4 : 5", 4),
        ("1.5 < 2.5", 1),
        ("0x7FFFFFFFFFFFFFFF + 1", i64::MIN),
        ("(.s64)0xFFFFFFFFFFFFFFFF / 2", 0),
        ("-9223372036854775807 - 1", i64::MIN),
        ("017 + 0b11", 18),
        ("+3", 3),
    ] {
        assert_eq!(integer(text), expected, "{text}");
    }
    assert_eq!(operand("1.0/4.0"), Operand::Float64(0.25f64.to_bits()));
    assert_eq!(operand("1 ? 0.5 : 2.0"), Operand::Float64(0.5f64.to_bits()));
}

#[test]
fn a_call_has_the_same_operands_however_it_is_written() {
    let none = || Operand::List(Box::default());
    let plain = Operand::Symbol(Symbol::Function(FunctionId(1)), 0);
    let body = body(
        "{ .param .b32 a; .param .b64 b; .param .b32 out;
           proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b64 _) .noreturn;
           list: .calltargets helper, plain;
           call.uni (out), helper, (a, b);
           call plain;
           call plain, ();
           call (out), %rd1, (a, b), proto;
           call (out), %rd1, (a, b), list;
           call.uni %rd1, later;
           later: .callprototype _ ();
         }",
    );
    let calls: Vec<&[Operand]> = body.instructions.iter().map(|call| &*call.operands).collect();
    let of_body = |index| Operand::Symbol(Symbol::Variable(VariableId::Body(index)), 0);
    let helper = Operand::Symbol(Symbol::Function(FunctionId(0)), 0);
    let returns = Operand::List([of_body(2)].into());
    let arguments = Operand::List([of_body(0), of_body(1)].into());
    assert_eq!(calls[0], [returns.clone(), helper, arguments.clone()]);
    assert_eq!(calls[1], [none(), plain.clone(), none()]);
    assert_eq!(calls[2], [none(), plain, none()]);
    assert_eq!(calls[3], [returns.clone(), r(0), arguments.clone(), Operand::Prototype(0)]);
    assert_eq!(calls[4], [returns, r(0), arguments, Operand::CallTargets(0)]);
    assert_eq!(calls[5], [none(), r(0), none(), Operand::Prototype(1)]);
    assert!(body.prototypes[0].no_return && body.prototypes[0].params.len() == 2);
    assert_eq!(body.call_targets[0], [FunctionId(0), FunctionId(1)]);
}

#[test]
fn a_branch_table_names_labels_before_and_behind_it() {
    let body = body(
        "a: ret; ts: .branchtargets a, b, a; brx.idx %r1, ts; b: brx.idx.uni %r1, us; us: .branchtargets b;",
    );
    assert_eq!(body.branch_targets, [vec![LabelId(0), LabelId(1), LabelId(0)], vec![LabelId(1)]]);
    assert_eq!(body.instructions[1].operands[1], Operand::BranchTargets(0));
    assert_eq!(body.instructions[2].operands[1], Operand::BranchTargets(1));
}

#[test]
fn instructions_of_recent_architectures_are_read() {
    let text = "
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0,%r1,%r2,%r3}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%r0,%r1,%r2,%r3};
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r0,%r1,%r2,%r3}, %rd1, %rd2, p, 1, -1, 0, 1;
        cp.async.cg.shared.global.L2::128B [%rd1], [%rd2+16], 16, %r1;
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.im2col [%rd1], [%rd2, {%r1,%r2}], [%rd3], {%r4};
        mbarrier.try_wait.parity.shared::cta.b64 p, [%rd1], %r1, %r2;
        shfl.sync.idx.b32 %r1|p, %r2, %r3, 0x1f, 0xffffffff;
        setp.lt.and.f32 p|q, %r1, %r2, !%p1;
        atom.global.acq_rel.gpu.cas.b128 %rd1, [%rd2], %rd3, %rd4;
        ld.global.v8.f32 {%r0,%r1,%r2,%r3,%r4,%r5,_,_}, [%rd1];
        vadd.s32.u32.s32.sat %r1, %r2.b0, -%r3.h1, %r4;
        fence.proxy.async.shared::cta;
        tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, p;
        setmaxnreg.inc.sync.aligned.u32 232;
        griddepcontrol.wait;
        createpolicy.fractional.L2::evict_last.b64 %rd1, 1.0;";
    assert_eq!(body(text).instructions.len(), 15);
}
