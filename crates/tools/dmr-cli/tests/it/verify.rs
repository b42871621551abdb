//! `dmr replay --verify` over each backend.

use crate::command::{dmr, gpt_train, stdout};

/// Replays a trace with the contents of all blocks checked.
fn verify(resource: &str, stack: &str) {
    let output = dmr(&["replay", &gpt_train(), "--verify", "--resource", resource]);
    let text = stdout(&output);
    assert!(output.status.success() && text.contains(&format!("stack    {stack}\n")), "{text}");
    assert!(text.contains("0 overlaps · 0 corrupt · 0 races · 0 failures"), "{text}");
}

#[test]
fn verify_finds_nothing_wrong_with_a_pool() {
    verify("pool", "Pool(pages of 32 MiB, Virtual(device 0))");
    verify("pool-compact", "Pool(pages of 8 MiB, Virtual(device 0))");
    verify("virtual", "Virtual(device 0)");
}

#[test]
fn verify_finds_nothing_wrong_with_memory_of_the_driver() {
    verify("async", "Async(device 0)");
    verify("direct", "Direct(device 0)");
    verify("direct-tracked", "Tracked(Direct(device 0))");
}
