//! W7: W1, W3 and W5 again through the layers, each alone and all of them.
//!
//! The layers would drown in what a driver takes, so W1 and W3 also run on a base that takes next
//! to nothing, with as many threads as W3 has. W5 needs memory, and a driver to order its work.

use serde_json::{Value, json};

use super::bursts::Bursts;
use super::{Plan, cross_stream, told_all};
use crate::sequence::{self, MULTISTREAM_SEED, Sequence};
use crate::stacks::{self, BARE};
use crate::{Line, Machine};

const WORKLOAD: &str = "stack";

/// Operations of one thread on one stack.
const OPS: usize = 100_000;

/// Runs the workload; returns the number of failures.
pub(super) fn run(machine: &Machine, plan: &Plan, emit: &mut dyn FnMut(Line)) -> usize {
    let mut failed = 0;
    for (base, names) in groups(&plan.layered) {
        let mut bursts = |params: &Value, sequences: &[Sequence]| {
            let names = &names;
            let bursts = Bursts { machine, plan, names, sequences, workload: WORKLOAD, params };
            failed += told_all(bursts.lines(), WORKLOAD, emit);
        };
        for bytes in super::PAIR_SIZES {
            let one = [1];
            for &threads in if base == BARE { &plan.threads[..] } else { &one[..] } {
                let params = json!({ "of": "w1", "size": bytes, "threads": threads });
                let sequence = sequence::pingpong(bytes, plan.scaled(OPS) / 2);
                bursts(&params, &vec![sequence; threads]);
            }
        }
        for &threads in &plan.threads {
            let sequences: Vec<_> = (0..threads as u64)
                .map(|t| sequence::multistream(MULTISTREAM_SEED, t, plan.scaled(OPS)))
                .collect();
            bursts(&json!({ "of": "w3", "threads": threads }), &sequences);
        }
        if base != BARE {
            for bytes in super::CROSS_STREAM_SIZES {
                let params = json!({ "of": "w5", "size": bytes });
                let run = cross_stream::Run { machine, plan, resources: &names, bytes };
                failed += told_all(run.lines(WORKLOAD, &params), WORKLOAD, emit);
            }
        }
    }
    failed
}

/// Returns the stacks that are measured together: each base, by its name, and the stacks of the
/// list that are this base with a layer.
fn groups(names: &[String]) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for name in names {
        let (base, layer) = stacks::parts(name);
        let known = groups.iter().position(|(known, _)| known == base).unwrap_or_else(|| {
            groups.push((base.to_owned(), vec![base.to_owned()]));
            groups.len() - 1
        });
        if layer.is_some() {
            groups[known].1.push(name.clone());
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_over_a_base_brings_the_base() {
        let names = ["bare+budget", "async", "async+all", "bare+all"].map(str::to_owned);
        let grouped = groups(&names);
        let expected = [
            ("bare", vec!["bare", "bare+budget", "bare+all"]),
            ("async", vec!["async", "async+all"]),
        ];
        assert_eq!(grouped.len(), expected.len());
        for ((base, names), (expected_base, expected_names)) in grouped.iter().zip(expected) {
            assert_eq!((base.as_str(), names.len()), (expected_base, expected_names.len()));
            assert!(names.iter().zip(expected_names).all(|(name, expected)| name == expected));
        }
    }
}
