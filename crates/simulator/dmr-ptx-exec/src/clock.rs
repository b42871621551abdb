//! The clock of a launch, which its threads read as `%clock64` and `%globaltimer`.
//!
//! An instruction of a warp takes 1 ns. Time also passes while threads sleep, and while they poll
//! the clock: a kernel that spins for 20 ms need not execute 20 million instructions.

/// The maximum duration of one `nanosleep`, in nanoseconds, as on the hardware.
const LONGEST_SLEEP: u64 = 1_000_000;
/// The maximum time that one poll of the clock skips, in nanoseconds.
const LONGEST_SKIP: u64 = 1_000_000;
/// The instructions of a loop that polls the clock.
const LOOP: u64 = 32;

/// The time of a launch.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The nanoseconds besides those of the instructions.
    skipped: u64,
    /// The instruction that has read the clock last in this slice of a warp, if one has.
    reader: Option<u32>,
    /// The number of instructions at that read.
    read_at: u64,
    /// The time at which the reader began to poll.
    polls_since: u64,
    /// The number of reads.
    reads: u64,
}

impl Clock {
    /// Returns the time after this number of instructions, in nanoseconds.
    pub(super) fn now(&self, executed: u64) -> u64 {
        executed.wrapping_add(self.skipped)
    }

    /// Returns the number of times that threads have read the clock.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// Starts the slice of a warp, which has not polled yet.
    pub(super) fn start_slice(&mut self) {
        self.reader = None;
    }

    /// Lets this time pass, in nanoseconds.
    pub(super) fn sleep(&mut self, nanoseconds: u64) {
        self.skipped = self.skipped.wrapping_add(nanoseconds.min(LONGEST_SLEEP));
    }

    /// Returns the time that the instruction `pc` reads. If it reads the clock in a loop, an eighth
    /// of the time since its first read passes before.
    pub(super) fn read(&mut self, pc: u32, executed: u64) -> u64 {
        self.reads += 1;
        let polls = self.reader == Some(pc) && executed.wrapping_sub(self.read_at) <= LOOP;
        let now = self.now(executed);
        if polls {
            let skip = now.wrapping_sub(self.polls_since) / 8;
            self.skipped = self.skipped.wrapping_add(skip.min(LONGEST_SKIP));
        } else {
            self.polls_since = now;
        }
        self.reader = Some(pc);
        self.read_at = executed;
        self.now(executed)
    }
}
