//! `limit` refuses what would bring the bytes outstanding above it.

mod support;

use dmr_core::DeviceMemoryResource;
use dmr_trace::ReplayOptions;

use support::Fake;

#[test]
fn an_allocation_above_the_limit_is_a_failure_of_its_line_and_is_not_made() {
    let fake = Fake::new();
    let trace = "action,ptr,bytes\n\
                 allocate,1,600\nallocate,2,401\nallocate,3,400\nfree,2,401\nfree,3,400\nfree,1,600\n";
    let summary = fake.replay(trace, ReplayOptions::new().limit(1000)).unwrap();
    assert_eq!((summary.failed_allocs, summary.ops, summary.peak_live_bytes), (1, 4, 1000));
    assert_eq!(
        summary.failures.first[0].to_string(),
        "line 3: over the limit: 401 B asked, 400 B of 1000 B left"
    );
    assert_eq!(fake.calls().len(), 2);
    assert!(!summary.passed());
}

#[test]
fn what_is_retired_is_reaped_before_an_allocation_is_refused() {
    let fake = Fake::new();
    let trace = "action,ptr,bytes\nallocate,1,600\nfree,1,600\nallocate,2,600\nfree,2,600\n";
    let summary = fake.replay(trace, ReplayOptions::new().limit(600)).unwrap();
    assert!(summary.passed(), "{:?}", summary.details());
    assert_eq!(fake.usage().total_freed, 1200);
}

#[test]
fn a_limit_of_zero_refuses_everything_and_a_huge_one_nothing() {
    let trace = "action,ptr,bytes\nallocate,1,1\nallocate,2,18446744073709551615\n";
    for (limit, failed) in [(0, 2), (u64::MAX, 1)] {
        let summary = Fake::new().replay(trace, ReplayOptions::new().limit(limit)).unwrap();
        assert_eq!(summary.failed_allocs, failed, "limit {limit}");
    }
}
