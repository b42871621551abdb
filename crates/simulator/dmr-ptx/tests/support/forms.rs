//! Runs forms on the interpreter.

use std::sync::atomic::{AtomicUsize, Ordering};

use dmr_ptx::{Access, AccessError, Checks, GlobalMemory, Launch, Program};

use crate::hardware::{BLOCK, Form, HEADER, operands};

const OPERANDS: u64 = 0x1000_0000;
const RESULTS: u64 = 0x2000_0000;

/// The memory of a launch: the operands and the results.
struct Memory {
    operands: Vec<u8>,
    results: Vec<u8>,
}

impl Memory {
    fn part(&mut self, access: &Access) -> Result<&mut [u8], AccessError> {
        let (bytes, base) = if access.address >= RESULTS {
            (&mut self.results, RESULTS)
        } else {
            (&mut self.operands, OPERANDS)
        };
        let start = access.address.wrapping_sub(base) as usize;
        let part = bytes.get_mut(start..start.saturating_add(access.bytes as usize));
        part.ok_or_else(|| AccessError::new(0, "out of bounds"))
    }
}

impl GlobalMemory for Memory {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(self.part(access)?);
        Ok(())
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        self.part(access)?.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        change(self.part(access)?);
        Ok(())
    }
}

/// Runs every `step`th block of a form, and returns the words of its results, or why it does not
/// run.
pub(crate) fn results(form: &Form, step: usize) -> Result<Vec<u64>, String> {
    let program = Program::load(&format!("{HEADER}{}", form.kernel("form")))
        .map_err(|error| error.to_string())?;
    let kernel = program.kernel("form").ok_or("no kernel")?;
    let words = operands::operands(&form.kinds, form.rows, form.seed());
    let blocks: Vec<&[u64]> =
        words.chunks(BLOCK as usize * form.kinds.len()).step_by(step).collect();
    let mut memory = Memory {
        operands: blocks.concat().iter().flat_map(|word| word.to_le_bytes()).collect(),
        results: vec![0; blocks.len() * BLOCK as usize * form.results * 8],
    };
    let params = [OPERANDS.to_le_bytes(), RESULTS.to_le_bytes()].concat();
    let mut launch = Launch::new(&program, kernel, [blocks.len() as u32, 1, 1], [BLOCK, 1, 1]);
    launch.params = &params;
    launch.checks = Checks::none();
    launch.run(&mut memory).map_err(|fault| fault.to_string())?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    Ok(memory.results.chunks_exact(8).map(word).collect())
}

/// Calls `check` for each form, on as many threads as there are processors, and returns what it
/// returns.
pub(crate) fn on_all<F: Sync, T: Send>(forms: &[F], check: impl Fn(&F) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let worker = || {
        let mut found = Vec::new();
        while let Some(form) = forms.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.push(check(form));
        }
        found
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    })
}

/// Returns whether two results of an approximation are near each other.
pub(crate) fn is_near(form: &Form, a: u64, b: u64) -> bool {
    let (relative, absolute) = form.tolerance();
    let near = |a: f64, b: f64| {
        a == b || a.is_nan() && b.is_nan() || {
            let least = f64::from(f32::MIN_POSITIVE);
            (a - b).abs() <= (relative * a.abs().max(b.abs())).max(absolute).max(least)
        }
    };
    let parts = |bits: u32, value: fn(u64) -> f64| {
        (0..64 / bits).all(|n| {
            let mask = u64::MAX >> (64 - bits);
            near(value(a >> (n * bits) & mask), value(b >> (n * bits) & mask))
        })
    };
    let name = form.name.trim_end_matches("x2");
    if name.ends_with(".bf16") {
        parts(16, |bits| f64::from(f32::from_bits((bits as u32) << 16)))
    } else if name.ends_with(".f16") {
        parts(16, half)
    } else if name.ends_with(".f64") {
        parts(64, f64::from_bits)
    } else {
        parts(32, |bits| f64::from(f32::from_bits(bits as u32)))
    }
}

/// Returns the value of an `f16`.
fn half(bits: u64) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = bits >> 10 & 0x1f;
    let fraction = (bits & 0x3ff) as f64;
    match exponent {
        0 => sign * fraction * (-24f64).exp2(),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * (exponent as f64 - 25.0).exp2(),
    }
}
