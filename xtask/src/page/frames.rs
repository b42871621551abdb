//! The script of each frame, from the browser's trace: milliseconds of processor time.

use serde_json::{Value, json};

use super::browser::Browser;
use crate::failure::Failure;

/// The event that calls the page's function for a frame.
const FRAME: &str = "FireAnimationFrame";

/// The events that run script. Those that another one contains are counted with it.
const SCRIPT: [&str; 5] = [FRAME, "EventDispatch", "TimerFire", "FunctionCall", "RunMicrotasks"];

/// The event of an evaluation for the checks: not the page's own script.
const EVALUATED: &str = "EvaluateScript";

/// Runs `work` on a page, and returns the script of each frame meanwhile: with the handlers of
/// events before it, and the garbage collections in them. It is processor time, so that a busy
/// machine that stops the browser in the middle of a frame does not count.
pub(super) fn of(
    browser: &mut Browser,
    work: impl FnOnce(&mut Browser) -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    let config = json!({ "includedCategories": ["devtools.timeline"] });
    let start = json!({ "traceConfig": config, "transferMode": "ReportEvents" });
    browser.call("Tracing.start", start)?;
    let outcome = work(browser);
    let events = browser.end_trace()?;
    outcome.map(|()| scripts(&events))
}

/// Sums up the script of each frame of the thread that has most frames.
fn scripts(events: &[Value]) -> Vec<f64> {
    let frames = events.iter().filter(|event| event["name"] == FRAME);
    let threads: Vec<_> = frames.map(|event| [&event["pid"], &event["tid"]]).collect();
    let count = |thread: &&[&Value; 2]| threads.iter().filter(|it| it == thread).count();
    let Some(main) = threads.iter().max_by_key(count) else { return Vec::new() };
    let is_script = |event: &&Value| {
        let name = event["name"].as_str().unwrap_or_default();
        [&event["pid"], &event["tid"]] == *main
            && event["ph"] == "X"
            && (name == EVALUATED || SCRIPT.contains(&name))
    };
    let mut scripts: Vec<_> = events.iter().filter(is_script).collect();
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or_default();
    scripts.sort_by(|a, b| number(a, "ts").total_cmp(&number(b, "ts")));
    let mut frames = Vec::new();
    let mut sum = 0.0;
    let mut end = 0.0;
    for event in scripts {
        let begin = number(event, "ts");
        if begin < end {
            continue;
        }
        end = begin + number(event, "dur");
        if event["name"] != EVALUATED {
            sum += number(event, "tdur") / 1000.0;
        }
        if event["name"] == FRAME {
            frames.push(sum);
            sum = 0.0;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, tid: u64, ts: u64, dur: u64, tdur: u64) -> Value {
        json!({ "name": name, "ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "tdur": tdur })
    }

    #[test]
    fn a_frame_has_the_handlers_before_it_and_nothing_twice() {
        let events = [
            event(FRAME, 7, 3000, 5000, 4000),
            event("FunctionCall", 7, 3100, 100, 100),
            event("EventDispatch", 7, 1000, 600, 500),
            event(EVALUATED, 7, 1700, 1000, 1000),
            event("EventDispatch", 8, 2000, 600, 500),
            event(FRAME, 7, 9000, 2000, 1000),
        ];
        assert_eq!(scripts(&events), [4.5, 1.0]);
        assert_eq!(scripts(&[]), [0.0; 0]);
    }
}
