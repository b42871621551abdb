//! `DMR_BACKEND` chooses the backend where the program does not.
//!
//! The variable is set in a child process, where this test runs itself again.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::process::Command;

use dmr::prelude::*;
use dmr_testkit::Rig;

/// Builds a runtime with what the environment says, and tells the parent.
#[test]
#[ignore = "run by the other tests of this file, with DMR_BACKEND set"]
fn child() {
    let rig = Rig::new();
    let runtime = DeviceRuntime::builder(rig.ordinal()).build();
    let told =
        runtime.map_or_else(|e| e.to_string(), |runtime| format!("{:?}", runtime.resource()));
    assert_eq!(
        Some(told),
        std::env::var("EXPECTED").ok().map(|text| text.replace('?', &rig.ordinal().to_string()))
    );
}

fn expect(backend: &str, expected: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["backend_variable::child", "--exact", "--ignored"])
        .env("DMR_BACKEND", backend)
        .env("EXPECTED", expected)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_known_name_chooses_its_backend() {
    expect("direct", "Direct(device ?)");
    expect("direct-tracked", "Tracked(Direct(device ?))");
    expect("async", "Async(device ?)");
    // The default's, where the device has virtual memory: `sim_pool_over_pages_or_blocks` has both.
    expect("", "Pool(pages of 32 MiB, Virtual(device ?))");
    expect("pool", "Pool(pages of 32 MiB, Virtual(device ?))");
}

/// A name counts as it is written, as that of `DMR_DRIVER` does.
#[test]
fn an_unknown_name_is_refused_with_the_names_that_there_are() {
    for name in ["cached", "POOL", " direct", "direct "] {
        let expected = format!(
            "no backend {name:?} in this program; it has \"pool\", \"async\", \"direct\", \
             \"direct-tracked\": choose one of them, or compile the crate `dmr` with the backend's feature"
        );
        expect(name, &expected);
    }
}
