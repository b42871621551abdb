//! Flaws of the trace are counted always, and fail a replay only if it is strict.

use dmr_trace::ReplayOptions;

use crate::support::Fake;

#[test]
fn each_flaw_is_named_by_line_and_fatal_only_when_strict() {
    let header = "action,ptr,bytes\nallocate,1,16\nfree,1,16\n";
    let flaws = [
        ("nonsense\n", "1 bad row", "bad row  line 4: the header has 3 columns"),
        ("free,9,16\n", "1 free without an allocation", "unpaired line 4: a free without"),
        ("allocate,2,16\n", "1 left over", "unfreed  line 4: the trace never frees it"),
    ];
    for (flaw, verdict, detail) in flaws {
        let trace = format!("{header}{flaw}");
        let lenient = Fake::new().replay(&trace, ReplayOptions::new()).unwrap();
        assert!(lenient.passed(), "{flaw}");
        let strict = Fake::new().replay(&trace, ReplayOptions::new().strict(true)).unwrap();
        assert_eq!(strict.verdict(), [verdict]);
        assert!(strict.details()[0].starts_with(detail), "{:?}", strict.details());
        assert_eq!(strict.ops, lenient.ops, "both replay the whole trace");
    }
    assert!(Fake::new().replay(header, ReplayOptions::new().strict(true)).unwrap().passed());
}

#[test]
fn a_free_twice_is_a_free_without_an_allocation() {
    let trace = "action,ptr,bytes\nallocate,1,16\nfree,1,16\nfree,1,16\n";
    let summary = Fake::new().replay(trace, ReplayOptions::new()).unwrap();
    assert_eq!(summary.unmatched_frees.first, [4]);
}
