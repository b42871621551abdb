//! Comments, names, messages and pages keep to the project's words: streams, blocks and calls do
//! not act like people, and a thing that has a name in the field has no other one here.

use super::tree::Tree;
use crate::failure::Violation;

/// A phrase that is refused, and what to write.
struct Phrase {
    /// Its forms, in lower case, each a sequence of words.
    forms: &'static [&'static str],
    instead: &'static str,
}

const PHRASES: &[Phrase] = &[
    Phrase {
        forms: &["answer", "answers", "answered", "answering"],
        instead: "a function returns, a driver reports, a call refuses",
    },
    Phrase {
        forms: &["nobody", "somebody", "anybody", "everybody", "whoever"],
        instead: "name the stream, the call, the thread or the user",
    },
    Phrase {
        forms: &["is told", "are told", "was told", "were told", "be told", "being told"],
        instead: "a function takes, an observer is called, a resource is notified",
    },
    Phrase {
        forms: &["knows", "wants"],
        instead: "a type has or stores, a driver reports, a call needs",
    },
    Phrase {
        forms: &["so many", "so manieth"],
        instead: "`bytes`, N bytes, 1/N, one page per N blocks",
    },
    Phrase {
        forms: &["put off", "puts off", "putting off"],
        instead: "deferred, or pending: freed, still used by the device",
    },
    Phrase {
        forms: &["hand out", "hands out", "handed out", "handing out"],
        instead: "acquire, allocate, return; a block is live",
    },
    Phrase { forms: &["latch"], instead: "lock, or spinlock" },
];

/// The words with which no doc comment starts: it starts with a verb or a noun phrase that stands
/// alone.
const STARTS: &[&str] = &[
    "What ",
    "How ",
    "Whether ",
    "Which ",
    "The same",
    "The opposite.",
    "The other way round.",
    "All kinds.",
    "Those ",
    "Likewise",
    "As above",
    "Ditto",
    "And ",
];

/// This file, which has the phrases.
const WORDS: &str = "xtask/src/tidy/words.rs";

/// The page with the names of earlier versions.
const CHANGES: &str = "CHANGELOG.md";

pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs").chain(tree.ending(".md")) {
        if path != WORDS && path != CHANGES {
            check_phrases(path, text, &mut found);
        }
    }
    for (path, text) in tree.ending(".rs").filter(|(path, _)| *path != WORDS) {
        check_starts(path, text, &mut found);
    }
    found
}

/// Finds the phrases also where a line ends within one, and in names, whose words `_` separates.
fn check_phrases(path: &str, text: &str, found: &mut Vec<Violation>) {
    let words: Vec<(usize, String)> = text
        .lines()
        .enumerate()
        .flat_map(|(index, line)| {
            let words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
            words.map(move |word| (index, word.to_lowercase()))
        })
        .collect();
    for at in 0..words.len() {
        for Phrase { forms, instead } in PHRASES {
            for form in forms.iter().filter(|form| starts_with(&words[at..], form)) {
                let message = format!("`{form}`: {instead}");
                found.push(Violation::on_line(path, words[at].0, message));
            }
        }
    }
}

fn starts_with(words: &[(usize, String)], form: &str) -> bool {
    let mut words = words.iter();
    form.split(' ').all(|wanted| words.next().is_some_and(|(_, word)| word == wanted))
}

fn check_starts(path: &str, text: &str, found: &mut Vec<Violation>) {
    let mut is_within = false;
    for (index, line) in text.lines().map(str::trim_start).enumerate() {
        let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        if let Some(doc) = doc.filter(|_| !is_within) {
            for start in STARTS.iter().filter(|start| doc.starts_with(**start)) {
                let message = format!(
                    "a doc comment starts with `{}`: start with a verb or a noun phrase",
                    start.trim_end()
                );
                found.push(Violation::on_line(path, index, message));
            }
        }
        is_within = line.starts_with("///") || line.starts_with("//!");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let found = violations(&Tree::from([(path, text)]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    #[test]
    fn plain_words_are_fine() {
        let text =
            "//! Frees blocks.\n\n/// Returns the bytes.\nfn many() {} // the same as below\n";
        assert_eq!(messages("crates/memory/dmr/src/a.rs", text), [""; 0]);
    }

    #[test]
    fn each_phrase_is_found_in_code_and_on_pages() {
        for form in PHRASES.iter().flat_map(|phrase| phrase.forms) {
            for path in ["crates/memory/dmr/src/a.rs", "docs/src/a.md"] {
                let found = messages(path, &format!("//! x\n\n// It {form}.\n"));
                assert_eq!(found.len(), 1, "{form}: {found:?}");
                assert!(found[0].starts_with(&format!("{path}:3: `{form}`")), "{found:?}");
            }
        }
    }

    #[test]
    fn a_phrase_is_found_in_names_and_across_lines() {
        let name =
            messages("crates/memory/dmr/src/a.rs", "//! x\nfn an_observer_is_told_once() {}\n");
        assert_eq!(name.len(), 1, "{name:?}");
        let wrapped =
            messages("crates/memory/dmr/src/a.rs", "//! x\n/// The pool is\n/// told of it.\n");
        assert!(wrapped[0].starts_with("crates/memory/dmr/src/a.rs:2: `is told`"), "{wrapped:?}");
    }

    #[test]
    fn a_part_of_a_word_is_no_phrase() {
        let text = "//! The hatch, unanswerable; knowsome.\n";
        assert_eq!(messages("crates/memory/dmr/src/a.rs", text), [""; 0]);
    }

    #[test]
    fn a_doc_comment_that_stands_on_another_one_is_found() {
        for start in STARTS {
            let text = format!("//! x\n\n    /// {start} more\n    fn f() {{}}\n");
            let found = messages("crates/memory/dmr/src/a.rs", &text);
            assert_eq!(found.len(), 1, "{start}: {found:?}");
            assert!(found[0].starts_with("crates/memory/dmr/src/a.rs:3: "), "{found:?}");
        }
        let within = "//! x\n/// One thing.\n/// Those that follow.\nfn f() {}\n";
        assert_eq!(messages("crates/memory/dmr/src/a.rs", within), [""; 0]);
    }
}
