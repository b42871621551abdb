//! Prints programs as readable text, which can be pasted into a test, and parses it.

use std::fmt;
use std::str::FromStr;

use dmr_core::Access;
use dmr_sim::Policy;

use crate::calls;
use crate::program::{Call, CaptureMode, Fail, Hold, Line, Part, Program, Step, Used};
use crate::stack::Stack;

/// The error of a text that is no program: the line, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read this line of a program: {}", self.0)
    }
}

impl std::error::Error for ParseError {}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = match self.policy {
            Policy::Eager => "eager",
            Policy::Lazy => "lazy",
            Policy::Random => "random",
        };
        let Self { stack, seed, streams, .. } = self;
        writeln!(f, "stack {stack}, work {policy}, streams {streams}, seed {seed}")?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}: {}", self.thread, self.step)?;
        if let Some(Hold { call, lines }) = self.hold {
            write!(f, ", held at {call} for {lines} lines")?;
        }
        if let Some(Fail { call, code }) = self.fail {
            write!(f, ", {call} fails with {code}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.nth)
    }
}

struct Uses<'a>(&'a [Used]);

impl fmt::Display for Uses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|Used { block, access, part }| {
            write!(f, " b{block}")?;
            if let Some(Part { start, end }) = part {
                write!(f, "[{start}..{end}]")?;
            }
            write!(f, " {}", access_name(*access))
        })
    }
}

fn access_name(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "update",
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { block, bytes, stream } => {
                write!(f, "allocate b{block} of {bytes} on s{stream}")
            }
            Self::Launch { stream, uses } => write!(f, "launch on s{stream}{}", Uses(uses)),
            Self::Open { window, stream, uses } => {
                write!(f, "open w{window} on s{stream}{}", Uses(uses))
            }
            Self::OpenIdle { window, stream, uses } => {
                write!(f, "open idle w{window} on s{stream}{}", Uses(uses))
            }
            Self::Close { window } => write!(f, "close w{window}"),
            Self::Cancel { window } => write!(f, "cancel w{window}"),
            Self::Home { block, access } => write!(f, "at home b{block} {}", access_name(*access)),
            Self::Record { block } => write!(f, "record b{block}"),
            Self::Copy { from, to, stream } => write!(f, "copy b{from} to b{to} on s{stream}"),
            Self::Grow { block, bytes } => write!(f, "grow b{block} to {bytes}"),
            Self::Narrow { block, start, end } => write!(f, "narrow b{block} to {start} .. {end}"),
            Self::Free { block } => write!(f, "free b{block}"),
            Self::FreePart { block } => write!(f, "free part b{block}"),
            Self::Reap => f.write_str("reap"),
            Self::ReapPending => f.write_str("wait and reap"),
            Self::Trim { keep } => write!(f, "trim to {keep}"),
            Self::Synchronize { stream } => write!(f, "synchronize s{stream}"),
            Self::Delay { stream } => write!(f, "delay s{stream}"),
            Self::Replace { stream } => write!(f, "replace s{stream}"),
            Self::Adopt { stream } => write!(f, "adopt s{stream}"),
            Self::Retire { stream } => write!(f, "retire s{stream}"),
            Self::RetireAtOnce { stream } => write!(f, "retire s{stream} at once"),
            Self::RetireWithin { stream } => write!(f, "retire s{stream} in time"),
            Self::Capture { mode } => write!(f, "capture {}", mode_name(*mode)),
            Self::EndCapture => f.write_str("end capture"),
            Self::CaptureStream { stream, mode } => {
                write!(f, "capture s{stream} {}", mode_name(*mode))
            }
            Self::EndCaptureStream { stream } => write!(f, "end capture s{stream}"),
            Self::Pin { pinned, bytes, stream } => {
                write!(f, "pin p{pinned} of {bytes} on s{stream}")
            }
            Self::FillCounterpart { pinned, stream } => {
                write!(f, "fill device p{pinned} on s{stream}")
            }
            Self::CopyToHost { pinned, stream } => write!(f, "copy to p{pinned} on s{stream}"),
            Self::CopyToDevice { pinned, stream } => write!(f, "copy from p{pinned} on s{stream}"),
            Self::HostReads { pinned } => write!(f, "host reads p{pinned}"),
            Self::HostWrites { pinned } => write!(f, "host writes p{pinned}"),
            Self::Unpin { pinned } => write!(f, "unpin p{pinned}"),
            Self::ReapPinned => f.write_str("reap pinned"),
            Self::Fork => f.write_str("fork"),
        }
    }
}

fn mode_of(word: &str) -> Option<CaptureMode> {
    let modes = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
    modes.into_iter().find(|mode| mode_name(*mode) == word)
}

fn mode_name(mode: CaptureMode) -> &'static str {
    match mode {
        CaptureMode::Global => "global",
        CaptureMode::ThreadLocal => "thread-local",
        CaptureMode::Relaxed => "relaxed",
    }
}

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        let header = || {
            let words = words(first);
            let ["stack", stack, "work", policy, "streams", streams, "seed", seed] = words[..]
            else {
                return None;
            };
            Some(Self {
                stack: stack.parse::<Stack>().ok()?,
                policy: match policy {
                    "eager" => Policy::Eager,
                    "lazy" => Policy::Lazy,
                    "random" => Policy::Random,
                    _ => return None,
                },
                streams: streams.parse().ok()?,
                seed: seed.parse().ok()?,
                lines: Vec::new(),
            })
        };
        let mut program = header().ok_or_else(|| ParseError(first.to_owned()))?;
        for text in lines {
            program.lines.push(line(text).ok_or_else(|| ParseError(text.to_owned()))?);
        }
        Ok(program)
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split([' ', ',', ':']).filter(|word| !word.is_empty()).collect()
}

