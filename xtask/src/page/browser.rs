//! A headless Chromium, driven through a pair of pipes: its debugging protocol without a socket.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::Failure;

/// The longest time that a command of the browser may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page in a browser of its own, which ends with it.
pub(crate) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: String,
    next: u64,
    /// The events of a trace.
    trace: Vec<Value>,
    is_traced: bool,
    /// Errors of the page's script, and requests to a network.
    pub(crate) complaints: Vec<String>,
}

/// A size of the window, in pixels.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Browser {
    /// Starts the browser, with a profile in `folder`.
    pub(crate) fn start(program: &Path, folder: &Path, window: Window) -> Result<Self, Failure> {
        let profile = fresh(folder)?;
        let requests = profile.join("requests");
        let replies = profile.join("replies");
        let made = Command::new("mkfifo").args([&requests, &replies]).status();
        if !made.is_ok_and(|status| status.success()) {
            return Err(setup("cannot make the pipes of the browser"));
        }
        // The protocol reads from descriptor 3 and writes to 4: a shell can open both without
        // unsafe code.
        let child = Command::new("sh")
            .args([
                "-c",
                "requests=$1; replies=$2; shift 2; exec \"$@\" 3<\"$requests\" 4>\"$replies\"",
                "sh",
            ])
            .args([&requests, &replies])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .args(["--disable-sync", "--enable-unsafe-swiftshader", "--hide-scrollbars"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| setup(&format!("cannot start {}: {error}", program.display())))?;
        let cannot = |error| setup(&format!("cannot open the pipes of the browser: {error}"));
        let to = File::options().write(true).open(&requests).map_err(cannot)?;
        let from = read_in_thread(File::open(&replies).map_err(cannot)?);
        let mut browser = Self {
            child,
            to,
            from,
            session: String::new(),
            next: 0,
            trace: Vec::new(),
            is_traced: false,
            complaints: Vec::new(),
        };
        browser.attach(window)?;
        Ok(browser)
    }

    fn attach(&mut self, window: Window) -> Result<(), Failure> {
        let targets = self.call("Target.getTargets", json!({}))?;
        let all = targets["targetInfos"].as_array().cloned().unwrap_or_default();
        let page = all.iter().find(|target| target["type"] == "page");
        let page = page.ok_or_else(|| setup("the browser has no page"))?;
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", attach)?;
        self.session = attached["sessionId"].as_str().unwrap_or_default().to_owned();
        for domain in ["Runtime", "Page", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        let Window { width, height } = window;
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics).map(|_| ())
    }

    /// Calls a method of the protocol, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let cannot = |error| setup(&format!("cannot write to the browser: {error}"));
        self.to.write_all(format!("{message}\0").as_bytes()).map_err(cannot)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let reply = self.receive(until, method)?;
            if reply["id"] == id {
                let error = reply["error"]["message"].as_str();
                return match error {
                    Some(error) => Err(setup(&format!("{method}: {error}"))),
                    None => Ok(reply["result"].clone()),
                };
            }
            self.note(&reply);
        }
    }

    fn receive(&mut self, until: Instant, what: &str) -> Result<Value, Failure> {
        let left = until.saturating_duration_since(Instant::now());
        let reply = self.from.recv_timeout(left);
        reply.map_err(|_| setup(&format!("no reply of the browser: {what}")))
    }

    /// Ends a trace, and returns its events.
    pub(crate) fn end_trace(&mut self) -> Result<Vec<Value>, Failure> {
        self.is_traced = true;
        self.call("Tracing.end", json!({}))?;
        let until = Instant::now() + PATIENCE;
        while self.is_traced {
            let event = self.receive(until, "Tracing.end")?;
            self.note(&event);
        }
        Ok(std::mem::take(&mut self.trace))
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                let exception = &params["exceptionDetails"]["exception"]["description"];
                self.complaints.push(format!("error of the page's script: {exception}"));
            }
            Some("Network.requestWillBeSent") => {
                let address = params["request"]["url"].as_str().unwrap_or_default();
                let is_own = ["file:", "data:", "blob:", "about:"];
                if !is_own.iter().any(|own| address.starts_with(own)) {
                    self.complaints.push(format!("the page has asked for {address}"));
                }
            }
            Some("Tracing.dataCollected") => {
                self.trace.extend(params["value"].as_array().into_iter().flatten().cloned());
            }
            Some("Tracing.tracingComplete") => self.is_traced = false,
            _ => {}
        }
    }

    /// Opens a page and waits until it shows everything. Returns the time that it took.
    pub(crate) fn open(&mut self, page: &Path, query: &str) -> Result<Duration, Failure> {
        let begin = Instant::now();
        let address = format!("file://{}{query}", page.display());
        self.call("Page.navigate", json!({ "url": address }))?;
        self.settle()?;
        Ok(begin.elapsed())
    }

    /// Waits until the page has no work left.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        const STATE: &str =
            "String(window.dmrReport ? (dmrReport.error ?? dmrReport.isReady) : false)";
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.eval(STATE)?.as_str() {
                Some("true") => return Ok(()),
                Some("false") => std::thread::sleep(Duration::from_millis(20)),
                error => return Err(setup(&format!("the page has failed: {error:?}"))),
            }
        }
        Err(setup("the page is not ready"))
    }

    /// Evaluates an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Result<Value, Failure> {
        let params = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let result = self.call("Runtime.evaluate", params)?;
        match &result["exceptionDetails"] {
            Value::Null => Ok(result["result"]["value"].clone()),
            error => Err(setup(&format!("{expression}: {}", error["exception"]["description"]))),
        }
    }

    /// Returns the text of an element as it is shown, with single spaces.
    pub(crate) fn text(&mut self, selector: &str) -> Result<String, Failure> {
        let shown = self.eval(&format!("document.querySelector({selector:?}).innerText"))?;
        let words: Vec<_> = shown.as_str().unwrap_or_default().split_whitespace().collect();
        Ok(words.join(" "))
    }

    /// Returns the middle of an element, after it was scrolled into view.
    pub(crate) fn place(&mut self, selector: &str) -> Result<[f64; 2], Failure> {
        let script = format!(
            "(() => {{ const it = document.querySelector({selector:?}); \
             it.scrollIntoView({{ block: \"center\" }}); const box = it.getBoundingClientRect(); \
             return [box.left + box.width / 2, box.top + box.height / 2]; }})()"
        );
        let place = self.eval(&script)?;
        Ok([place[0].as_f64().unwrap_or_default(), place[1].as_f64().unwrap_or_default()])
    }

    /// Clicks an element with the mouse.
    pub(crate) fn click(&mut self, selector: &str) -> Result<(), Failure> {
        let [x, y] = self.place(selector)?;
        self.click_at(x, y)?;
        self.settle()
    }

    /// Clicks at a place.
    pub(crate) fn click_at(&mut self, x: f64, y: f64) -> Result<(), Failure> {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let params = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params)?;
        }
        Ok(())
    }

    /// Moves the mouse to a place.
    pub(crate) fn point_at(&mut self, x: f64, y: f64) -> Result<(), Failure> {
        let params = json!({ "type": "mouseMoved", "x": x, "y": y, "button": "none" });
        self.call("Input.dispatchMouseEvent", params).map(|_| ())
    }

    /// Turns the wheel at a place, and waits until the page has no work left.
    pub(crate) fn wheel_at(&mut self, x: f64, y: f64, turn: f64) -> Result<(), Failure> {
        self.turn_at(x, y, turn)?;
        self.settle()
    }

    /// Turns the wheel at a place.
    pub(crate) fn turn_at(&mut self, x: f64, y: f64, turn: f64) -> Result<(), Failure> {
        let params = json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": turn });
        self.call("Input.dispatchMouseEvent", params).map(|_| ())
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str) -> Result<(), Failure> {
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key });
            if key.chars().count() == 1 && kind == "keyDown" {
                params["text"] = json!(key);
            }
            self.call("Input.dispatchKeyEvent", params)?;
        }
        self.settle()
    }

    /// Returns a picture of the page, of its first `height` pixels, as PNG.
    pub(crate) fn picture(&mut self, window: Window) -> Result<Vec<u8>, Failure> {
        let clip = json!({
            "x": 0, "y": 0, "width": window.width, "height": window.height, "scale": 1,
        });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.call("Page.captureScreenshot", params)?;
        Ok(from_base64(shot["data"].as_str().unwrap_or_default()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an empty folder.
fn fresh(folder: &Path) -> Result<PathBuf, Failure> {
    let cannot = |error| setup(&format!("cannot make {}: {error}", folder.display()));
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(cannot)?;
    }
    fs::create_dir_all(folder).map_err(cannot)?;
    Ok(folder.to_owned())
}

/// Reads messages, each of which ends with a zero byte, so that waiting for one can end.
fn read_in_thread(replies: File) -> Receiver<Value> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        let mut replies = BufReader::new(replies);
        loop {
            let mut message = Vec::new();
            let read = replies.read_until(0, &mut message);
            if read.is_err() || message.pop().is_none() {
                return;
            }
            let Ok(message) = serde_json::from_slice(&message) else { continue };
            if to.send(message).is_err() {
                return;
            }
        }
    });
    from
}

fn from_base64(text: &str) -> Vec<u8> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

fn setup(message: &str) -> Failure {
    Failure::Setup(message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length_is_decoded() {
        let decoded = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="].map(from_base64);
        assert_eq!(decoded, [&b""[..], b"f", b"fo", b"foo", b"foob"]);
    }
}
