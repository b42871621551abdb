//! The assertions about the pages of the examples: numbers, what a click and a key do, speed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::browser::Browser;
use super::frames;
use crate::failure::Failure;

/// A page, the height of its picture in the guide if it has one, and its assertions.
pub(super) struct Check {
    pub(super) file: &'static str,
    pub(super) picture: Option<u32>,
    /// A script before the picture.
    pub(super) prepare: &'static str,
    pub(super) run: fn(&mut Checked<'_>) -> Result<(), Failure>,
}

/// All pages.
pub(super) const CHECKS: &[Check] = &[
    Check { file: "training.csv", picture: Some(1270), prepare: BY_EVENTS, run: training },
    Check { file: "training.rec", picture: None, prepare: "", run: stranded },
    Check { file: "fragmented.rec", picture: Some(1410), prepare: "", run: fragmented },
    Check { file: "budget.rec", picture: Some(1410), prepare: "", run: budget },
    Check { file: "waits.rec", picture: None, prepare: "", run: waits },
    Check { file: "race.csv", picture: Some(420), prepare: "", run: race },
    Check { file: "many.rec", picture: Some(1270), prepare: "", run: many },
];

/// Lets time go by the number of the event.
const BY_EVENTS: &str = "document.getElementById('axis').value = 'events'; \
                         document.getElementById('axis').dispatchEvent(new Event('change'))";

/// The most rectangles that a page draws.
const MOST: f64 = 20_000.0;

/// The milliseconds of script that a frame may have; one in a hundred may have twice as much, such
/// as for a collection of all garbage.
const SCRIPT_MS: f64 = 8.0;

/// An open page, and which of its assertions failed.
pub(super) struct Checked<'b> {
    browser: &'b mut Browser,
    page: PathBuf,
    /// The report for a terminal.
    text: String,
    pub(super) failures: Vec<String>,
}

impl<'b> Checked<'b> {
    pub(super) fn new(browser: &'b mut Browser, page: &Path, text: String) -> Self {
        Self { browser, page: page.to_owned(), text, failures: Vec::new() }
    }

    fn assert(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(message());
        }
    }

    /// Asserts that an element shows each of these texts.
    fn shows(&mut self, selector: &str, texts: &[&str]) -> Result<(), Failure> {
        let shown = self.browser.text(selector)?;
        for text in texts {
            self.assert(shown.contains(text), || {
                format!("{selector} does not show {text:?}, but {shown:?}")
            });
        }
        Ok(())
    }

    fn number(&mut self, expression: &str) -> Result<f64, Failure> {
        let value = self.browser.eval(expression)?;
        let number = value.as_f64();
        self.assert(number.is_some(), || format!("{expression} is {value}"));
        Ok(number.unwrap_or_default())
    }

    /// Moves the mouse to the place that a script returns.
    fn points_at(&mut self, script: &str) -> Result<(), Failure> {
        let place = self.browser.eval(script)?;
        let coordinate = |at: usize| place[at].as_f64().unwrap_or_default();
        self.browser.point_at(coordinate(0), coordinate(1))
    }

    /// Asserts that the report for a terminal has each of these.
    fn text_has(&mut self, texts: &[&str]) {
        for text in texts {
            let shown = self.text.clone();
            self.assert(shown.contains(text), || format!("{text:?} is not in\n{shown}"));
        }
    }

    /// Asserts that frames have little script while the heap map is zoomed and moved. What else
    /// runs on the machine makes a processor slower: one of three tries has to pass.
    fn has_short_frames(&mut self) -> Result<(), Failure> {
        let mut shown = Vec::new();
        for _ in 0..3 {
            let frames = frames::of(self.browser, zoom_and_move)?;
            let longest = frames.iter().copied().fold(0.0, f64::max);
            let over = frames.iter().filter(|script| **script > SCRIPT_MS).count();
            let count = frames.len();
            let text = format!(
                "{count} frames, {over} with more than {SCRIPT_MS} ms of script, the longest {longest:.1} ms"
            );
            println!("{}: {text}", self.page.display());
            if over * 100 <= count && longest <= 2.0 * SCRIPT_MS && count >= 100 {
                return Ok(());
            }
            shown.push(text);
        }
        self.failures.push(shown.join("; "));
        Ok(())
    }

    fn is_true(&mut self, expression: &str) -> Result<(), Failure> {
        let value = self.browser.eval(expression)?;
        self.assert(value == Value::Bool(true), || format!("{expression} is {value}"));
        Ok(())
    }
}

