//! Random texts: the parser returns for each, and takes memory in proportion.

use crate::support::mutations::{FIXTURES, text};
use dmr_ptx::syntax::{Module, Operand, parse};

/// Checks that every id of a module is one of its own.
fn check(module: &Module) {
    for body in module.functions.iter().filter_map(|function| function.body.as_ref()) {
        let count = body.instructions.len() as u32;
        assert!(body.labels.iter().all(|label| label.instruction <= count));
        assert!(
            body.branch_targets
                .iter()
                .flatten()
                .all(|label| (label.0 as usize) < body.labels.len())
        );
        for instruction in &body.instructions {
            assert!((instruction.opcode.0 as usize) < module.opcodes.len());
            assert!(
                instruction.source.is_none_or(|source| (source.0 as usize) < module.sources.len())
            );
            for operand in &instruction.operands {
                match operand {
                    Operand::Register(register)
                    | Operand::Not(register)
                    | Operand::Element(register, _) => {
                        assert!((register.0 as usize) < body.registers.len());
                    }
                    Operand::Label(label) => assert!((label.0 as usize) < body.labels.len()),
                    Operand::Prototype(index) => assert!((*index as usize) < body.prototypes.len()),
                    Operand::BranchTargets(list) => {
                        assert!((*list as usize) < body.branch_targets.len())
                    }
                    Operand::CallTargets(list) => {
                        assert!((*list as usize) < body.call_targets.len())
                    }
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn every_fixture_is_ptx() {
    let mut kernels = Vec::new();
    for fixture in FIXTURES {
        let module = parse(fixture.as_bytes()).unwrap();
        check(&module);
        kernels.extend(
            module
                .functions
                .into_iter()
                .filter(|function| function.is_entry)
                .map(|kernel| kernel.name),
        );
    }
    kernels.sort();
    let expected = [
        "call",
        "copies",
        "forms",
        "halves",
        "lock",
        "product",
        "reduce",
        "saxpy",
        "table",
        "transpose",
        "widths",
    ];
    assert_eq!(kernels, expected);
}

#[test]
fn random_texts_are_parsed_or_refused() {
    let mut parsed = 0;
    for number in 0..40_000 {
        let text = text(number);
        if let Ok(module) = parse(&text) {
            check(&module);
            parsed += 1;
        }
    }
    // Most texts must get past their head, or the test tests little.
    assert!(parsed > 2_000, "{parsed} texts are PTX");
}
