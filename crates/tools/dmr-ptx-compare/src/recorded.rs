//! Results that a GPU has recorded, as text: a digest of each kernel, values of those that
//! approximate.
//!
//! A line is `kernel = digest`, or `kernel ~ ulp values`: the first values of its first output in
//! hexadecimal, and how far apart results may be, in units of the last place of the largest of both
//! values and 1.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::plan;
use crate::results::{self, Record};

/// The number of values in a line of a kernel that approximates.
const VALUES: usize = 64;

/// The results that a kernel must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Results with this digest, of all launches together.
    Digest(u64),
    /// Results of the first launch not farther from these than `ulp`
    /// [scaled units](crate::element::Element::scaled_distance).
    Near {
        /// The largest distance.
        ulp: u64,
        /// The first values.
        values: Vec<u64>,
    },
}

/// Returns the digest of each kernel with a result for all its launches.
#[must_use]
pub fn digests(records: &[Record], seed: u64) -> BTreeMap<String, u64> {
    let mut digests = BTreeMap::new();
    for (kernel, outputs) in by_kernel(records) {
        let launches = plan::launches(kernel, seed).unwrap_or_default();
        if launches.len() != outputs.len() {
            continue;
        }
        let all =
            launches.iter().zip(outputs).map(|(launch, outputs)| results::digest(launch, outputs));
        let digest = all.fold(0, |hash: u64, digest| hash.rotate_left(7) ^ digest);
        digests.insert(kernel.to_owned(), digest);
    }
    digests
}

/// Returns the outputs of the launches of each kernel, where all have some.
fn by_kernel(records: &[Record]) -> BTreeMap<&str, Vec<&[Vec<u8>]>> {
    let mut all: BTreeMap<&str, Option<Vec<&[Vec<u8>]>>> = BTreeMap::new();
    for record in records {
        let outputs = all.entry(&record.kernel).or_insert_with(|| Some(Vec::new()));
        match (&record.outcome, &mut *outputs) {
            (Ok(found), Some(outputs)) => outputs.push(found),
            _ => *outputs = None,
        }
    }
    all.into_iter().filter_map(|(kernel, outputs)| Some((kernel, outputs?))).collect()
}

/// Returns the first values of the first output of the first launch of a kernel.
fn first_values(kernel: &str, outputs: &[&[Vec<u8>]], seed: u64) -> Vec<u64> {
    let launches = plan::launches(kernel, seed).unwrap_or_default();
    let output = launches.first().and_then(|launch| launch.outputs().next());
    let bytes = outputs.first().and_then(|outputs| outputs.first());
    match (output, bytes) {
        (Some(output), Some(bytes)) => output.element.each(bytes).take(VALUES).collect(),
        _ => Vec::new(),
    }
}

/// Returns the text of results: `approximate` has the kernels whose values are kept, and their
/// bounds.
#[must_use]
pub fn write(records: &[Record], seed: u64, approximate: &BTreeMap<String, u64>) -> String {
    let mut text = String::new();
    let kernels = by_kernel(records);
    for (kernel, digest) in digests(records, seed) {
        let line = match (approximate.get(&kernel), kernels.get(kernel.as_str())) {
            (Some(ulp), Some(outputs)) => {
                let values = first_values(&kernel, outputs, seed);
                let values: Vec<_> = values.iter().map(|bits| format!("{bits:x}")).collect();
                format!("{kernel} ~ {ulp} {}", values.join(" "))
            }
            _ => format!("{kernel} = {digest:016x}"),
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Returns what a text of results expects of each kernel; `None` where it has another form.
#[must_use]
pub fn read(text: &str) -> Option<BTreeMap<String, Expected>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let kernel = words.next()?.to_owned();
            let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
            let expected = match words.next()? {
                "=" => Expected::Digest(hexadecimal(words.next()?)?),
                "~" => Expected::Near {
                    ulp: words.next()?.parse().ok()?,
                    values: words.map(hexadecimal).collect::<Option<_>>()?,
                },
                _ => return None,
            };
            Some((kernel, expected))
        })
        .collect()
}

/// Returns a line for each kernel with other results than expected, or none.
#[must_use]
pub fn check(records: &[Record], seed: u64, expected: &BTreeMap<String, Expected>) -> Vec<String> {
    let digests = digests(records, seed);
    let kernels = by_kernel(records);
    let mut wrong = Vec::new();
    for (kernel, expected) in expected {
        let found = match expected {
            Expected::Digest(digest) => digests.get(kernel) == Some(digest),
            Expected::Near { ulp, values } => kernels.get(kernel.as_str()).is_some_and(|outputs| {
                let found = first_values(kernel, outputs, seed);
                found.len() == values.len() && is_near(kernel, seed, &found, values, *ulp)
            }),
        };
        if !found {
            wrong.push(format!("{kernel}: results differ from the recorded ones"));
        }
    }
    wrong
}

fn is_near(kernel: &str, seed: u64, found: &[u64], values: &[u64], ulp: u64) -> bool {
    let launches = plan::launches(kernel, seed).unwrap_or_default();
    let Some(output) = launches.first().and_then(|launch| launch.outputs().next()) else {
        return false;
    };
    let near = |(a, b): (&u64, &u64)| {
        output.element.scaled_distance(*a, *b, output.computed_in).is_some_and(|apart| apart <= ulp)
    };
    found.iter().zip(values).all(near)
}
