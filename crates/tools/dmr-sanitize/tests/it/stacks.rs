//! A build contains the backends that it prints, and each stack tracks uses.

use dmr_core::UseTrackingExt;
use dmr_sanitize::machine::Machine;
use dmr_sanitize::stacks::{BACKENDS, STACKS, Stack};

#[test]
fn the_backends_are_those_of_the_features_and_sorted() {
    let features = [
        ("async", cfg!(feature = "all")),
        ("direct", true),
        ("nvtx", cfg!(feature = "nvtx")),
        ("pool", cfg!(feature = "pool-direct")),
        ("virtual", cfg!(feature = "all")),
    ];
    let expected: Vec<_> = features.iter().filter(|it| it.1).map(|(name, _)| *name).collect();
    assert_eq!(BACKENDS, expected);
    assert!(BACKENDS.is_sorted());
}

#[test]
fn every_stack_tracks_uses_and_shows_only_backends_that_the_build_lists() {
    for stack in STACKS {
        let machine = Machine::select().unwrap();
        let resource = stack.make(&machine.streams().unwrap()).unwrap();
        assert!(resource.supports_block_use_tracking(), "{}", stack.name);
        let shown = format!("{resource:?}").to_lowercase();
        for backend in ["async", "direct", "pool", "virtual"] {
            let is_shown = shown.contains(&format!("{backend}("));
            assert!(!is_shown || BACKENDS.contains(&backend), "{shown}");
        }
    }
}

#[test]
fn a_stack_that_the_build_lacks_is_refused_with_those_that_it_has() {
    let message = Stack::find("no-such-stack").unwrap_err().to_string();
    assert!(message.contains("no-such-stack") && message.contains("direct-tracked"), "{message}");
}
