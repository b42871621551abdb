//! The functions that the driver provides: `vprintf` and `__assertfail`.

use dmr_ptx_arith::lanes_of;

use super::block::BlockState;
use super::fault::{FaultKind, SpaceName};
use super::global::Qualifier;
use super::interpreter::{Flow, Interpreter, Stop};
use super::memory::Reach;
use super::program::{Actual, Builtin, Call};
use super::space::{LOCAL, Run, resolve};
use super::undefined::Undefined;
use super::warp::{LaneGroup, Warp};

/// The maximum bytes of a format or a string.
const LONGEST: usize = 1 << 16;

impl Interpreter<'_> {
    pub(super) fn builtin(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        builtin: Builtin,
        call: &Call,
    ) -> Result<Flow, Box<Stop>> {
        for lane in lanes_of(group.mask) {
            let mut arguments = [0; 8];
            for (to, actual) in arguments.iter_mut().zip(&call.arguments) {
                *to = self.argument(block, warp, group, lane, actual)?;
            }
            match builtin {
                Builtin::Print => {
                    let printed = self.format(block, warp, lane, arguments[0], arguments[1])?;
                    if let Some(result) = call.returns.first() {
                        self.set_result(warp, group, lane, result, printed);
                    }
                }
                Builtin::AssertFail => {
                    let [message, file, line, function, ..] = arguments;
                    let mut text = |at| -> Result<String, Box<Stop>> {
                        Ok(String::from_utf8_lossy(&self.string(block, warp, lane, at)?)
                            .into_owned())
                    };
                    let message = text(message)?;
                    let file = text(file)?;
                    let function = text(function)?;
                    let line = line as u32;
                    let message =
                        format!("{file}:{line}: {function}: Assertion `{message}` failed");
                    return Err(Stop::new(FaultKind::Assertion(message), lane));
                }
            }
        }
        Ok(Flow::Next)
    }

    fn argument(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        lane: usize,
        actual: &Actual,
    ) -> Result<u64, Box<Stop>> {
        match *actual {
            Actual::Value { value, .. } => {
                let undefined = warp.undefined.get(group.base, value);
                self.require(undefined, 1 << lane, "an argument")?;
                Ok(self.value(warp, group.base, value)[lane])
            }
            Actual::Frame { offset, bytes } => {
                let mut all = [0; 8];
                let address = LOCAL + u64::from(group.local) + offset;
                let into = &mut all[..bytes.min(8) as usize];
                self.bytes_at(block, warp, lane, address, into)?;
                Ok(u64::from_le_bytes(all))
            }
        }
    }

    fn set_result(
        &self,
        warp: &mut Warp,
        group: &LaneGroup,
        lane: usize,
        actual: &Actual,
        value: u64,
    ) {
        match *actual {
            Actual::Value { value: dst, .. } => {
                if let super::code::Source::Register(dst) = dst.source() {
                    warp.write_uniform(group.base, dst, 1 << lane, value);
                    let index = super::registers::number(group.base, dst);
                    warp.undefined.set(index, 1 << lane, &Undefined::NONE);
                }
            }
            Actual::Frame { offset, bytes } => {
                let len = bytes.min(8) as usize;
                if let Some((to, written)) =
                    warp.local.get(lane, u64::from(group.local) + offset, len)
                {
                    to.copy_from_slice(&value.to_le_bytes()[..len]);
                    written.fill(1);
                }
            }
        }
    }

    fn bytes_at(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        lane: usize,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), Box<Stop>> {
        if into.is_empty() {
            return Ok(());
        }
        let (space, address) = resolve(at);
        let bytes = into.len() as u32;
        let reach =
            Reach { space, mask: 1 << lane, bytes, qualifier: Qualifier::Plain, uniform: false };
        self.read_written(block, warp, &reach, Run { address, first: lane, count: 1 }, into)
    }

    /// Reads the bytes of a string up to its NUL.
    fn string(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        lane: usize,
        at: u64,
    ) -> Result<Vec<u8>, Box<Stop>> {
        let mut text = Vec::new();
        if at == 0 {
            return Ok(b"(null)".to_vec());
        }
        while text.len() < LONGEST {
            let mut byte = [0];
            self.bytes_at(block, warp, lane, at.wrapping_add(text.len() as u64), &mut byte)?;
            if byte[0] == 0 {
                return Ok(text);
            }
            text.push(byte[0]);
        }
        Err(Stop::new(FaultKind::Invalid(format!("a string longer than {LONGEST} bytes")), lane))
    }

    /// Prints one line of `vprintf`, and returns the number of its arguments.
    fn format(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        lane: usize,
        format: u64,
        arguments: u64,
    ) -> Result<u64, Box<Stop>> {
        let format = self.string(block, warp, lane, format)?;
        let mut at = 0u64;
        let mut count = 0;
        let mut rest = &format[..];
        let mut out = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            let mut spec = Spec::parse(&mut rest);
            if spec.conversion == b'%' {
                out.push(b'%');
                continue;
            }
            for star in [&mut spec.width, &mut spec.precision] {
                if *star == Some(usize::MAX) {
                    let mut bytes = [0; 4];
                    at = at.next_multiple_of(4);
                    self.bytes_at(block, warp, lane, arguments.wrapping_add(at), &mut bytes)?;
                    at += 4;
                    *star = usize::try_from(i32::from_le_bytes(bytes)).ok();
                }
            }
            let size = spec.argument_bytes();
            at = at.next_multiple_of(size as u64);
            let mut bytes = [0; 8];
            self.bytes_at(block, warp, lane, arguments.wrapping_add(at), &mut bytes[..size])?;
            at += size as u64;
            count += 1;
            let value = u64::from_le_bytes(bytes);
            let text = if spec.conversion == b's' {
                self.string(block, warp, lane, value)?
            } else {
                spec.convert(value)
            };
            spec.pad(text, &mut out);
        }
        let room = self.limits.printed_bytes.saturating_sub(self.printed.len());
        self.printed.extend_from_slice(&out[..out.len().min(room)]);
        let _ = SpaceName::Global;
        Ok(count)
    }
}

