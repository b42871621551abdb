//! The verdict at the end: the number of kept findings, and that reading it changes nothing.

use crate::support::gpu::{free, kinds, machine, malloc};

#[test]
fn finishing_twice_returns_the_same() {
    let (universe, _gpu) = machine();
    for _ in 0..1500 {
        malloc(1).unwrap();
    }
    let first = universe.finish();
    let second = universe.finish();
    assert_eq!(first.reports.len() as u64 + first.dropped, 1500);
    assert_eq!(first.dropped, second.dropped);
    assert_eq!(first.reports.len(), second.reports.len());
    assert_eq!(kinds(&universe), []);
}

#[test]
fn findings_beyond_those_kept_are_counted() {
    let (universe, _gpu) = machine();
    for _ in 0..1234 {
        assert!(free(64).is_err());
    }
    let verdict = universe.finish();
    assert_eq!(verdict.reports.len() as u64 + verdict.dropped, 1234);
    assert!(!verdict.is_clean());
    assert!(verdict.to_string().contains("1234 findings"));
}
