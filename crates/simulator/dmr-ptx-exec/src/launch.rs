//! A launch: what it runs with, and what it returns.

use dmr_ptx_arith::lanes::Work;
use dmr_ptx_arith::{Lanes, WARP};

use super::clock::Clock;
use super::cluster::{self, Cluster, MOST_BLOCKS};
use super::fault::{Checks, Fault, FaultKind, Finished, Limits, Place, Thread};
use super::global::GlobalMemory;
use super::interpreter::Interpreter;
use super::program::{Kernel, Program, Symbol};
use super::registers::Sources;
use super::workspace::WithWorkspace;

/// The maximum number of threads of a block.
const MOST_THREADS: u64 = 1024;

/// A launch of a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Program,
    /// The kernel, one of the program's.
    pub kernel: &'a Kernel,
    /// The blocks of the grid: x, y, z.
    pub grid: [u32; 3],
    /// The threads of a block: x, y, z.
    pub block: [u32; 3],
    /// The blocks of a cluster: x, y, z.
    pub cluster: [u32; 3],
    /// True for a cooperative launch: all blocks are resident at a time, and can synchronise as a
    /// grid.
    pub is_cooperative: bool,
    /// The dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The bytes of the parameters, each at its [`Param::offset`](crate::Param::offset).
    pub params: &'a [u8],
    /// The address of each of [`Program::globals`].
    pub globals: &'a [u64],
    /// The checks.
    pub checks: Checks,
    /// The bounds.
    pub limits: Limits,
}

