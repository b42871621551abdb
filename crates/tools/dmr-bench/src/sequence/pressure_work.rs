//! W9: the steps of a thread that fills, reads, passes on and frees blocks under a hard limit.

use std::collections::VecDeque;

use dmr_testkit::SplitMix64;

/// The seed of every published figure.
pub const PRESSURE_WORK_SEED: u64 = 0x5EED_0009_DE71_CE09;

/// The bytes at the start of a block that a read copies, at most.
pub const READ_BYTES: u64 = 4096;

/// Steps of 4096 that read a block, pass one on and free one; the others allocate.
const READS: u64 = 1200;
const PASSES: u64 = 200;
const FREES: u64 = 1000;

/// Sizes are log-uniform from 256 B to 8 MiB, in this many octaves.
const OCTAVES: u64 = 15;

/// One step of a thread. An `index` is that of a block that the thread holds; the block that takes
/// the place of a removed one is the last one ([`Vec::swap_remove`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate a block on the thread's own stream and fill it. If that is refused, free the block
    /// at `otherwise`.
    Allocate {
        /// The size of the block.
        bytes: u64,
        /// The block to free; `None` if the thread holds none.
        otherwise: Option<usize>,
    },
    /// Copy the start of a block on the stream of a thread.
    Read {
        /// The block.
        index: usize,
        /// The thread.
        stream: usize,
    },
    /// Pass a block on to another thread, and take one, by [`Exchange::swap`].
    Pass {
        /// The block.
        index: usize,
    },
    /// Free a block.
    Free {
        /// The block.
        index: usize,
    },
    /// The thread holds nothing, and may hold nothing of the size that it was to allocate.
    Nothing,
}

/// The steps of one thread. They depend on what the thread holds, hence on what was refused and
/// when other threads passed blocks on; the numbers that are drawn for them do not.
#[derive(Clone, Debug)]
pub struct Steps {
    draws: SplitMix64,
    threads: u64,
    most: u64,
}

impl Steps {
    /// Makes the steps of thread number `thread` of `threads`, which allocates nothing with which
    /// it would hold more than `most` bytes.
    #[must_use]
    pub fn new(thread: u64, threads: u64, most: u64) -> Self {
        let seed = SplitMix64::new(PRESSURE_WORK_SEED.wrapping_add(thread)).next_u64();
        Self { draws: SplitMix64::new(seed), threads, most }
    }

    /// Returns the next step of a thread that holds `count` blocks of `bytes` bytes in all.
    pub fn next(&mut self, count: usize, bytes: u64) -> Step {
        // Always three draws, whatever becomes of them.
        let kind = self.draws.next_u64() >> 52;
        let which = self.draws.next_u64();
        let size = self.draws.next_u64();
        let index = (count > 0).then(|| (((which >> 32) * count as u64) >> 32) as usize);
        match index {
            Some(index) if kind < READS => {
                let stream = ((which & 0xffff_ffff) * self.threads) >> 32;
                Step::Read { index, stream: stream as usize }
            }
            Some(index) if kind < READS + PASSES => Step::Pass { index },
            Some(index) if kind < READS + PASSES + FREES => Step::Free { index },
            _ => {
                let unit = 256 << (((size >> 32) * OCTAVES) >> 32);
                let wanted = unit + (((size & 0xffff_ffff) * unit) >> 32);
                match index {
                    otherwise if bytes + wanted <= self.most => {
                        Step::Allocate { bytes: wanted, otherwise }
                    }
                    Some(index) => Step::Free { index },
                    None => Step::Nothing,
                }
            }
        }
    }
}

/// Returns the most bytes with which a thread allocates: its share of `percent` of the limit.
#[must_use]
pub fn share(limit: u64, percent: u64, threads: u64) -> u64 {
    limit * percent / 100 / threads
}

/// Blocks on their way from one thread to another, first come, first served.
#[derive(Clone, Debug)]
pub struct Exchange<B> {
    blocks: VecDeque<B>,
    threads: usize,
}

