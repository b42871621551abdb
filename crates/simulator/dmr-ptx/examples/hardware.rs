//! Compares the interpreter with a GPU.
//!
//! - `hardware write FOLDER` writes the kernels and the operands of all forms: the files `list`,
//!   `kernels`, `operands`.
//! - `hardware compare FOLDER [WORD]` compares the results of a GPU, the files `status` and
//!   `words`, with the interpreter's, and prints the first rows that differ; with a word, only of
//!   forms whose name has it.
//! - `hardware fixture FOLDER` prints the lines of `tests/fixtures/hardware.txt` for the results of
//!   a GPU.
//!
//! A program with the driver API makes the results: it loads each kernel of `kernels` (offset and
//! length are in `list`) behind the lines of [`hardware::HEADER`], launches it with one thread a
//! row in blocks of 128, with the addresses of its operands and of its results, and writes the
//! words of all results one after another. `status` has a line a form: its number, the result codes
//! of load and launch, and its name, with tabs between them. A form that did not run has zeros.

#![allow(clippy::print_stdout, reason = "a program that prints what it has written")]

#[path = "../tests/hardware/mod.rs"]
mod hardware;
#[path = "../tests/support/forms.rs"]
mod run;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", folder] => write(Path::new(folder)),
        ["compare", folder] => compare(Path::new(folder), ""),
        ["compare", folder, word] => compare(Path::new(folder), word),
        ["fixture", folder] => fixture(Path::new(folder)),
        _ => Err("hardware write|compare|fixture FOLDER".into()),
    }
}

/// A form with the words that a GPU wrote, if it ran it, and the line of its status.
struct Measured {
    form: hardware::Form,
    words: Option<Vec<u64>>,
    line: String,
}

/// Reads the results of a GPU.
fn measured(folder: &Path) -> Result<Vec<Measured>, Box<dyn std::error::Error>> {
    let words = std::fs::read(folder.join("words"))?;
    let status = std::fs::read_to_string(folder.join("status"))?;
    let mut start = 0;
    let mut list = Vec::new();
    for (form, line) in hardware::forms().into_iter().zip(status.lines()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let bytes = form.rows as usize * form.results * 8;
        if fields.get(3) != Some(&form.name.as_str()) {
            return Err(format!("{} is not {:?}", form.name, fields.get(3)).into());
        }
        let ran = (fields.get(1), fields.get(2)) == (Some(&"0"), Some(&"0"));
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let all = words.get(start..start + bytes).ok_or("too few words")?;
        let words = ran.then(|| all.chunks_exact(8).map(word).collect());
        list.push(Measured { form, words, line: line.to_owned() });
        start += bytes;
    }
    Ok(list)
}

fn compare(folder: &Path, word: &str) -> Result<(), Box<dyn std::error::Error>> {
    let list: Vec<_> =
        measured(folder)?.into_iter().filter(|one| one.form.name.contains(word)).collect();
    let mut reports: Vec<_> = run::on_all(&list, report).into_iter().flatten().collect();
    reports.sort();
    println!("{}", reports.concat());
    Ok(())
}

fn fixture(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for Measured { form, words, .. } in measured(folder)? {
        let Some(words) = words else { continue };
        let refused = if run::results(&form, 1).is_err() { "?" } else { "" };
        let sample: Vec<u64> = form.sample(&words, form.results).flatten().copied().collect();
        if form.is_approximate {
            let values: Vec<String> = sample
                .iter()
                .step_by((sample.len() / 16).max(1))
                .map(|word| format!("{word:x}"))
                .collect();
            println!("{refused}~{} {}", values.join(","), form.name);
        } else {
            println!("{refused}{:016x} {}", hardware::digest(sample), form.name);
        }
    }
    Ok(())
}

/// Returns what differs between the results of a GPU and the interpreter's.
fn report(Measured { form, words, line }: &Measured) -> Option<String> {
    let (theirs, ours) = match (words, run::results(form, 1)) {
        (Some(theirs), Ok(ours)) => (theirs, ours),
        (None, Err(_)) => return None,
        (None, Ok(_)) => return Some(format!("ONLY HERE: {line}\n")),
        (Some(_), Err(why)) => return Some(format!("ONLY THERE: {}: {why}\n", form.name)),
    };
    let operands = hardware::operands::operands(&form.kinds, form.rows, form.seed());
    let rows = theirs.chunks_exact(form.results).zip(ours.chunks_exact(form.results));
    let differs = |a: &[u64], b: &[u64]| {
        if form.is_approximate { !run::is_near(form, a[0], b[0]) } else { a != b }
    };
    let differing: Vec<usize> =
        rows.enumerate().filter(|(_, (a, b))| differs(a, b)).map(|(row, _)| row).collect();
    if differing.is_empty() {
        return None;
    }
    let mut text = format!("DIFFERS: {}: {} of {} rows\n", form.name, differing.len(), form.rows);
    for &row in differing.iter().step_by((differing.len() / 8).max(1)).take(9) {
        let part = |words: &[u64], count: usize| {
            words.get(row * count..(row + 1) * count).map(<[u64]>::to_vec)
        };
        text += &format!(
            "    row {row}: {:x?}: GPU {:x?}, here {:x?}\n",
            part(&operands, form.kinds.len()).unwrap_or_default(),
            part(theirs, form.results).unwrap_or_default(),
            part(&ours, form.results).unwrap_or_default(),
        );
    }
    Some(text)
}

/// Writes the kernels and the operands.
fn write(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    let mut kernels = Vec::<u8>::new();
    let mut list = String::new();
    let mut tables = Vec::<u8>::new();
    let mut places = BTreeMap::new();
    for (number, form) in hardware::forms().iter().enumerate() {
        let place = *places.entry((form.seed(), form.rows)).or_insert_with(|| {
            let place = tables.len();
            for word in hardware::operands::operands(&form.kinds, form.rows, form.seed()) {
                tables.extend(word.to_le_bytes());
            }
            place
        });
        let text = form.kernel(&format!("f{number}"));
        writeln!(
            list,
            "{number} {} {} {} {place} {} {} {}",
            form.rows,
            form.kinds.len(),
            form.results,
            kernels.len(),
            text.len(),
            form.name
        )?;
        kernels.extend(text.as_bytes());
    }
    std::fs::write(folder.join("list"), &list)?;
    std::fs::write(folder.join("kernels"), &kernels)?;
    std::fs::write(folder.join("operands"), &tables)?;
    println!(
        "{} forms, {} bytes of kernels, {} of operands",
        list.lines().count(),
        kernels.len(),
        tables.len()
    );
    Ok(())
}
