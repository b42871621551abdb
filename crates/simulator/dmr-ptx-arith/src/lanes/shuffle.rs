//! `shfl`: each lane reads a register of another lane.

use super::lanes_of;
use super::{Defect, Operand, Operands};
use crate::{Lanes, Mask};
use dmr_ptx_syntax::Type;

/// The rule that gives the lane that is read, from the reading lane and operand `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `lane - b`.
    Up,
    /// `lane + b`.
    Down,
    /// `lane ^ b`.
    Butterfly,
    /// `b`, within the segment.
    Index,
}

/// `shfl` and `shfl.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    pub(crate) mode: Mode,
    pub(crate) sync: bool,
}

/// The lane that a lane of a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    lane: usize,
    /// True within the bounds of operand `c`: the value of destination `p`.
    in_range: bool,
}

impl Shuffle {
    pub(super) fn operands(self) -> Operands {
        let value = Operand::value(Type::B32);
        let mut sources = vec![value, value, value];
        if self.sync {
            sources.push(Operand::members());
        }
        Operands { destinations: vec![value, Operand::optional()], sources }
    }

    #[inline]
    pub(super) fn eval(
        self,
        sources: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        let (&[value, b, c, ..], [result, predicate, ..]) = (sources, out) else { return Ok(()) };
        let mut defect = Ok(());
        for lane in lanes_of(executing) {
            let target = self.target(lane, b[lane], c[lane]);
            let is_active = executing >> target.lane & 1 != 0;
            if !is_active && defect.is_ok() {
                defect = Err(Defect::ReadsInactive { lane: lane as u8, source: target.lane as u8 });
            }
            result[lane] = value[if is_active { target.lane } else { lane }];
            predicate[lane] = u64::from(target.in_range);
        }
        defect
    }

    /// Returns the lane that `lane` reads (PTX ISA, "shfl.sync": the pseudo code). Bits 0 to 4 of
    /// `c` clamp the lane, bits 8 to 12 are the mask of the segment.
    fn target(self, lane: usize, b: u64, c: u64) -> Target {
        let lane_bits = lane as i32;
        let b = (b & 0x1f) as i32;
        let clamp = (c & 0x1f) as i32;
        let segment = (c >> 8 & 0x1f) as i32;
        let max = (lane_bits & segment) | (clamp & !segment);
        let min = lane_bits & segment;
        let (source, in_range) = match self.mode {
            Mode::Up => (lane_bits - b, lane_bits - b >= max),
            Mode::Down => (lane_bits + b, lane_bits + b <= max),
            Mode::Butterfly => (lane_bits ^ b, lane_bits ^ b <= max),
            Mode::Index => (min | (b & !segment), min | (b & !segment) <= max),
        };
        Target { lane: if in_range { source as usize & 0x1f } else { lane }, in_range }
    }
}
