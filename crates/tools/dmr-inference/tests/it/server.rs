//! The server on the driver that the process uses: right tokens, on every runtime.

use dmr_inference::Config;
use dmr_inference::schedule::{run_on_cudarc, run_on_cudarc_pages, run_on_dmr, run_on_dmr_graphs};
use dmr_sim::{Driver, Universe};

#[test]
fn every_request_gets_the_models_tokens() {
    let simulated = match dmr_sim::select().unwrap() {
        Driver::Simulated(_) => Some(Universe::new().unwrap()),
        _ => None,
    };
    let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
    let config = Config { ordinal, prompt: 49, requests: 64, ..Config::default() };
    let short = Config { budget: Some(4 << 20), prompt: 89, ..config.clone() };
    for outcome in [
        run_on_dmr(&config).unwrap(),
        run_on_dmr(&short).unwrap(),
        run_on_dmr_graphs(&config).unwrap(),
        run_on_dmr_graphs(&short).unwrap(),
        run_on_cudarc(&config).unwrap(),
        run_on_cudarc_pages(&config).unwrap(),
    ] {
        let report = outcome.report;
        assert_eq!((report.served, report.refused, report.wrong), (64, 0, 0), "{report}");
        assert_eq!(report.totals.conflicts, 0, "{report}");
    }
    // The server on cudarc races: its slices remember one reader.
    let races = simulated.as_ref().map(Universe::reports).unwrap_or_default();
    assert!(races.iter().all(|report| report.kind.is_race()), "{races:?}");
}