impl<B> Exchange<B> {
    /// Makes an exchange that keeps one block per thread.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { blocks: VecDeque::new(), threads }
    }

    /// Adds a block; returns the one that was added first, if there are more than it keeps.
    pub fn swap(&mut self, mine: B) -> Option<B> {
        self.blocks.push_back(mine);
        if self.blocks.len() > self.threads { self.blocks.pop_front() } else { None }
    }

    /// Removes all blocks.
    pub fn take_all(&mut self) -> Vec<B> {
        self.blocks.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Fnv;

    /// The counts of a thread's steps, and their hash.
    #[derive(Debug, Default, PartialEq)]
    struct Done {
        allocations: u64,
        refused: u64,
        frees: u64,
        reads: u64,
        passes: u64,
        hash: Fnv,
    }

    /// Runs the threads in lock step, without a device, while every seventh allocation of each
    /// thread is refused.
    fn lock_step(threads: u64, most: u64, ops: usize) -> Vec<Done> {
        let mut exchange = Exchange::new(threads as usize);
        let mut all: Vec<_> = (0..threads)
            .map(|nth| (Steps::new(nth, threads, most), Vec::<u64>::new(), Done::default()))
            .collect();
        for _ in 0..ops {
            for (steps, held, done) in &mut all {
                let free = |held: &mut Vec<u64>, done: &mut Done, index| {
                    done.frees += 1;
                    done.hash.word(1 << 63 | held.swap_remove(index));
                };
                match steps.next(held.len(), held.iter().sum()) {
                    Step::Nothing => {}
                    Step::Free { index } => free(held, done, index),
                    Step::Read { index, stream } => {
                        done.reads += 1;
                        done.hash.word(1 << 62 | (stream as u64) << 32 | held[index]);
                    }
                    Step::Pass { index } => {
                        done.passes += 1;
                        let mine = held.swap_remove(index);
                        done.hash.word(3 << 62 | mine);
                        if let Some(theirs) = exchange.swap(mine) {
                            done.hash.word(1 << 61 | theirs);
                            held.push(theirs);
                        }
                    }
                    Step::Allocate { bytes, otherwise } => {
                        done.allocations += 1;
                        done.hash.word(bytes);
                        if !done.allocations.is_multiple_of(7) {
                            held.push(bytes);
                            continue;
                        }
                        done.refused += 1;
                        otherwise.into_iter().for_each(|index| free(held, done, index));
                    }
                }
            }
        }
        all.into_iter().map(|(.., done)| done).collect()
    }

    /// The values that the peers' reference generator prints.
    #[test]
    fn the_steps_are_those_of_the_peers() {
        let done = |counts: [u64; 5], hash| {
            let [allocations, refused, frees, reads, passes] = counts;
            Done { allocations, refused, frees, reads, passes, hash: Fnv(hash) }
        };
        let most = share(2048 << 20, 90, 16);
        assert_eq!(most, 120_795_955);
        let found = lock_step(16, most, 20_000);
        assert_eq!(found[0], done([7733, 1104, 6468, 5949, 954], 0xd5f8_f8a4_f93a_cf4e));
        assert_eq!(found[1], done([7790, 1112, 6503, 5807, 1011], 0xf7d2_ed30_3ecf_09e3));
        let found = lock_step(16, share(2048 << 20, 60, 16), 5_000);
        assert_eq!(found[0], done([1954, 279, 1598, 1477, 250], 0xdefb_f50a_7872_534d));
        let found = lock_step(1, share(2048 << 20, 90, 1), 5_000);
        assert_eq!(found, [done([2060, 294, 1507, 1477, 250], 0x6d6a_d438_50ad_48e9)]);
    }

    #[test]
    fn a_thread_allocates_nothing_beyond_its_share() {
        let most = 10 << 20;
        let mut steps = Steps::new(0, 1, most);
        let mut held: Vec<u64> = Vec::new();
        let mut peak = 0;
        for _ in 0..20_000 {
            let bytes: u64 = held.iter().sum();
            assert!(bytes <= most);
            peak = peak.max(bytes);
            match steps.next(held.len(), bytes) {
                Step::Allocate { bytes, .. } => held.push(bytes),
                Step::Free { index } => drop(held.swap_remove(index)),
                Step::Read { .. } | Step::Pass { .. } | Step::Nothing => {}
            }
        }
        assert!(peak > most / 10 * 9, "{peak}");
    }
}