fn line(text: &str) -> Option<Line> {
    let mut clauses = text.split(", ");
    let main = words(clauses.next()?);
    let ["thread", thread, step @ ..] = &main[..] else { return None };
    let mut line = Line::new(thread.parse().ok()?, step_of(step)?);
    for clause in clauses {
        match words(clause)[..] {
            ["held", "at", name, nth, "for", lines, "lines"] => {
                line.hold = Some(Hold { call: call(name, nth)?, lines: lines.parse().ok()? });
            }
            [name, nth, "fails", "with", code] => {
                line.fail = Some(Fail { call: call(name, nth)?, code: code.parse().ok()? });
            }
            _ => return None,
        }
    }
    Some(line)
}

fn call(name: &str, nth: &str) -> Option<Call> {
    Some(Call { name: calls::find(name)?, nth: nth.parse().ok()? })
}

/// Returns the number in a name: 3 of `b3`.
fn number<T: FromStr>(kind: char, word: &str) -> Option<T> {
    word.strip_prefix(kind)?.parse().ok()
}

fn access_of(word: &str) -> Option<Access> {
    [Access::Read, Access::Write, Access::ReadWrite].into_iter().find(|it| access_name(*it) == word)
}

fn uses_of(words: &[&str]) -> Option<Vec<Used>> {
    words.chunks(2).map(|pair| use_of(pair[0], pair.get(1)?)).collect()
}

/// Returns a use: `b3` or `b3[0..4]`, and its access.
fn use_of(memory: &str, access: &str) -> Option<Used> {
    let access = access_of(access)?;
    let Some((block, part)) = memory.split_once('[') else {
        return Some(Used::whole(number('b', memory)?, access));
    };
    let (start, end) = part.strip_suffix(']')?.split_once("..")?;
    let part = Some(Part { start: start.parse().ok()?, end: end.parse().ok()? });
    Some(Used { block: number('b', block)?, access, part })
}

fn step_of(words: &[&str]) -> Option<Step> {
    let block = |word| number::<u32>('b', word);
    let stream = |word| number::<usize>('s', word);
    let window = |word| number::<u32>('w', word);
    let pinned = |word| number::<u32>('p', word);
    Some(match words {
        ["allocate", b, "of", bytes, "on", s] => {
            Step::Allocate { block: block(b)?, bytes: bytes.parse().ok()?, stream: stream(s)? }
        }
        ["launch", "on", s, uses @ ..] => Step::Launch { stream: stream(s)?, uses: uses_of(uses)? },
        ["open", "idle", w, "on", s, uses @ ..] => {
            Step::OpenIdle { window: window(w)?, stream: stream(s)?, uses: uses_of(uses)? }
        }
        ["open", w, "on", s, uses @ ..] => {
            Step::Open { window: window(w)?, stream: stream(s)?, uses: uses_of(uses)? }
        }
        ["close", w] => Step::Close { window: window(w)? },
        ["cancel", w] => Step::Cancel { window: window(w)? },
        ["at", "home", b, access] => Step::Home { block: block(b)?, access: access_of(access)? },
        ["record", b] => Step::Record { block: block(b)? },
        ["copy", from, "to", to, "on", s] => {
            Step::Copy { from: block(from)?, to: block(to)?, stream: stream(s)? }
        }
        ["grow", b, "to", bytes] => Step::Grow { block: block(b)?, bytes: bytes.parse().ok()? },
        ["narrow", b, "to", start, "..", end] => {
            Step::Narrow { block: block(b)?, start: start.parse().ok()?, end: end.parse().ok()? }
        }
        ["free", "part", b] => Step::FreePart { block: block(b)? },
        ["free", b] => Step::Free { block: block(b)? },
        ["reap"] => Step::Reap,
        ["wait", "and", "reap"] => Step::ReapPending,
        ["trim", "to", keep] => Step::Trim { keep: keep.parse().ok()? },
        ["synchronize", s] => Step::Synchronize { stream: stream(s)? },
        ["delay", s] => Step::Delay { stream: stream(s)? },
        ["replace", s] => Step::Replace { stream: stream(s)? },
        ["adopt", s] => Step::Adopt { stream: stream(s)? },
        ["retire", s, "at", "once"] => Step::RetireAtOnce { stream: stream(s)? },
        ["retire", s] => Step::Retire { stream: stream(s)? },
        ["retire", s, "in", "time"] => Step::RetireWithin { stream: stream(s)? },
        ["capture", mode] => Step::Capture { mode: mode_of(mode)? },
        ["end", "capture"] => Step::EndCapture,
        ["capture", s, mode] => Step::CaptureStream { stream: stream(s)?, mode: mode_of(mode)? },
        ["end", "capture", s] => Step::EndCaptureStream { stream: stream(s)? },
        ["pin", p, "of", bytes, "on", s] => {
            Step::Pin { pinned: pinned(p)?, bytes: bytes.parse().ok()?, stream: stream(s)? }
        }
        ["fill", "device", p, "on", s] => {
            Step::FillCounterpart { pinned: pinned(p)?, stream: stream(s)? }
        }
        ["copy", "to", p, "on", s] => Step::CopyToHost { pinned: pinned(p)?, stream: stream(s)? },
        ["copy", "from", p, "on", s] => {
            Step::CopyToDevice { pinned: pinned(p)?, stream: stream(s)? }
        }
        ["host", "reads", p] => Step::HostReads { pinned: pinned(p)? },
        ["host", "writes", p] => Step::HostWrites { pinned: pinned(p)? },
        ["unpin", p] => Step::Unpin { pinned: pinned(p)? },
        ["reap", "pinned"] => Step::ReapPinned,
        ["fork"] => Step::Fork,
        _ => return None,
    })
}
