//! The results of a GPU, form by form: the interpreter has the same ones.
//!
//! `fixtures/hardware.txt` has a line a form that an NVIDIA H200 executed (driver 580.159): the
//! digest of its results over a quarter of the rows, or for an approximation some of its results.
//! To make such a file: `cargo run --release -p dmr-ptx --example hardware`.

use std::collections::BTreeMap;

use crate::hardware::{self, Form, digest};
use crate::support::forms as run;

const FIXTURE: &str = include_str!("../fixtures/hardware.txt");

/// Returns what differs from a line of the fixture: a digest, or results of an approximation with a
/// `~` before them. A form with a `?` before these may be refused.
fn difference(form: &Form, known: &str) -> Option<String> {
    let words = match run::results(form, hardware::SAMPLED) {
        Ok(words) => words,
        Err(_) if known.starts_with('?') => return None,
        Err(why) => return Some(format!("{}: {why}", form.name)),
    };
    let known = known.trim_start_matches('?');
    let Some(values) = known.strip_prefix('~') else {
        let found = format!("{:016x}", digest(words.iter().copied()));
        return (found != known).then(|| format!("{}: other results than the GPU's", form.name));
    };
    let sampled = words.iter().step_by((words.len() / 16).max(1));
    sampled.zip(values.split(',')).find_map(|(&found, value)| {
        let value = u64::from_str_radix(value, 16).unwrap_or(!found);
        let far = !run::is_near(form, found, value);
        far.then(|| format!("{}: {found:x} is not near {value:x}", form.name))
    })
}

#[test]
fn each_instruction_has_the_results_of_a_gpu() {
    let known: BTreeMap<&str, &str> = FIXTURE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(digest, name)| (name, digest))
        .collect();
    let forms: Vec<Form> =
        hardware::forms().into_iter().filter(|form| known.contains_key(&*form.name)).collect();
    assert_eq!(forms.len(), known.len(), "forms of the fixture that are not in the list");
    let found = run::on_all(&forms, |form| difference(form, known[&*form.name]));
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(found.is_empty(), "{} forms differ:\n{}", found.len(), found.join("\n"));
}