impl<'a> Launch<'a> {
    /// Makes a launch without dynamic shared memory, parameters and globals, with every check and
    /// the default limits.
    #[must_use]
    pub fn new(program: &'a Program, kernel: &'a Kernel, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            program,
            kernel,
            grid,
            block,
            cluster: [1; 3],
            is_cooperative: false,
            shared_bytes: 0,
            params: &[],
            globals: &[],
            checks: Checks::all(),
            limits: Limits::default(),
        }
    }

    /// Runs all threads of the launch.
    ///
    /// The result is the same for the same program, launch and memory. Blocks are resident from the
    /// first on; more become resident when the threads of all resident ones poll or wait, up to
    /// [`Limits::resident_blocks`].
    ///
    /// # Errors
    /// The first fault: then part of the launch has run, and `memory` has what it wrote.
    pub fn run(&self, memory: &mut dyn GlobalMemory) -> Result<Finished, Box<Fault>> {
        let shared = self.check().map_err(|kind| self.fault_before(kind))?;
        let mut cooperative;
        let memory = if self.is_cooperative {
            cooperative = WithWorkspace::new(memory);
            &mut cooperative
        } else {
            memory
        };
        let mut interpreter = Interpreter {
            code: &self.program.code,
            sources: Sources {
                code: &self.program.code,
                addresses: self.addresses(shared.static_bytes),
            },
            params: self.params,
            block: self.block,
            grid: self.grid,
            index: [0; 3],
            memory,
            checks: self.checks,
            limits: self.limits,
            executed: 0,
            thread_instructions: 0,
            clock: Clock::default(),
            printed: Vec::new(),
            polls: 0,
            recent: [0; super::interpreter::RECENT],
            changed: false,
            buffer: Vec::new(),
            unwritten: Vec::new(),
            scratch: Vec::new(),
            work: Work::default(),
            pieces: Vec::new(),
            results: Box::new([[0; WARP]; 2]),
            races: self.checks.global_races.then(Box::default),
            race: None,
            cluster: Cluster::default(),
            pc: 0,
            local_end: 0,
        };
        match self.run_blocks(&mut interpreter, shared.bytes) {
            Ok(()) if let Some(race) = interpreter.race => {
                Err(Box::new(Fault { printed: interpreter.printed, ..*race }))
            }
            Ok(()) => Ok(Finished {
                instructions: interpreter.executed,
                nanoseconds: interpreter.clock.now(interpreter.executed),
                thread_instructions: interpreter.thread_instructions,
                printed: interpreter.printed,
            }),
            Err(failure) => {
                let thread = Thread {
                    block: failure.block,
                    thread: interpreter.thread_index(failure.faulted.thread),
                };
                let place = interpreter.code.place(failure.faulted.pc);
                let kind = failure.faulted.kind;
                let fault = Fault { kind, thread, place, printed: interpreter.printed, end: None };
                Err(Box::new(match interpreter.race {
                    Some(race) => Fault {
                        printed: fault.printed.clone(),
                        end: Some(Box::new(fault)),
                        ..*race
                    },
                    None => fault,
                }))
            }
        }
    }

    fn fault_before(&self, kind: FaultKind) -> Box<Fault> {
        let place = Place { function: self.kernel.name.clone(), ..Place::default() };
        let thread = Thread::default();
        let printed = Vec::new();
        Box::new(Fault { kind, thread, place, printed, end: None })
    }

    /// Checks the launch against the kernel and the limits, and returns the shared memory of a
    /// block.
    fn check(&self) -> Result<SharedSize, FaultKind> {
        let invalid = |message: String| Err(FaultKind::InvalidLaunch(message));
        if let Some(refusal) = &self.kernel.refusal {
            return Err(FaultKind::Unsupported(refusal.to_string()));
        }
        let threads = volume(self.block);
        if threads == 0 || threads > MOST_THREADS {
            return invalid(format!(
                "{threads} threads a block: between 1 and {MOST_THREADS} are possible"
            ));
        }
        if self.grid.contains(&0) || self.cluster.contains(&0) {
            return invalid("a grid without blocks".to_owned());
        }
        let fits = |d: usize| self.grid[d].is_multiple_of(self.cluster[d]);
        if volume(self.cluster) > MOST_BLOCKS || !(0..3).all(fits) {
            return invalid(format!(
                "clusters of {:?} blocks in a grid of {:?}",
                self.cluster, self.grid
            ));
        }
        if self.grid[1] > 65_535 || self.grid[2] > 65_535 || self.grid[0] > 0x7fff_ffff {
            return invalid(format!("a grid of {:?} blocks", self.grid));
        }
        if let Some(most) = self.kernel.max_threads.filter(|&most| threads > u64::from(most)) {
            return invalid(format!("{threads} threads a block: the kernel allows {most}"));
        }
        if let Some(required) =
            self.kernel.required_threads.filter(|&required| required != self.block)
        {
            return invalid(format!(
                "blocks of {:?} threads: the kernel requires {required:?}",
                self.block
            ));
        }
        if self.params.len() < self.kernel.param_bytes {
            return invalid(format!(
                "{} bytes of parameters of {}",
                self.params.len(),
                self.kernel.param_bytes
            ));
        }
        if self.globals.len() != self.program.globals.len() {
            return invalid(format!(
                "{} addresses for {} globals",
                self.globals.len(),
                self.program.globals.len()
            ));
        }
        if self.kernel.local_bytes > u64::from(self.limits.local_bytes) {
            return invalid(format!("{} bytes of local memory a thread", self.kernel.local_bytes));
        }
        let align =
            self.kernel.shared.iter().map(|variable| variable.align).max().unwrap_or(1).max(16);
        let size = self
            .kernel
            .shared_bytes
            .checked_next_multiple_of(align)
            .filter(|&size| size <= 1 << 32);
        let static_bytes =
            if self.shared_bytes == 0 { Some(self.kernel.shared_bytes) } else { size };
        let bytes = static_bytes.and_then(|bytes| bytes.checked_add(u64::from(self.shared_bytes)));
        match (bytes, size) {
            (Some(bytes), Some(size))
                if bytes <= u64::from(self.limits.shared_bytes).min(cluster::RANKED) =>
            {
                Ok(SharedSize { static_bytes: size, bytes: bytes as usize })
            }
            _ => invalid(format!(
                "more than {} bytes of shared memory a block",
                self.limits.shared_bytes
            )),
        }
    }

    /// Returns the value of each address that the launch determines.
    fn addresses(&self, static_bytes: u64) -> Vec<Lanes> {
        let address = |symbol: &Symbol| match *symbol {
            Symbol::Global(global, offset) => {
                self.globals.get(global as usize).copied().unwrap_or(0).wrapping_add_signed(offset)
            }
            Symbol::Shared(variable, offset) => {
                let found = self.kernel.shared.iter().find(|shared| shared.variable == variable);
                found
                    .map_or(0, |shared| shared.offset.unwrap_or(static_bytes))
                    .wrapping_add_signed(offset)
            }
        };
        self.program.code.symbols.iter().map(|symbol| [address(symbol); WARP]).collect()
    }
}

/// The shared memory of a block.
struct SharedSize {
    /// The offset of dynamic shared memory.
    static_bytes: u64,
    bytes: usize,
}

pub(super) fn volume(of: [u32; 3]) -> u64 {
    of.iter().fold(1, |volume, &side| volume.saturating_mul(u64::from(side)))
}
