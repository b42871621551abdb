//! The comparison of two files of results.

use std::collections::BTreeMap;

use crate::features::Features;
use crate::launch::{Launch, Output};
use crate::plan;
use crate::results::Record;

/// The difference between two results of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The elements compared.
    pub elements: usize,
    /// The elements with other bits, all NaNs taken as one.
    pub differing: usize,
    /// The elements that are NaNs with other bits.
    pub payloads: usize,
    /// The elements that are a NaN in one of the two results.
    pub nan: usize,
    /// The largest distance in units of the last place, of elements that are no NaNs.
    pub ulp: u64,
    /// The largest difference in units of the last place of the largest of both values and 1.
    pub scaled: u64,
    /// The elements that are infinite in one of the two results.
    pub infinite: usize,
    /// The elements that are farther apart than the order of additions explains, where bounds are
    /// known.
    pub out_of_bounds: usize,
    /// The first differing element: its index, and both values as bits.
    pub first: Option<(usize, u64, u64)>,
}

/// The comparison of one launch.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The kernel.
    pub kernel: String,
    /// The launch.
    pub variant: String,
    /// The difference, or why there is none.
    pub difference: Result<Difference, String>,
    /// `true` where results differ with the order of additions.
    pub unordered: bool,
}

/// Compares each launch of `left` with that of `right`.
#[must_use]
pub fn compare(left: &[Record], right: &[Record], seed: u64) -> Vec<Compared> {
    let find: BTreeMap<(&str, &str), &Record> = right
        .iter()
        .map(|record| ((record.kernel.as_str(), record.variant.as_str()), record))
        .collect();
    let mut all = Vec::new();
    for record in left {
        let launch = plan::launches(&record.kernel, seed)
            .into_iter()
            .flatten()
            .find(|launch| launch.variant == record.variant);
        let other = find.get(&(record.kernel.as_str(), record.variant.as_str()));
        let difference = match (&record.outcome, other.map(|other| &other.outcome), &launch) {
            (Ok(left), Some(Ok(right)), Some(launch)) => difference(launch, left, right),
            (Err(reason), ..) => Err(format!("left: {reason}")),
            (_, Some(Err(reason)), _) => Err(format!("right: {reason}")),
            (_, None, _) => Err("right: missing".into()),
            (_, _, None) => Err("no plan".into()),
        };
        let unordered =
            launch.is_some_and(|launch| launch.outputs().any(|output| output.bounds.is_some()));
        let kernel = record.kernel.clone();
        let variant = record.variant.clone();
        all.push(Compared { kernel, variant, difference, unordered });
    }
    all
}

fn difference(launch: &Launch, left: &[Vec<u8>], right: &[Vec<u8>]) -> Result<Difference, String> {
    let mut sum = Difference::default();
    for ((output, left), right) in launch.outputs().zip(left).zip(right) {
        if left.len() != right.len() || left.len() != output.bytes.len() {
            return Err("outputs of other sizes".into());
        }
        sum.add(output, left, right);
    }
    Ok(sum)
}

impl Difference {
    fn add(&mut self, output: &Output, left: &[u8], right: &[u8]) {
        let element = output.element;
        for (index, (a, b)) in element.each(left).zip(element.each(right)).enumerate() {
            self.elements += 1;
            if a == b {
                continue;
            }
            if element.canonical(a) == element.canonical(b) {
                self.payloads += 1;
                continue;
            }
            self.differing += 1;
            self.first.get_or_insert((index, a, b));
            match element.distance(a, b) {
                Some(ulp) => self.ulp = self.ulp.max(ulp),
                None => self.nan += 1,
            }
            match element.scaled_distance(a, b, output.computed_in) {
                Some(apart) => self.scaled = self.scaled.max(apart),
                None => self.infinite += 1,
            }
            if let Some(bounds) = &output.bounds {
                let apart = (element.decode(a) - element.decode(b)).abs();
                self.out_of_bounds += usize::from(apart.is_nan() || apart > bounds[index]);
            }
        }
    }

    /// Returns whether all elements have the same bits, all NaNs taken as one.
    #[must_use]
    pub const fn is_identical(&self) -> bool {
        self.differing == 0
    }

    /// Returns whether the results are identical, or as close as the order of additions explains.
    #[must_use]
    pub const fn is_explained(&self, unordered: bool) -> bool {
        self.is_identical() || unordered && self.out_of_bounds == 0
    }
}

/// The reason for which results may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// No instruction permits a difference.
    Exact,
    /// Additions and multiplications may be fused.
    Contraction,
    /// Instructions with approximate results.
    Approximation,
    /// Additions in no order.
    Order,
}

impl Class {
    /// Returns the class of a launch of a kernel with these features.
    #[must_use]
    pub fn of(features: &Features, unordered: bool) -> Self {
        if unordered {
            Self::Order
        } else if !features.approximations.is_empty() {
            Self::Approximation
        } else if features.contractible {
            Self::Contraction
        } else {
            Self::Exact
        }
    }

    /// Returns its words for a table.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Contraction => "contraction permitted",
            Self::Approximation => "approximation",
            Self::Order => "order of additions",
        }
    }
}
