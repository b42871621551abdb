//! Kernels of every form of arithmetic have the results that a GPU has recorded.

use dmr_ptx_compare::device::{self, Image};
use dmr_ptx_compare::{features, recorded};

const PTX: &str = include_str!("fixtures/forms.ptx");
const RECORDED: &str = include_str!("fixtures/forms.txt");
const SEED: u64 = 1;

#[test]
fn each_form_of_arithmetic_has_the_results_that_a_gpu_has_recorded() {
    let kernels = features::kernels(PTX);
    let bytes = PTX.bytes().chain([0]).collect();
    let image = Image { kernels: kernels.clone(), bytes, jit_level: Some(4) };
    let records = device::run(&image, SEED).expect("a driver that loads the kernels");
    for record in &records {
        assert!(
            record.outcome.is_ok(),
            "{}, {}: {:?}",
            record.kernel,
            record.variant,
            record.outcome
        );
    }
    let expected = recorded::read(RECORDED).expect("lines of the form that is written");
    let missing: Vec<_> = kernels.iter().filter(|kernel| !expected.contains_key(*kernel)).collect();
    assert!(missing.is_empty(), "nothing is recorded of {missing:?}");
    let wrong = recorded::check(&records, SEED, &expected);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