/// A conversion of a format: `%-8.3f`.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    zero: bool,
    alternate: bool,
    /// `usize::MAX` for `*`.
    width: Option<usize>,
    precision: Option<usize>,
    long: bool,
    conversion: u8,
}

impl Spec {
    fn parse(rest: &mut &[u8]) -> Self {
        let mut spec = Self::default();
        let next = |rest: &mut &[u8]| {
            let (&byte, after) = rest.split_first()?;
            *rest = after;
            Some(byte)
        };
        while let Some(&byte) = rest.first() {
            match byte {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'0' => spec.zero = true,
                b'#' => spec.alternate = true,
                _ => break,
            }
            next(rest);
        }
        spec.width = number(rest);
        if rest.first() == Some(&b'.') {
            next(rest);
            spec.precision = Some(number(rest).unwrap_or(0));
        }
        while let Some(&byte) = rest.first() {
            match byte {
                b'l' | b'j' | b'z' | b't' => spec.long = true,
                b'h' => {}
                _ => break,
            }
            next(rest);
        }
        spec.conversion = next(rest).unwrap_or(b'%');
        spec
    }

    fn argument_bytes(&self) -> usize {
        match self.conversion {
            b'd' | b'i' | b'u' | b'x' | b'X' | b'o' if !self.long => 4,
            b'c' => 4,
            _ => 8,
        }
    }

    fn convert(&self, value: u64) -> Vec<u8> {
        let signed = if self.long { value as i64 } else { i64::from(value as i32) };
        let float = f64::from_bits(value);
        let digits = |text: String| {
            let least = self.precision.unwrap_or(0).min(LONGEST);
            if text.len() < least { "0".repeat(least - text.len()) + &text } else { text }
        };
        let (negative, body) = match self.conversion {
            b'd' | b'i' => (signed < 0, digits(signed.unsigned_abs().to_string())),
            b'u' => return digits(value.to_string()).into_bytes(),
            b'x' => {
                return digits(format!("{}{value:x}", if self.alternate { "0x" } else { "" }))
                    .into_bytes();
            }
            b'X' => {
                return digits(format!("{}{value:X}", if self.alternate { "0X" } else { "" }))
                    .into_bytes();
            }
            b'o' => return digits(format!("{value:o}")).into_bytes(),
            b'c' => return vec![value as u8],
            b'p' => return format!("{value:#x}").into_bytes(),
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => (
                float.is_sign_negative(),
                convert_float(float.abs(), self.conversion, self.precision),
            ),
            _ => return vec![b'%', self.conversion],
        };
        let sign = match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        };
        format!("{sign}{body}").into_bytes()
    }

    fn pad(&self, text: Vec<u8>, out: &mut Vec<u8>) {
        let text = match self.precision {
            Some(most) if self.conversion == b's' => text[..text.len().min(most)].to_vec(),
            _ => text,
        };
        let missing = self.width.unwrap_or(0).min(LONGEST).saturating_sub(text.len());
        if self.left {
            out.extend_from_slice(&text);
            out.extend(std::iter::repeat_n(b' ', missing));
        } else if self.zero && self.conversion != b's' {
            let sign = usize::from(matches!(text.first(), Some(b'-' | b'+' | b' ')));
            out.extend_from_slice(&text[..sign]);
            out.extend(std::iter::repeat_n(b'0', missing));
            out.extend_from_slice(&text[sign..]);
        } else {
            out.extend(std::iter::repeat_n(b' ', missing));
            out.extend_from_slice(&text);
        }
    }
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    if rest.first() == Some(&b'*') {
        *rest = &rest[1..];
        return Some(usize::MAX);
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at(digits);
    *rest = after;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Converts a number that is not negative, as C does.
fn convert_float(value: f64, conversion: u8, precision: Option<usize>) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "nan".to_owned() } else { "inf".to_owned() };
    }
    let precision = precision.unwrap_or(6).min(512);
    let scientific = |digits: usize| {
        let text = format!("{value:.digits$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        (mantissa.to_owned(), exponent, format!("e{sign}{:02}", exponent.unsigned_abs()))
    };
    match conversion {
        b'f' | b'F' => format!("{value:.precision$}"),
        b'g' | b'G' => {
            let digits = precision.max(1);
            let (mantissa, exponent, suffix) = scientific(digits - 1);
            let trim = |text: String| match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            };
            if exponent < -4 || exponent >= digits as i32 {
                return trim(mantissa) + &suffix;
            }
            let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
            trim(format!("{value:.decimals$}"))
        }
        _ => {
            let (mantissa, _, suffix) = scientific(precision);
            mantissa + &suffix
        }
    }
}
