//! The arguments of `cargo xtask mutants`.

use crate::failure::Failure;

const USAGE: &str =
    "usage: mutants [--sample N | --all] [--seed S] [--shard K/N] [--timeout SECONDS]";

/// The options of `mutants`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// The number of mutants to test; `None` for all.
    pub(super) sample: Option<usize>,
    /// The seed of the sample.
    pub(super) seed: u64,
    /// The part of the sample to test.
    pub(super) shard: Shard,
    /// The seconds after which the tests of a mutant count as hanging; `None` for five times their
    /// time without a mutant.
    pub(super) timeout: Option<u64>,
}

/// The mutants whose position in the sample is `index` modulo `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) index: usize,
    pub(super) count: usize,
}

impl Default for Options {
    fn default() -> Self {
        let shard = Shard { index: 0, count: 1 };
        Self { sample: Some(60), seed: 1, shard, timeout: None }
    }
}

impl Options {
    /// Reads the arguments after `mutants`.
    pub(super) fn parse(arguments: &[&str]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(&name) = arguments.next() {
            if name == "--all" {
                options.sample = None;
                continue;
            }
            let value = arguments.next().copied().unwrap_or_default();
            let understood = match name {
                "--sample" => value.parse().map(|n| options.sample = Some(n)).ok(),
                "--seed" => value.parse().map(|seed| options.seed = seed).ok(),
                "--timeout" => value.parse().map(|seconds| options.timeout = Some(seconds)).ok(),
                "--shard" => Shard::parse(value).map(|shard| options.shard = shard),
                _ => None,
            };
            if understood.is_none() {
                return Err(Failure::Setup(format!("not understood: {name} {value}\n{USAGE}")));
            }
        }
        Ok(options)
    }
}

impl Shard {
    /// Parses `K/N`: `0/4` is the first of four.
    fn parse(text: &str) -> Option<Self> {
        let (index, count) = text.split_once('/')?;
        let shard = Self { index: index.parse().ok()?, count: count.parse().ok()? };
        (shard.index < shard.count).then_some(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_sample_is_the_default_and_everything_can_be_asked_for() {
        let options = Options::parse(&[]).unwrap();
        assert_eq!((options.sample, options.seed), (Some(60), 1));
        assert_eq!(options.shard, Shard { index: 0, count: 1 });
        assert_eq!(Options::parse(&["--all"]).unwrap().sample, None);
    }

    #[test]
    fn sample_seed_shard_and_timeout_can_be_named() {
        let arguments = ["--sample", "7", "--seed", "9", "--shard", "3/4", "--timeout", "60"];
        let expected = Options {
            sample: Some(7),
            seed: 9,
            shard: Shard { index: 3, count: 4 },
            timeout: Some(60),
        };
        assert_eq!(Options::parse(&arguments).unwrap(), expected);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for arguments in
            [&["--sample"][..], &["--sample", "x"], &["--shard", "4/4"], &["--fast", "1"]]
        {
            let failure = Options::parse(arguments).unwrap_err().to_string();
            assert!(failure.contains(&arguments.join(" ")), "{failure}");
            assert!(failure.contains("usage"), "{failure}");
        }
    }
}