/// The peak is that of the trace, and one click leads to the blocks of a tag.
fn training(page: &mut Checked<'_>) -> Result<(), Failure> {
    page.is_true("dmrReport.shown.peak.bytes === 7679269128")?;
    page.shows("#holders-title", &["Who held the peak: 7.2 GiB at"])?;
    page.shows(
        "#holders",
        &["fwd 3.9 GiB 54.3 % 251 bwd 2 GiB 28.4 % 4 opt 846.9 MiB 11.6 % 296"],
    )?;
    page.browser.click("#holders tbody tr:nth-child(2)")?;
    page.shows("#blocks-title", &["The largest blocks of bwd then"])?;
    page.is_true("document.querySelectorAll('#blocks tbody tr').length === 4")?;
    page.browser.click("#blocks tbody tr")?;
    page.shows("#chunk", &["before", "block bwd, 1 GiB", "after"])?;
    // By the number of the event the same is shown at other places.
    page.browser.eval(BY_EVENTS)?;
    page.browser.settle()?;
    page.is_true("dmrReport.state.t1 === dmrReport.model.events - 1")?;
    page.is_true("dmrReport.shown.peak.time === dmrReport.shown.peak.event")?;
    page.shows("#holders-title", &["Who held the peak: 7.2 GiB at"])?;
    // Another moment: a click into the chart.
    let [x, y] = page.browser.place("#chart .u-over")?;
    page.browser.click_at(x, y)?;
    page.browser.settle()?;
    page.shows("#holders-title", &["Who held memory at"])?;
    page.browser.eval("document.getElementById('chart').focus()")?;
    page.browser.press("p")?;
    page.shows("#holders-title", &["Who held the peak: 7.2 GiB at"])?;
    page.browser.press("0")?;
    page.is_true("dmrReport.shown.rects <= 20000 && dmrReport.renderer === 'WebGL2'")?;
    // A log does not say what is reserved, and so not what is stranded.
    page.is_true("!/reserved|stranded/.test(document.getElementById('legend').innerText)")?;
    // The same without WebGL.
    let shown = page.number("dmrReport.shown.rects")?;
    let file = page.page.clone();
    page.browser.open(&file, "?canvas")?;
    page.browser.eval(BY_EVENTS)?;
    page.browser.settle()?;
    page.is_true("dmrReport.renderer === 'canvas'")?;
    page.is_true(&format!("dmrReport.shown.rects === {shown}"))?;
    page.is_true(
        "(() => { const canvas = document.getElementById('rects'); const image = canvas.getContext('2d')\
         .getImageData(0, 0, canvas.width, canvas.height).data; \
         return image.some((value) => value > 0); })()",
    )
}

/// The curves of reserved and stranded memory are those of the text.
fn stranded(page: &mut Checked<'_>) -> Result<(), Failure> {
    let peak = page.text.lines().find(|line| line.starts_with("peak ")).unwrap_or_default();
    let stranded = peak.rsplit_once(", ").map(|(_, stranded)| stranded.to_owned());
    let stranded = stranded.unwrap_or_default();
    page.assert(stranded.ends_with(" stranded"), || format!("the text has {stranded:?}"));
    page.shows("#holders-note", &[&format!("7.5 GiB reserved, {stranded}")])?;
    page.shows(
        "#legend",
        &["dashed line: reserved (up to 7.5 GiB)", "dotted line: stranded (up to"],
    )?;
    page.is_true("Math.max(...dmrReport.series.reserved) === 7680 * 2 ** 20")?;
    // Never more than what is reserved and not live, and nothing once all is freed.
    page.is_true(
        "dmrReport.series.stranded.every((bytes, at) => bytes >= 0 && bytes <= dmrReport.series.reserved[at])",
    )?;
    page.is_true("dmrReport.series.stranded.at(-1) === 0")?;
    page.is_true("dmrReport.series.stranded.some((bytes) => bytes > 2 ** 20)")
}

