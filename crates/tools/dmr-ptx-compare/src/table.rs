//! The table of differences: a row for each family of kernels, and for each reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::features::Features;
use crate::plan;
use crate::report::{Class, Compared};

/// A way to compile the kernels, and the comparison of their results.
#[derive(Clone, Debug)]
pub struct Way<'a> {
    /// Its name: the head of its columns.
    pub name: &'a str,
    /// The comparison of each launch.
    pub compared: Vec<Compared>,
}

/// The sum of a family under one way.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    differing: usize,
    scaled: u64,
}

#[derive(Debug, Default)]
struct Row {
    kernels: BTreeSet<String>,
    elements: usize,
    sums: Vec<Sum>,
}

/// Returns the table as Markdown.
#[must_use]
pub fn markdown(ways: &[Way<'_>], kernels: &BTreeMap<String, Features>) -> String {
    let mut rows: BTreeMap<(Class, String), Row> = BTreeMap::new();
    let mut total = Row { sums: vec![Sum::default(); ways.len()], ..Row::default() };
    for (index, way) in ways.iter().enumerate() {
        for compared in &way.compared {
            let features = kernels.get(&compared.kernel).cloned().unwrap_or_default();
            let key = (Class::of(&features, compared.unordered), plan::family(&compared.kernel));
            for row in [rows.entry(key).or_default(), &mut total] {
                row.sums.resize(ways.len(), Sum::default());
                row.kernels.insert(compared.kernel.clone());
                row.add(index, compared);
            }
        }
    }
    let mut text = "| reason | family | kernels | elements |".to_owned();
    for way in ways {
        let _ = write!(text, " {}: differ | units |", way.name);
    }
    let columns = 4 + 2 * ways.len();
    let _ = writeln!(text, "\n|{}", " --- |".repeat(columns));
    let (differing, same): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, row)| row.sums.iter().any(|sum| sum.differing > 0));
    for ((class, family), row) in &differing {
        row.write(&mut text, class.text(), family);
    }
    let mut others = Row { sums: vec![Sum::default(); ways.len()], ..Row::default() };
    let mut families = BTreeSet::new();
    for ((_, family), row) in same {
        others.elements += row.elements;
        others.kernels.extend(row.kernels);
        families.insert(format!("`{family}`"));
    }
    others.write(&mut text, "no difference", "the families below");
    total.write(&mut text, "all", "");
    let families: Vec<_> = families.into_iter().collect();
    let _ = writeln!(text, "\nWithout a difference: {}.", families.join(", "));
    text
}

impl Row {
    fn add(&mut self, way: usize, compared: &Compared) {
        let Some(sum) = self.sums.get_mut(way) else { return };
        let Ok(difference) = &compared.difference else { return };
        if way == 0 {
            self.elements += difference.elements;
        }
        sum.differing += difference.differing;
        sum.scaled = sum.scaled.max(difference.scaled);
    }

    fn write(&self, text: &mut String, reason: &str, family: &str) {
        let _ =
            write!(text, "| {reason} | {family} | {} | {} |", self.kernels.len(), self.elements);
        for sum in &self.sums {
            let _ = write!(text, " {} | {} |", sum.differing, sum.scaled);
        }
        text.push('\n');
    }
}
