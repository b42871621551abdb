//! The built command, as a shell meets it: what it prints and how it exits.
//! It runs on the simulated driver.
#![cfg(feature = "sim")]

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use dmr::dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};
use dmr_testkit::repository;
use flate2::Compression;
use flate2::write::GzEncoder;

/// Runs `dmr` on the simulated driver.
pub(crate) fn dmr(args: &[&str]) -> Output {
    Command::new(program())
        .args(args)
        .env("DMR_DRIVER", "sim")
        .env_remove("DMR_BACKEND")
        .output()
        .unwrap()
}

pub(crate) fn program() -> PathBuf {
    let bundle = repository::bundle();
    bundle.map_or_else(|| env!("CARGO_BIN_EXE_dmr").into(), |bundle| bundle.join("bin/dmr"))
}

pub(crate) fn gpt_train() -> String {
    repository::trace("gpt_train.csv.gz").to_str().unwrap().to_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A file with this content, gone with the folder.
pub(crate) fn file(content: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, content).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
fn the_command_of_the_readme_replays_the_trace_and_ends_with_the_table() {
    let output = dmr(&["replay", &gpt_train()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    let [driver, stack, replay, time, memory, checks, peak] = lines[..] else { panic!("{text}") };
    assert_eq!(driver, "driver   simulated (DMR_DRIVER=sim) · times are host cost only");
    assert_eq!(stack, "stack    Pool(pages of 32 MiB, Virtual(device 0))");
    assert_eq!(replay, "replay   21,039 operations  1 stream  ██████████ 100 %");
    assert!(time.starts_with("time     ") && time.contains(" ns/op   p50 "), "{time}");
    assert!(memory.starts_with("memory   live 7,324 MiB peak · reserved "), "{memory}");
    assert_eq!(
        checks,
        "checks   0 overlaps · 0 races · 0 failures · 3 left over (never freed: lines 166, 167, 665)"
    );
    assert_eq!(peak, "peak     3.9 GiB fwd · 2 GiB bwd · 846.9 MiB opt · 423.5 MiB init");
    assert_eq!(stderr(&output), "", "no progress where there is no terminal");
}

#[test]
fn json_is_one_object_with_everything_in_it() {
    let output = dmr(&["replay", &gpt_train(), "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ops"], 21_039);
    assert_eq!(json["peak_live_bytes"], 7_679_269_128_u64);
    assert_eq!(json["left_over"]["count"], 3);
    assert_eq!(json["checker"]["races"]["count"], 0);
    assert_eq!(json["simulated"], true);
    for name in ["p50", "p99", "p999", "ns_per_op", "total_ns", "peak_reserved_bytes"] {
        assert!(json[name].as_f64().unwrap() > 0.0, "{name}");
    }
}

#[test]
fn a_limit_refuses_what_does_not_fit_and_names_the_lines() {
    let output = dmr(&["replay", &gpt_train(), "--limit", "4GiB", "--resource", "async"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.starts_with(
            "failure  line 600: out of budget: 1 GiB requested, 211.2 MiB of 4 GiB left"
        ),
        "{text}"
    );
    assert!(text.contains("stack    Budget(4 GiB, "), "{text}");
    assert!(stderr(&output).ends_with("73 failures\n"), "{}", stderr(&output));
    for name in ["async", "pool", "pool-compact"] {
        let output = dmr(&["replay", &gpt_train(), "--limit", "8GiB", "--resource", name]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stdout(&output));
    }
}

#[test]
fn below_the_pool_a_limit_bounds_what_is_reserved() {
    let output = dmr(&["replay", &gpt_train(), "--limit", "4GiB", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["stack"], "Pool(pages of 32 MiB, Budget(4 GiB, Virtual(device 0)))");
    assert_eq!(json["peak_reserved_bytes"], 4_u64 << 30);
    assert!(json["failures"]["count"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn a_device_that_is_too_small_is_out_of_memory_and_not_a_crash() {
    for name in ["pool", "async"] {
        let args = ["replay", &gpt_train(), "--sim-memory", "4GiB", "--verify", "--resource", name];
        let output = dmr(&args);
        assert_eq!(output.status.code(), Some(1));
        let text = stdout(&output);
        assert!(text.contains("line 600: out of device memory: "), "{name}: {text}");
        assert!(text.contains("0 overlaps · 0 corrupt · 0 races · "), "{name}: {text}");
    }
}

#[test]
fn strict_fails_for_flaws_of_the_trace_and_names_their_lines() {
    let (_folder, path) = file(b"action,ptr,bytes\nallocate,1,16\nfree,2,16\nnonsense\n");
    let output = dmr(&["replay", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for line in ["unpaired line 3: ", "bad row  line 4: "] {
        assert!(text.contains(line), "{text}");
    }
    let output = dmr(&["replay", &path, "--strict"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "1 bad row, 1 free without an allocation, 1 left over\n";
    assert!(stderr(&output).ends_with(expected), "{}", stderr(&output));
    assert!(stdout(&output).contains("unfreed  line 2: the trace never frees it"));
}

#[test]
fn a_file_that_is_no_trace_exits_with_2_and_names_the_line() {
    let gzip = |text: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text).unwrap();
        gzip.finish().unwrap()
    };
    let rows: String = (0..5000).map(|n| format!("allocate,{n},{}\n", n * 37 + 1)).collect();
    let trace = format!("action,ptr,bytes\n{rows}");
    let truncated = gzip(trace.as_bytes())[..2000].to_vec();
    let long = format!("action,ptr,bytes\nallocate,1,16\n{}", "x".repeat(1 << 20));
    let cases: [(&str, &[u8], &str); 5] = [
        ("empty", b"", "line 1: empty"),
        ("binary", &[0, 1, 2, 0xff, 0xfe, b'\n', 0], "line 1: no column"),
        ("truncated", &truncated, "cannot be read any further"),
        ("one long line", long.as_bytes(), "line 3: longer than 65536 bytes"),
        ("bomb", &gzip(&vec![0; 64 << 20]), "line 1: longer than 65536 bytes"),
    ];
    for (name, content, message) in cases {
        let (_folder, path) = file(content);
        let output = dmr(&["replay", &path, "--verify"]);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.contains(message) && stderr.contains(": line "), "{name}: {stderr}");
        assert!(!stderr.contains("panicked"), "{name}: {stderr}");
        assert_eq!(stdout(&output), "", "{name}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_wrong() {
    let trace = gpt_train();
    let cases: [(&[&str], &str); 6] = [
        (&["replay"], "<TRACE>"),
        (&["replay", "no-such-file.csv"], "no-such-file.csv: cannot be opened"),
        (&["replay", &trace, "--limit", "8GB"], "use B, KiB, MiB, GiB or TiB"),
        (&["replay", &trace, "--resource", "mmap"], "pool-compact"),
        (&["replay", &trace, "--streams", "0"], "0 is not in 1..=4096"),
        (&["replay", &trace, "--device", "9"], "device 9 is out of range"),
    ];
    for (args, message) in cases {
        let output = dmr(args);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(message), "{args:?}: {stderr}");
    }
    let output =
        Command::new(program()).args(["info"]).env("DMR_DRIVER", "neither").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("DMR_DRIVER"), "{}", stderr(&output));
}

#[test]
fn a_log_that_would_overwrite_the_trace_is_refused_by_whatever_path() {
    let gzip = std::fs::read(gpt_train()).unwrap();
    for content in [&b"action,ptr,bytes\nallocate,1,16\nfree,1,\n"[..], &gzip] {
        let (folder, trace) = file(content);
        let in_folder = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let spelt = in_folder("./../").to_owned()
            + folder.path().file_name().unwrap().to_str().unwrap()
            + "/trace.csv";
        let mut logs = vec![trace.clone(), spelt];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&trace, in_folder("symlink.csv")).unwrap();
            std::fs::hard_link(&trace, in_folder("hard_link.csv")).unwrap();
            logs.extend([in_folder("symlink.csv"), in_folder("hard_link.csv")]);
        }
        for log in logs {
            let output = dmr(&["replay", &trace, "--log", &log]);
            assert!(std::fs::read(&trace).unwrap() == content, "{log}: the trace has changed");
            let stderr = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{log}: {stderr}");
            for part in [&trace, &log, "name another file"] {
                assert!(stderr.contains(part), "{log}: {part}: {stderr}");
            }
            assert_eq!(stdout(&output), "", "{log}");
        }
    }
}

#[test]
fn a_log_overwrites_any_other_file() {
    let (folder, trace) = file(b"action,ptr,bytes\nallocate,1,16\nfree,1,\n");
    let log = folder.path().join("log.csv").to_str().unwrap().to_owned();
    std::fs::write(&log, "an earlier log").unwrap();
    for _ in 0..2 {
        let output = dmr(&["replay", &trace, "--log", &log]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let written = std::fs::read_to_string(&log).unwrap();
        assert!(written.contains("allocate") && !written.contains("earlier"), "{written}");
    }
}

const LOG: &str = "order,time_ns,thread,action,ptr,bytes,stream\n\
    7,3000000,2,free,0x20,64,1\n\
    5,1000000,1,allocate,0x20,64,1\n\
    6,2000000,1,reap,0,0,0\n\
    8,4000000,1,allocate,0x20,96,0\n";

#[test]
fn sort_writes_a_log_in_the_order_of_its_calls_in_both_formats() {
    let (folder, log) = file(LOG.as_bytes());
    let output_file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [own, gzip, rmm] = ["own.csv", "own.csv.gz", "rmm.csv"].map(output_file);
    for args in [&[&own[..]][..], &[&gzip], &[&rmm, "--format", "rmm"]] {
        let output = dmr(&[&["sort", &log], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stdout(&output), "4 rows are sorted\n");
    }
    let text = std::fs::read_to_string(own).unwrap();
    let orders: Vec<_> = text.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(orders, ["order", "5", "6", "7", "8"]);
    let mut unzipped = String::new();
    let file = std::fs::File::open(gzip).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut unzipped).unwrap();
    assert_eq!(unzipped, text);
    assert_eq!(
        std::fs::read_to_string(rmm).unwrap(),
        "Thread,Time,Action,Pointer,Size,Stream\n\
         1,00:00:00.001000,allocate,0x20,64,0x1\n\
         2,00:00:00.003000,free,0x20,64,0x1\n\
         1,00:00:00.004000,allocate,0x20,96,0\n"
    );
    let replayed = dmr(&["replay", &log, "--verify", "--resource", "async"]);
    let text = stdout(&replayed);
    assert!(text.contains("3 operations") && text.contains("1 left over"), "{text}");
}

#[test]
fn sort_leaves_its_log_alone_and_says_what_it_left_out() {
    let (folder, log) = file(format!("{LOG}nonsense\n").as_bytes());
    let output = dmr(&["sort", &log, &log]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("name another file"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), format!("{LOG}nonsense\n"));

    let sorted = folder.path().join("sorted.csv");
    let output = dmr(&["sort", &log, sorted.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).starts_with("bad row  line 6: "), "{}", stdout(&output));
    assert!(stderr(&output).ends_with(": 1 bad row is left out\n"), "{}", stderr(&output));
    let none = folder.path().join("no-such-folder/sorted.csv");
    let output = dmr(&["sort", &log, none.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("sorted.csv: cannot be written: "), "{}", stderr(&output));
}

/// As of a process that was killed while it wrote its log.
#[test]
fn sort_saves_the_rows_of_a_log_that_breaks_off() {
    let rows: String = (0..5000).map(|n| format!("{},free,{},\n", 9000 - n, n * 37)).collect();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(format!("order,action,ptr,bytes\n{rows}").as_bytes()).unwrap();
    let whole = gzip.finish().unwrap();
    let (folder, log) = file(&whole[..whole.len() / 2]);
    let sorted = folder.path().join("sorted.csv");
    let output = dmr(&["sort", &log, sorted.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot be read any further"), "{}", stderr(&output));
    assert!(stderr(&output).contains(" rows before are in "), "{}", stderr(&output));
    assert!(std::fs::read_to_string(sorted).unwrap().lines().count() > 1000);
}

/// A small log is sorted in memory.
#[cfg(unix)]
#[test]
fn a_large_log_that_finds_no_temporary_folder_is_an_error_that_names_the_folder() {
    let rows: String = (0..600_000).map(|n| format!("{n},free,{n:#x},,a tag\n")).collect();
    let small = rows.lines().take(10).map(|row| format!("{row}\n")).collect();
    for (rows, code) in [(small, 0), (rows, 2)] {
        let (folder, log) = file(format!("order,action,ptr,bytes,tag\n{rows}").as_bytes());
        let sorted = folder.path().join("sorted.csv");
        let output = Command::new(program())
            .args(["sort", &log, sorted.to_str().unwrap()])
            .env("TMPDIR", "/no/such/folder")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let names =
            stderr(&output).contains("cannot be sorted in a temporary file in /no/such/folder");
        assert_eq!(names, code == 2, "{}", stderr(&output));
    }
}

#[test]
fn info_shows_driver_devices_and_the_variables_in_effect() {
    let output = dmr(&["info"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0));
    for part in [
        "driver   simulated",
        "device 1 ",
        "141 GiB",
        "backends pool, async, direct",
        "DMR_DRIVER: sim",
        " · virtual memory · ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&dmr(&["info", "--json", "--sim-memory", "2GiB"]).stdout).unwrap();
    assert_eq!(json["devices"][0]["total_bytes"], 2_u64 << 30);
    assert_eq!(json["devices"][0]["virtual_memory"], true);
    assert_eq!(json["variables"]["DMR_DRIVER"], "sim");
}

#[test]
fn info_lists_which_process_holds_how_much_of_a_shared_limit() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let info = |args: &[&str]| {
        let mut command = Command::new(program());
        command.args(args).env("DMR_DRIVER", "sim");
        command.env(SharedLimitConfig::VARIABLE, directory.path()).output().unwrap()
    };
    let json = || -> serde_json::Value {
        serde_json::from_slice(&info(&["info", "--json"]).stdout).unwrap()
    };
    let uuid = json()["devices"][1]["uuid"].as_str().unwrap().replace('-', "");
    let byte = |i: usize| u8::from_str_radix(&uuid[3 + 2 * i..][..2], 16).unwrap();
    let config = |uuid| SharedLimitConfig::new(uuid, 8 << 30).with_directory(directory.path());
    let limit = SharedLimit::join(&config(std::array::from_fn(byte))).unwrap();
    limit.charge(6 << 30, Largest { tag: "kv-cache", bytes: 5 << 30 }).unwrap();
    let _elsewhere = SharedLimit::join(&config([9; 16]).with_group("tests")).unwrap();
    let text = stdout(&info(&["info"]));
    let pid = std::process::id();
    let process = format!("    6 GiB held by process {pid} (");
    let device = text.find("device 1 ").unwrap();
    let account = text.find("  shared limit of group default").unwrap();
    assert!(device < account, "{text}");
    for part in [
        "  shared limit of group default: 6 GiB of 8 GiB, 1 processes",
        &process,
        "most of it by \"kv-cache\" (5 GiB)",
        "another device GPU-09090909-0909-0909-0909-090909090909",
        "  shared limit of group tests: 0 B of 8 GiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let found = json();
    let found = &found["devices"][1]["shared_limits"][0];
    assert_eq!(
        (&found["limit_bytes"], &found["used_bytes"]),
        (&(8_u64 << 30).into(), &(6_u64 << 30).into())
    );
    assert_eq!(
        (&found["processes"][0]["pid"], &found["processes"][0]["tag"]),
        (&pid.into(), &"kv-cache".into())
    );
    let user = std::fs::metadata(directory.path()).unwrap().uid();
    let damaged = directory.path().join(format!("dmr-limit.{user}.damaged"));
    std::fs::write(damaged, b"x").unwrap();
    assert!(stdout(&info(&["info"])).contains("damaged\": "));
}

#[test]
fn the_same_trace_replays_on_the_second_device_and_under_any_seed() {
    let (_folder, path) = file(
        b"action,ptr,bytes,stream\nallocate,1,4096,1\nallocate,2,77,2\nfree,1,,1\nfree,2,,2\n",
    );
    for seed in 0..8 {
        let seed = seed.to_string();
        let output =
            dmr(&["replay", &path, "--verify", "--strict", "--device", "1", "--sim-seed", &seed]);
        assert_eq!(output.status.code(), Some(0), "seed {seed}: {}", stdout(&output));
        assert!(stdout(&output).contains("Virtual(device 1)"), "{}", stdout(&output));
    }
}

#[test]
fn a_trace_with_more_streams_than_asked_for_is_folded_and_says_so() {
    let (_folder, path) = file(
        b"action,ptr,bytes,stream\nallocate,1,64,1\nallocate,2,64,2\nallocate,3,64,3\n\
          free,1,,1\nfree,2,,2\nfree,3,,3\n",
    );
    let output = dmr(&["replay", &path, "--verify", "--strict", "--streams", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert!(stdout(&output).contains("6 operations  2 streams (for 3 of the trace)"));
}