/// The page explains why 2 GiB were refused with more than 5 GiB free.
fn fragmented(page: &mut Checked<'_>) -> Result<(), Failure> {
    page.shows(
        "#failed",
        &[
            "1 request failed",
            "2 GiB of beam for decode at 328 ms: 2 GiB were requested, and 5.3 GiB were free, but in \
             7 holes: the largest had 969 MiB, which was too small.",
            "the limit of 8 GiB left 0 B",
            "Refused by: device memory. In use 2.7 GiB, reserved 8 GiB.",
        ],
    )?;
    page.browser.click("#failed summary")?;
    page.is_true("document.querySelectorAll('#failed table tbody tr').length === 7")?;
    page.shows(
        "#failed table",
        &["933 MiB smaller than the request session, 436 MiB session, 452 MiB"],
    )?;
    page.browser.click("#failed button")?;
    page.shows("#holders-title", &["Who held memory at 328 ms: 2.7 GiB"])?;
    page.shows("#holders", &["session 2.7 GiB 100.0 % 6"])?;
    page.browser.click("#holders tbody tr")?;
    page.shows("#blocks", &["500 MiB session decode 280.8 ms – 353 ms keep session"])?;
    // After the last free nothing is held.
    page.browser.eval("dmrReport.holdersAt(dmrReport.model.events - 1)")?;
    page.browser.settle()?;
    page.shows("#holders-title", &["Who held memory at 353 ms: 0 B"])?;
    // A place on the map is the chunk that was there, with what came before and after.
    let place = page.browser.eval(
        "(() => { const map = document.getElementById('map'); map.scrollIntoView({ block: 'center' }); \
         const box = map.getBoundingClientRect(); return [box.left + box.width * 0.5, box.bottom - 40]; })()",
    )?;
    let x = place[0].as_f64().unwrap_or_default();
    let y = place[1].as_f64().unwrap_or_default();
    page.browser.point_at(x, y)?;
    page.shows("#tip", &["kv-cache", "decode", "cache"])?;
    page.browser.click_at(x, y)?;
    page.browser.settle()?;
    page.shows("#chunk", &["block kv-cache", "after nothing in this file"])
}

/// Ticks are even and round, and no two have the same label, at any zoom.
const TICKS: &str = "(() => { \
    const units = { ns: 1, 'µs': 1e3, ms: 1e6, s: 1e9, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 }; \
    const problem = (ticks, isRound) => { \
        const step = ticks[1].at - ticks[0].at; \
        const isEven = ticks.every(({ at }, i) => at === (Math.round(ticks[0].at / step) + i) * step); \
        const isLabelled = new Set(ticks.map(({ text }) => text)).size === ticks.length; \
        const isExact = ticks.every(({ at, text }) => { \
            const [number, unit] = text.split(' '); \
            return Math.abs(Number(number.replaceAll(',', '')) * units[unit] - at) < step / 100; }); \
        const isFew = ticks.length <= 12; \
        return isEven && isLabelled && isExact && isFew && isRound(step) ? '' : ticks.map(({ text }) => text).join(); }; \
    const isDecimal = (step) => ['1', '2', '5'].includes(String(step).replace(/0*$/, '')); \
    let found = ''; \
    for (let wide = 2e12; wide > 3; wide *= 0.83) { \
        for (const from of [0, 1, wide * 0.37, 7 * wide, 123456789]) { \
            found ||= problem(dmrReport.ticks(from, from + wide, 1200), isDecimal); \
            found ||= problem(dmrReport.sizeTicks(from, from + wide, 5), (step) => Number.isInteger(Math.log2(step))); } } \
    return found; })()";

/// The page names the budget, and groups by query and by budget.
fn budget(page: &mut Checked<'_>) -> Result<(), Failure> {
    page.shows("#failed", &["1.8 GiB of sort buffer for join", "Refused by: budget `queries`"])?;
    page.browser.eval(
        "document.getElementById('key').value = 'query'; \
         document.getElementById('key').dispatchEvent(new Event('change'))",
    )?;
    page.browser.settle()?;
    page.shows("#legend", &["query 3", "query 2", "query 1"])?;
    page.shows("#holders", &["query 3 2.3 GiB 51.1 % 21 query 2 1.6 GiB 36.4 % 15 query 1"])?;
    page.text_has(&["by query\n            2.3 GiB   51 %  query 3  (21 blocks)"]);
    page.browser.eval(
        "document.getElementById('key').value = 'budget'; \
         document.getElementById('key').dispatchEvent(new Event('change'))",
    )?;
    page.browser.settle()?;
    page.shows("#legend", &["hash join", "scan", "new high mark of a budget"])?;
    page.shows("#holders", &["budget bytes share blocks hash join 4.4 GiB 98.4 % 40 scan 72 MiB"])?;
    page.text_has(&[
        "            4.4 GiB   98 %  hash join  (40 blocks)\n",
        "            4.4 GiB  of 5 GiB, the high mark of hash join, at 202.000 ms\n",
    ]);
    // The limits are lines of the chart, and each high mark has a sign.
    page.shows(
        "#budgets",
        &["queries 5 GiB 6 GiB 83 % 198.6 ms hash join 4.4 GiB 5 GiB 87 % 202 ms"],
    )?;
    page.is_true(
        "dmrReport.state.budgets.map(({ name, limit }) => `${name} ${limit / 2 ** 20}`).join() \
         === 'queries 6144,hash join 5120,scan 256'",
    )?;
    page.is_true(
        "dmrReport.state.budgets.every(({ marks }) => marks.length > 1 \
         && marks.every(({ bytes }, at) => at === 0 || bytes > marks[at - 1].bytes))",
    )?;
    page.is_true("dmrReport.drawn.limits === 3 && dmrReport.drawn.marks > 40")?;
    page.browser.click("#budgets tbody tr:nth-child(2)")?;
    page.shows("#holders-title", &["Who held memory at 202 ms"])?;
    page.is_true("dmrReport.drawn.limits === 1")?;
    let ticks = page.browser.eval(TICKS)?;
    page.assert(ticks == "", || format!("the ticks of {ticks}"));
    Ok(())
}

