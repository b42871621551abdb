//! Properties of a kernel's PTX that permit several results: contraction, approximations, atomics
//! of floats.

use std::collections::{BTreeMap, BTreeSet};

/// The properties for which results of a kernel may differ between two machines that are both
/// right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Instructions with results that are only approximately determined.
    pub approximations: BTreeSet<String>,
    /// Additions and multiplications without a rounding mode, which a compiler may fuse.
    pub contractible: bool,
    /// Additions of floats by atomics.
    pub float_atomics: bool,
}

/// A kernel or function, and what its body names.
#[derive(Debug, Default)]
struct Body {
    is_kernel: bool,
    features: Features,
    words: BTreeSet<String>,
}

/// Returns the features of each kernel of a PTX text, those of the functions that it calls among
/// them.
#[must_use]
pub fn of_kernels(text: &str) -> BTreeMap<String, Features> {
    let mut bodies: BTreeMap<String, Body> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let line = line.trim();
        let kernel = entry(line);
        if let Some(name) = kernel.or_else(|| function(line)) {
            current = Some(name.to_owned());
            bodies.entry(name.to_owned()).or_default().is_kernel = kernel.is_some();
        } else if let Some(body) = current.as_ref().and_then(|name| bodies.get_mut(name)) {
            body.features.add(line);
            let words = line.split(|c: char| !is_of_name(c)).filter(|word| word.starts_with('_'));
            body.words.extend(words.map(str::to_owned));
        }
    }
    let kernels = bodies.iter().filter(|(_, body)| body.is_kernel);
    kernels.map(|(name, _)| (name.clone(), reachable(name, &bodies))).collect()
}

/// Returns the features of a body and of all that it calls.
fn reachable(name: &str, bodies: &BTreeMap<String, Body>) -> Features {
    let mut all = Features::default();
    let mut found = vec![name];
    let mut next = 0;
    while let Some(body) = found.get(next).and_then(|name| bodies.get(*name)) {
        next += 1;
        all.approximations.extend(body.features.approximations.iter().cloned());
        all.contractible |= body.features.contractible;
        all.float_atomics |= body.features.float_atomics;
        for (word, _) in bodies.iter().filter(|(word, _)| body.words.contains(*word)) {
            if !found.contains(&word.as_str()) {
                found.push(word);
            }
        }
    }
    all
}

/// Returns the names of the kernels of a PTX text.
#[must_use]
pub fn kernels(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| entry(line.trim())).map(str::to_owned).collect()
}

fn entry(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(".entry ")?;
    let end = rest.find(|c: char| !is_of_name(c));
    Some(&rest[..end.unwrap_or(rest.len())])
}

/// Returns the name of the function that this line declares: after its result, if it has one.
fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(".func ")?;
    let rest = rest.rsplit_once(')').map_or(rest, |(_, rest)| rest).trim();
    let end = rest.find(|c: char| !is_of_name(c));
    Some(&rest[..end.unwrap_or(rest.len())])
}

const fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
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

    #[test]
    fn features_of_a_function_belong_to_the_kernels_that_call_it() {
        let text = ".func  (.param .b64 r) _help(\n.param .b64 a\n)\n{\nex2.approx.f32 %f1, %f2;\n}\n\
                    .visible .entry one(\n)\n{\ncall.uni (r), \n_help, \n(\na\n);\n}\n\
                    .visible .entry two(\n)\n{\n}\n";
        let features = of_kernels(text);
        assert_eq!(features["one"].approximations, BTreeSet::from(["ex2.approx.f32".to_owned()]));
        assert_eq!(features["two"], Features::default());
        assert_eq!(features.len(), 2);
    }
}
