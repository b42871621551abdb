//! The commands that show where memory went: pages, texts, exports, comparisons.
#![cfg(feature = "sim")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use dmr::dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};

use crate::command::{dmr, file, gpt_train, program, stderr, stdout};

const TRACE: &[u8] = b"time_ns,action,ptr,bytes,stream,tag\n0,allocate,0x10000,1048576,0,weights\n\
    1000,allocate,0x200000,2097152,0,batch\n2000,free,0x200000,,0,batch\n";

#[test]
fn a_page_is_written_and_the_peak_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = dmr(&["report", &gpt_train(), "-o", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("page.html is written\n") && text.contains("3.9 GiB   54 %  fwd"),
        "{text}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<title>gpt_train.csv.gz</title>"));
}

#[test]
fn the_ending_of_the_output_is_its_format() {
    let (folder, trace) = file(TRACE);
    for (name, start) in [("a.pickle", &b"\x80\x02}("[..]), ("a.pftrace", b"\n")] {
        let path = folder.path().join(name);
        let output = dmr(&["report", &trace, "-o", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(std::fs::read(&path).unwrap().starts_with(start), "{name}");
    }
    // What was exported is a file that can be reported on.
    let pickle = folder.path().join("a.pickle");
    let output = dmr(&["report", "--text", pickle.to_str().unwrap()]);
    assert!(stdout(&output).contains("peak     3 MiB in use at 1 us"), "{}", stdout(&output));
}

#[test]
fn a_text_is_printed_and_no_page_is_written() {
    let output = dmr(&["report", "--text", &gpt_train()]);
    assert!(stdout(&output).contains("peak     7.2 GiB in use at 5.464 s"), "{}", stdout(&output));
}

#[test]
fn a_file_that_cannot_be_reported_on_is_an_error_with_its_place() {
    let (_folder, path) = file(b"\x80\x04cos\nsystem\n.");
    let output = dmr(&["report", "--text", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("byte 2: opcode 0x63"), "{}", stderr(&output));
    let (_folder, path) = file(TRACE);
    let output = dmr(&["report", &path, "-o", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("would destroy the trace"), "{}", stderr(&output));
}

#[test]
fn two_files_are_compared_by_what_held_their_peaks() {
    let (_before, before) = file(TRACE);
    let more = String::from_utf8(TRACE.to_vec()).unwrap().replace("2097152", "5242880");
    let (_after, after) = file(more.as_bytes());
    let output = dmr(&["diff", &before, &after]);
    let text = stdout(&output);
    for line in [
        "peak          3 MiB →      6 MiB  +3 MiB  in use",
        "              2 MiB →      5 MiB  +3 MiB  batch",
        "events            3 →          3",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains("weights"), "it has not changed: {text}");
}

#[test]
fn shared_limits_are_shown_again_when_they_change() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut child = Command::new(program())
        .args(["info", "--watch"])
        .env(SharedLimitConfig::VARIABLE, directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("after 0."));
    assert_eq!(lines.next().unwrap(), "no limit is shared");
    let config = SharedLimitConfig::new([7; 16], 8 << 30).with_directory(directory.path());
    let limit = SharedLimit::join(&config).unwrap();
    limit.charge(6 << 30, Largest { tag: "kv-cache", bytes: 5 << 30 }).unwrap();
    let shown = lines.find(|line| line.contains("6 GiB of 8 GiB")).unwrap();
    assert_eq!(shown, "  shared limit of group default: 6 GiB of 8 GiB, 1 processes");
    child.kill().unwrap();
    child.wait().unwrap();
}