/// The page says which stream waits for which, and because of which block; keys and the wheel move.
fn waits(page: &mut Checked<'_>) -> Result<(), Failure> {
    page.shows(
        "#pairs",
        &["compute copy 200 200 because of batch", "send compute 200 200 because of gradient"],
    )?;
    page.shows("#waits-title", &["compute waits for copy because of 200 blocks"])?;
    let arrow = page.browser.eval(
        "(() => { const lanes = document.getElementById('lanes'); lanes.scrollIntoView({ block: 'center' }); \
         const box = lanes.getBoundingClientRect(); const arrow = dmrReport.arrows[0]; \
         return [box.left + arrow.x + 1, box.top + arrow.y + 1]; })()",
    )?;
    let x = arrow[0].as_f64().unwrap_or_default();
    let y = arrow[1].as_f64().unwrap_or_default();
    page.browser.point_at(x, y)?;
    page.shows("#tip", &["compute waits for copy at 250 µs, because of block batch, 48 MiB"])?;
    page.browser.click_at(x, y)?;
    page.browser.settle()?;
    page.shows("#wait", &["compute waits for copy", "forward, launch"])?;
    page.shows("#chunk", &["before nothing", "block batch, 48 MiB", "after batch, 48 MiB"])?;
    page.browser.click("#pairs tbody tr:nth-child(3)")?;
    page.shows("#waits-title", &["compute waits for send because of 1 block"])?;
    page.shows("#waits", &["weights 600 MiB 40"])?;
    lengths(page)?;
    // The keyboard, once a view has the focus.
    page.browser.click("#chart .u-over")?;
    page.browser.eval("document.getElementById('chart').focus()")?;
    let all = page.number("dmrReport.state.t1 - dmrReport.state.t0")?;
    page.browser.press("+")?;
    page.is_true(&format!("dmrReport.state.t1 - dmrReport.state.t0 < {all} * 0.8"))?;
    page.browser.press("ArrowRight")?;
    page.is_true("dmrReport.state.t0 > 0")?;
    let [x, y] = page.browser.place("#chart")?;
    let wide = page.number("dmrReport.state.t1 - dmrReport.state.t0")?;
    page.browser.wheel_at(x, y, -300.0)?;
    page.is_true(&format!("dmrReport.state.t1 - dmrReport.state.t0 < {wide} * 0.8"))?;
    page.browser.press("0")?;
    page.is_true(&format!("dmrReport.state.t1 - dmrReport.state.t0 === {all}"))?;
    // Dark and light.
    let dark = "getComputedStyle(document.body).backgroundColor";
    let before = page.browser.eval(dark)?;
    page.browser.click("#theme")?;
    let after = page.browser.eval(dark)?;
    page.assert(before != after, || format!("the theme has not changed: {after}"));
    Ok(())
}

