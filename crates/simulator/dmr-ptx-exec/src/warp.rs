//! A warp: the registers and local memory of its lanes, and the groups that they run in.

use dmr_ptx_arith::{Mask, WARP};

use super::code::Barrier;
use super::registers::Registers;
use super::undefined::UndefinedRegisters;

/// The place that a function returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The call, an index of the calls of the program.
    pub(super) call: u32,
    /// The function that was called.
    pub(super) function: u32,
    /// The instruction after the call.
    pub(super) pc: u32,
    /// The first register of the caller.
    pub(super) base: u32,
    /// The frame of the caller in local memory, and its end.
    pub(super) local: u32,
    pub(super) local_end: u32,
}

/// The reason why a group waits, or that it can run.
#[derive(Clone, Debug)]
pub(super) enum State {
    Ready,
    /// A barrier of the block: its number, and the instruction.
    Barrier {
        id: u32,
        barrier: Barrier,
    },
    /// The other lanes of a member mask.
    Members(Mask),
    /// The other groups of the warp at the same instruction.
    Warp,
    /// The barrier of the cluster.
    Cluster,
}

/// Lanes of a warp that run together: they have the same program counter and call stack.
///
/// A warp starts as one group. Branches split it; groups that are at the same place are merged.
#[derive(Clone, Debug)]
pub(super) struct LaneGroup {
    pub(super) mask: Mask,
    pub(super) pc: u32,
    /// The first register of the function.
    pub(super) base: u32,
    /// The frame of the function in local memory, and its end.
    pub(super) local: u32,
    pub(super) local_end: u32,
    pub(super) stack: Vec<Frame>,
    pub(super) state: State,
    /// The instructions that other groups have run while this one was ready.
    pub(super) passed_over: u32,
}

impl LaneGroup {
    pub(super) fn new(mask: Mask, pc: u32, local_end: u32) -> Self {
        Self {
            mask,
            pc,
            base: 0,
            local: 0,
            local_end,
            stack: Vec::new(),
            state: State::Ready,
            passed_over: 0,
        }
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Returns the rank by which groups run: callees before callers, then the lowest program
    /// counter first.
    #[inline]
    pub(super) fn rank(&self) -> (std::cmp::Reverse<usize>, u32) {
        (std::cmp::Reverse(self.stack.len()), self.pc)
    }

    /// Returns whether the lanes of both can run together.
    #[inline]
    pub(super) fn can_merge(&self, other: &Self) -> bool {
        self.pc == other.pc
            && self.base == other.base
            && self.local == other.local
            && self.stack == other.stack
    }

    /// Splits the lanes of `mask` off, at `pc`.
    pub(super) fn split(&mut self, mask: Mask, pc: u32) -> Self {
        self.mask &= !mask;
        Self { mask, pc, passed_over: 0, state: State::Ready, ..self.clone() }
    }
}

/// Local memory of the lanes of a warp.
#[derive(Debug, Default)]
pub(super) struct Local {
    bytes: Vec<u8>,
    /// For each byte, whether it has been written: 0 or 1.
    written: Vec<u8>,
    stride: usize,
}

impl Local {
    /// Makes room for `bytes` of each lane.
    pub(super) fn reserve(&mut self, bytes: usize) {
        if bytes <= self.stride {
            return;
        }
        let stride = bytes.next_power_of_two().max(64);
        let grow = |old: &[u8]| {
            let mut new = vec![0; stride * WARP];
            for lane in 0..WARP {
                let from = &old[lane * self.stride..(lane + 1) * self.stride];
                new[lane * stride..lane * stride + self.stride].copy_from_slice(from);
            }
            new
        };
        self.bytes = grow(&self.bytes);
        self.written = grow(&self.written);
        self.stride = stride;
    }

    /// Makes all bytes unwritten.
    pub(super) fn clear_all(&mut self) {
        if self.stride > 0 {
            self.written.fill(0);
        }
    }

    /// Makes bytes of these lanes unwritten.
    pub(super) fn clear(&mut self, mask: Mask, from: usize, bytes: usize) {
        for lane in dmr_ptx_arith::lanes_of(mask).filter(|_| bytes > 0) {
            let start = lane * self.stride + from.min(self.stride);
            let end = lane * self.stride + (from + bytes).min(self.stride);
            self.written[start..end].fill(0);
        }
    }

    /// Returns the bytes of a lane, and for each whether it has been written; `None` out of bounds.
    pub(super) fn get(
        &mut self,
        lane: usize,
        at: u64,
        bytes: usize,
    ) -> Option<(&mut [u8], &mut [u8])> {
        let end = at.checked_add(bytes as u64)?;
        if end > self.stride as u64 {
            return None;
        }
        let start = lane * self.stride + at as usize;
        Some((
            self.bytes.get_mut(start..start + bytes)?,
            self.written.get_mut(start..start + bytes)?,
        ))
    }
}

/// A warp of a block.
#[derive(Debug)]
pub(super) struct Warp {
    /// The number of the warp in its block.
    pub(super) number: u32,
    /// The lanes that have a thread.
    pub(super) lanes: Mask,
    /// The lanes that have not exited.
    pub(super) live: Mask,
    pub(super) registers: Registers,
    pub(super) specials: Registers,
    pub(super) undefined: UndefinedRegisters,
    pub(super) local: Local,
    pub(super) carry: Mask,
    pub(super) groups: Vec<LaneGroup>,
    /// True if it has done nothing but poll since it last stored a new value.
    pub(super) polling: bool,
}

impl Warp {
    /// Makes a warp of these lanes.
    pub(super) fn new(number: u32, lanes: Mask) -> Self {
        Self {
            number,
            lanes,
            live: 0,
            registers: Registers::default(),
            specials: Registers::default(),
            undefined: UndefinedRegisters::default(),
            local: Local::default(),
            carry: 0,
            groups: Vec::new(),
            polling: false,
        }
    }

    /// Makes all lanes start at `pc`, with a frame of this size. The registers keep their values.
    pub(super) fn restart(&mut self, pc: u32, frame: u32) {
        self.live = self.lanes;
        self.carry = 0;
        self.polling = false;
        self.local.clear_all();
        self.undefined = UndefinedRegisters::default();
        self.groups.clear();
        self.groups.push(LaneGroup::new(self.lanes, pc, frame));
    }

    /// Makes the lanes of a group that are not in `mask` a group behind the instruction that runs:
    /// their guard is false. Returns whether there are any.
    #[inline]
    pub(super) fn skip_others(&mut self, group: &mut LaneGroup, mask: Mask) -> bool {
        let is_split = mask != group.mask;
        if is_split {
            let others = group.split(group.mask & !mask, group.pc + 1);
            self.groups.push(others);
        }
        is_split
    }

    /// Joins the groups that can run together, of those that fulfil a condition.
    pub(super) fn merge(&mut self, condition: impl Fn(&LaneGroup) -> bool) {
        let mut index = 0;
        while index + 1 < self.groups.len() {
            let mut other = index + 1;
            while other < self.groups.len() {
                let (head, tail) = self.groups.split_at_mut(other);
                let one = &mut head[index];
                let two = &mut tail[0];
                if condition(one) && condition(two) && one.can_merge(two) {
                    one.mask |= two.mask;
                    one.passed_over = one.passed_over.max(two.passed_over);
                    self.groups.swap_remove(other);
                } else {
                    other += 1;
                }
            }
            index += 1;
        }
    }

    /// Returns whether some lanes can run.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.groups.iter().any(LaneGroup::is_ready)
    }
}
