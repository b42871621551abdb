//! A writer that is killed at a random moment leaves a file that opens, with all whole chunks.
//!
//! `DMR_RECORDING_KILLS` sets how many are killed.
#![cfg(unix)]
#![allow(unsafe_code, reason = "forks and kills")]

use std::mem::discriminant;
use std::path::Path;
use std::time::Duration;

use dmr_recording::{Event, Problem, Reader, Writer};
use fastrand::Rng;

use crate::support::{TEXTS, record, start};

#[test]
fn a_file_opens_whenever_its_writer_was_killed() {
    let kills = std::env::var("DMR_RECORDING_KILLS").ok().and_then(|kills| kills.parse().ok());
    let kills: u64 = kills.unwrap_or(40);
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(6);
    let mut with_records = 0;
    for nth in 0..kills {
        let path = folder.path().join("killed.rec");
        // Half of them append to the file of the one before.
        if nth % 2 == 0 {
            let _ = std::fs::remove_file(&path);
        }
        // SAFETY: the child writes a file, and is killed.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            write_until_killed(&path, nth);
        }
        std::thread::sleep(Duration::from_micros(rng.u64(200..6_000)));
        // SAFETY: our own child, which has not been waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "the writer ended by itself: {status}");
        with_records += u64::from(check(&path, nth));
    }
    assert!(with_records > kills / 4, "{with_records} of {kills} files had records");
}

/// Writes random records, in chunks of random sizes.
fn write_until_killed(path: &Path, seed: u64) -> ! {
    let write = || -> std::io::Result<()> {
        let mut rng = Rng::with_seed(seed);
        let mut writer = Writer::append(path, &start(), "clock", "program")?;
        for text in TEXTS {
            writer.intern(text);
        }
        loop {
            writer.write(&record(&mut rng))?;
            if rng.u8(..20) == 0 {
                writer.flush()?;
            }
        }
    };
    let _ = write();
    // SAFETY: ends the child.
    unsafe { libc::_exit(1) }
}

/// Returns whether the last section of the file has records, each as it was written.
fn check(path: &Path, seed: u64) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    if file.metadata().unwrap().len() < 12 {
        return false;
    }
    let mut records = Vec::new();
    for record in Reader::new(file).unwrap() {
        match record {
            Ok(record) if matches!(record.event, Event::Start(_)) => records.clear(),
            Ok(record) => records.push(record),
            Err(error) => assert_eq!(error.problem, Problem::Truncated, "{error}"),
        }
    }
    // A writer that was killed before its start has left the section of the one before.
    let is_of = |seed| {
        let mut rng = Rng::with_seed(seed);
        records.iter().all(|read| {
            let written = record(&mut rng);
            rng.u8(..20);
            // The texts of a section have other numbers in the file.
            let kind = discriminant(&read.event) == discriminant(&written.event);
            kind && (read.time_ns, read.query) == (written.time_ns, written.query)
        })
    };
    assert!(is_of(seed) || (seed % 2 == 1 && is_of(seed - 1)), "file {seed}");
    !records.is_empty()
}