/// A wait with a measured length is a bar of that length on the lane of the stream that waits, and
/// one of the host a bar on the lane of its thread.
fn lengths(page: &mut Checked<'_>) -> Result<(), Failure> {
    page.browser.click("#pairs tbody tr")?;
    page.is_true("dmrReport.bars.length === 50")?;
    // All pairs again.
    page.browser.click("#pairs tbody tr")?;
    page.browser.settle()?;
    page.shows("#pairs", &["because of batch 50: median 200 µs, longest 296 µs"])?;
    page.text_has(&[
        "(200 because of batch); 50 measured: median 200 us, longest 296 us\n",
        "host     thread 1 waits for compute: 10 times, 4.000 ms in all, longest 400 us\n",
    ]);
    page.is_true("dmrReport.bars.length === 60")?;
    page.browser.eval("dmrReport.setRange(0, 2_000_000)")?;
    page.browser.settle()?;
    let widths = "dmrReport.bars.map(({ lane, ns, box }) => [lane, ns, Math.round(box[2] / \
                  (document.getElementById('lanes').clientWidth - 122) * 2_000_000)])";
    page.is_true(&format!("JSON.stringify({widths}) === '[[1,100000,100000]]'"))?;
    let tip = |at: &str| {
        format!(
            "(() => {{ const lanes = document.getElementById('lanes'); \
             lanes.scrollIntoView({{ block: 'center' }}); const box = lanes.getBoundingClientRect(); \
             const [left, top, wide, tall] = dmrReport.bars.{at}.box; \
             return [box.left + left + wide / 2, box.top + top + tall / 2]; }})()"
        )
    };
    page.points_at(&tip("at(0)"))?;
    page.shows("#tip", &["compute was held up by copy for 100 µs, because of block batch"])?;
    page.shows("#tip", &["the wait was queued at 250 µs"])?;
    page.browser.eval("dmrReport.setRange(0, dmrReport.model.clock.at(-1))")?;
    page.browser.settle()?;
    page.points_at(&tip("find((bar) => bar.host === 0)"))?;
    page.shows("#tip", &["host thread 1 waited for compute for 400 µs, from"])
}

/// A race is two marks with the wait that is missing between them.
fn race(page: &mut Checked<'_>) -> Result<(), Failure> {
    page.shows("#findings", &["read-after-write race: the read is not ordered after the write"])?;
    page.shows("#findings", &["128 bytes at 0x"])?;
    page.is_true("document.querySelectorAll('#found svg path.missing').length === 1")?;
    let labels = page.browser.eval(
        "[...document.querySelectorAll('#found svg text')].map((it) => it.textContent).join('; ')",
    )?;
    let labels = labels.as_str().unwrap_or_default().to_owned();
    for text in [
        "missing: stream 2 does not wait for this",
        "kernel scale, operation 4 of stream 1; at ",
        "copy, operation 2 of stream 2; at ",
        "examples/race.rs:",
    ] {
        page.assert(labels.contains(text), || format!("{text:?} is not drawn: {labels}"));
    }
    Ok(())
}

/// Turns the wheel on the heap map without a pause, so that views are left before they are
/// complete, and presses keys.
fn zoom_and_move(browser: &mut Browser) -> Result<(), Failure> {
    let [x, y] = browser.place("#map")?;
    browser.click_at(x, y)?;
    for at in 0..80 {
        browser.turn_at(x, y, if at < 40 { -120.0 } else { 120.0 })?;
    }
    browser.settle()?;
    for key in ["ArrowRight", "]", "-", "[", "0"] {
        browser.press(key)?;
    }
    Ok(())
}

/// However many events there are, few rectangles are drawn, and frames stay short.
fn many(page: &mut Checked<'_>) -> Result<(), Failure> {
    let events = page.number("dmrReport.model.events")?;
    let ready = page.number("dmrReport.readyMs")?;
    println!("many.rec: {events} events, ready after {ready:.0} ms of the page's clock");
    let mut rects = Vec::new();
    for part in [0.9, 0.5, 0.1, 0.01, 0.001, 1.0] {
        page.browser.eval(&format!(
            "(() => {{ const all = dmrReport.model.time.at(-1); \
             dmrReport.setRange(all * (1 - {part}) / 2, all * (1 + {part}) / 2); }})()"
        ))?;
        page.browser.settle()?;
        rects.push(page.number("dmrReport.shown.rects")?);
    }
    for count in &rects {
        page.assert(*count <= MOST, || format!("{count} rectangles are drawn"));
    }
    page.assert(rects.iter().any(|count| *count > MOST / 2.0), || format!("few: {rects:?}"));
    page.has_short_frames()?;
    let blocks = page.number("dmrReport.model.blocks")?;
    page.browser.eval(
        "document.getElementById('tag').selectedIndex = 1; \
         document.getElementById('filters').requestSubmit()",
    )?;
    page.browser.settle()?;
    page.is_true("document.querySelectorAll('#holders tbody tr').length === 1")?;
    let shown = page.browser.text("#progress")?;
    page.assert(!shown.starts_with("0 blocks"), || format!("the filter leaves {shown}"));
    page.assert(blocks > events / 3.0, || format!("{blocks} blocks of {events} events"));
    Ok(())
}
