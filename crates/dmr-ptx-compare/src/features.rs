//! What the PTX of a kernel permits: contraction, approximations, atomics of floats.

use std::collections::{BTreeMap, BTreeSet};

/// What makes results of a kernel differ between machines that are both right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Instructions with results that are only approximately determined.
    pub approximations: BTreeSet<String>,
    /// Additions and multiplications without a rounding mode, which a compiler may fuse.
    pub contractible: bool,
    /// Additions of floats by atomics.
    pub float_atomics: bool,
}

/// Returns the features of each kernel of a PTX text, in its order. Functions that a kernel calls count for all
/// kernels.
#[must_use]
pub fn of_kernels(text: &str) -> BTreeMap<String, Features> {
    let mut kernels: BTreeMap<String, Features> = BTreeMap::new();
    let mut shared = Features::default();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = entry(line) {
            current = Some(name.to_owned());
            kernels.entry(name.to_owned()).or_default();
        } else if line.contains(".func ") {
            current = None;
        } else {
            let features = match &current {
                Some(name) => kernels.entry(name.clone()).or_default(),
                None => &mut shared,
            };
            features.add(line);
        }
    }
    for features in kernels.values_mut() {
        features.approximations.extend(shared.approximations.iter().cloned());
        features.contractible |= shared.contractible;
        features.float_atomics |= shared.float_atomics;
    }
    kernels
}

/// Returns the names of the kernels of a PTX text.
#[must_use]
pub fn kernels(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| entry(line.trim())).map(str::to_owned).collect()
}

fn entry(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(".entry ")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$');
    Some(&rest[..end.unwrap_or(rest.len())])
}

impl Features {
    /// Adds those of one line. Inline code can have several instructions in it.
    fn add(&mut self, line: &str) {
        for statement in line.split([';', '{', '}']) {
            let words = statement.split_whitespace().find(|word| !word.starts_with('@'));
            let Some(operation) = words else { continue };
            let parts: Vec<&str> = operation.split('.').collect();
            let kind = parts.last().copied().unwrap_or_default();
            let float = matches!(kind, "f16" | "f16x2" | "bf16" | "bf16x2" | "f32" | "f64");
            if parts.contains(&"approx") || parts[0] == "tanh" || parts[0] == "ex2" {
                self.approximations.insert(operation.to_owned());
            }
            let rounded = parts.iter().any(|part| matches!(*part, "rn" | "rz" | "rm" | "rp"));
            if matches!(parts[0], "add" | "sub" | "mul") && float && !rounded {
                self.contractible = true;
            }
            if matches!(parts[0], "atom" | "red") && float && parts.contains(&"add") {
                self.float_atomics = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_belong_to_the_kernel_that_has_the_instruction() {
        let text = ".visible .entry one(\n.param .u64 a\n)\n{\nmul.f32 %f1, %f2, %f3;\n}\n\
                    .visible .entry two(\n)\n{\nmul.rn.f32 %f1, %f2, %f3;\n{ex2.approx.f16 %h1, %h2;}\n\
                    @%p1 red.global.add.f32 [%rd1], %f1;\n}\n";
        let features = of_kernels(text);
        assert!(features["one"].contractible && !features["two"].contractible);
        assert!(features["two"].float_atomics && !features["one"].float_atomics);
        assert_eq!(features["two"].approximations, BTreeSet::from(["ex2.approx.f16".to_owned()]));
        assert_eq!(kernels(text), ["one", "two"]);
    }
}
