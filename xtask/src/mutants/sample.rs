//! The selection of mutants: a seeded sample, and a shard of it.

use serde::Deserialize;

use super::options::Shard;

/// One change to the code, as `cargo mutants --list --json` describes it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Mutant {
    /// `crates/x/src/y.rs:12:5: replace f -> bool with true`.
    pub(super) name: String,
    /// The crate of the file.
    pub(super) package: String,
}

/// Chooses `size` of the mutants, or all, in an order that depends on their names and the seed
/// only. A larger sample of the same seed contains the smaller one.
pub(super) fn sample(mut mutants: Vec<Mutant>, size: Option<usize>, seed: u64) -> Vec<Mutant> {
    mutants.sort_by_cached_key(|mutant| (rank(&mutant.name, seed), mutant.name.clone()));
    mutants.truncate(size.unwrap_or(usize::MAX));
    mutants
}

/// Keeps every mutant of the sample that this shard tests.
pub(super) fn shard(mutants: Vec<Mutant>, shard: Shard) -> Vec<Mutant> {
    mutants.into_iter().skip(shard.index).step_by(shard.count).collect()
}

/// Returns a random number that depends on the name and the seed only: a mutant that is added or
/// removed does not change the order of the others.
fn rank(name: &str, seed: u64) -> u64 {
    // FNV-1a.
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    let hash = name
        .bytes()
        .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    fastrand::Rng::with_seed(hash).u64(..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(count: usize) -> Vec<Mutant> {
        let mutant = |line: usize| Mutant {
            name: format!("crates/a/src/b.rs:{line}:5: replace f with ()"),
            package: "a".to_owned(),
        };
        (1..=count).map(mutant).collect()
    }

    fn lines(mutants: &[Mutant]) -> Vec<&str> {
        mutants.iter().map(|it| it.name.split(':').nth(1).unwrap()).collect()
    }

    #[test]
    fn a_sample_depends_on_the_seed_and_not_on_the_order_of_the_list() {
        let chosen = sample(mutants(100), Some(5), 1);
        let mut reversed = mutants(100);
        reversed.reverse();
        assert_eq!(sample(reversed, Some(5), 1), chosen);
        assert_ne!(sample(mutants(100), Some(5), 2), chosen);
        // On every machine, with this version of the generator.
        assert_eq!(lines(&chosen), ["75", "45", "33", "46", "76"]);
    }

    #[test]
    fn a_larger_sample_contains_the_smaller_one() {
        let small = sample(mutants(100), Some(5), 1);
        let large = sample(mutants(100), Some(50), 1);
        assert_eq!(large[..5], small);
        assert_eq!(sample(mutants(100), None, 1).len(), 100);
    }

    #[test]
    fn shards_are_parts_of_the_sample_without_overlap() {
        let all = sample(mutants(10), None, 1);
        let parts = (0..3).map(|index| shard(all.clone(), Shard { index, count: 3 }));
        let mut names: Vec<_> = parts.flatten().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), 10);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10);
    }
}
