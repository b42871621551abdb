//! Prints how many instructions of threads a second the interpreter executes, for several kernels,
//! each with all checks and with none; with an argument, only that kernel.

#![allow(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::time::Instant;

use dmr_ptx::{Access, AccessError, Checks, GlobalMemory, Launch, Program};

const BASE: u64 = 0x1000_0000_0000;

/// The name, the text and the number of launches of each kernel.
const KERNELS: [(&str, &str, u32); 9] = [
    ("axpy", include_str!("axpy.ptx"), 8),
    ("reduction", include_str!("reduction.ptx"), 2),
    ("hash", include_str!("hash.ptx"), 1),
    ("uniform", include_str!("uniform.ptx"), 1),
    ("matmul", include_str!("matmul.ptx"), 1),
    ("sort", include_str!("sort.ptx"), 2),
    ("atomics", include_str!("atomics.ptx"), 4),
    ("local", include_str!("local.ptx"), 1),
    ("mma", include_str!("mma.ptx"), 1),
];

struct Bytes(Vec<u8>);

impl Bytes {
    fn part(&mut self, access: &Access) -> Result<&mut [u8], AccessError> {
        let start = access.address.wrapping_sub(BASE) as usize;
        let error = || AccessError::new(0, "out of bounds");
        self.0.get_mut(start..start.saturating_add(access.bytes as usize)).ok_or_else(error)
    }
}

impl Bytes {
    /// Fills it with halves as programs have them: normally distributed, and some zeros.
    fn fill_with_halves(&mut self) {
        let mut random = fastrand::Rng::with_seed(1);
        for half in self.0.chunks_exact_mut(2) {
            let value: f32 = (0..12).map(|_| random.f32()).sum::<f32>() - 6.0;
            // The exponent has another bias, and five bits.
            let size = (value.abs().to_bits() >> 13).saturating_sub(112 << 10) as u16;
            let bits = if random.u8(..16) == 0 { 0 } else { size };
            let sign = if value < 0.0 { 0x8000 } else { 0 };
            half.copy_from_slice(&(sign | bits).to_le_bytes());
        }
    }
}

impl GlobalMemory for Bytes {
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

/// A clock of the time that the process has run on a core; of all time, on other systems than
/// Linux.
struct Clock {
    start: Instant,
    ran: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), ran: Self::nanoseconds() }
    }

    fn nanoseconds() -> Option<u64> {
        std::fs::read_to_string("/proc/self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }

    fn seconds(&self) -> f64 {
        match (self.ran, Self::nanoseconds()) {
            (Some(start), Some(end)) => (end - start) as f64 / 1e9,
            _ => self.start.elapsed().as_secs_f64(),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads: u32 = 1 << 18;
    let mut memory = Bytes(vec![0; 8 * threads as usize]);
    let params = [
        BASE.to_le_bytes(),
        (BASE + 4 * u64::from(threads)).to_le_bytes(),
        u64::from(threads).to_le_bytes(),
    ];
    let params = params.concat();
    let only = std::env::args().nth(1);
    for (name, text, rounds) in KERNELS {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        if name == "mma" {
            memory.fill_with_halves();
        }
        let program = Program::load(text)?;
        let kernel = program.kernel("k").ok_or("no kernel")?;
        for (checked, checks) in [("all checks", Checks::all()), ("no checks", Checks::none())] {
            let mut launch = Launch::new(&program, kernel, [threads / 256, 1, 1], [256, 1, 1]);
            launch.params = &params;
            launch.checks = checks;
            let clock = Clock::start();
            let mut instructions = 0;
            for _ in 0..rounds {
                instructions += launch.run(&mut memory)?.thread_instructions;
            }
            let rate = instructions as f64 / clock.seconds() / 1e6;
            println!("{name:10} {checked:10} {rate:8.1} million thread instructions a second");
        }
    }
    Ok(())
}
