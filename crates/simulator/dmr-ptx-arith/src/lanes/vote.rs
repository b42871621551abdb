//! `vote`, `match`, `activemask` and `elect`: what lanes find out about each other.

use super::lanes_of;
use super::{Defect, Operand, Operands};
use crate::{Lanes, Mask};
use dmr_ptx_syntax::Type;

/// The result of a vote on the predicates of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// True if it is true in all lanes.
    All,
    /// True if it is true in a lane.
    Any,
    /// True if it is the same in all lanes.
    Uniform,
    /// The mask of the lanes where it is true.
    Ballot,
}

/// `vote` and `vote.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    pub(crate) poll: Poll,
    pub(crate) sync: bool,
}

impl Vote {
    pub(super) fn operands(self) -> Operands {
        let ty = if self.poll == Poll::Ballot { Type::B32 } else { Type::Pred };
        let mut sources = vec![Operand::value(Type::Pred)];
        if self.sync {
            sources.push(Operand::members());
        }
        Operands { destinations: vec![Operand::value(ty)], sources }
    }

    #[inline]
    pub(super) fn eval(
        self,
        sources: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        let (&[predicate, ..], [result, ..]) = (sources, out) else { return Ok(()) };
        let ballot = lanes_of(executing)
            .filter(|&lane| predicate[lane] != 0)
            .fold(0, |mask, lane| mask | 1 << lane);
        let value = match self.poll {
            Poll::All => u64::from(ballot == executing),
            Poll::Any => u64::from(ballot != 0),
            Poll::Uniform => u64::from(ballot == 0 || ballot == executing),
            Poll::Ballot => u64::from(ballot),
        };
        write(executing, value, result);
        Ok(())
    }
}

/// `match.any.sync` and `match.all.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// `.all`: the whole mask where all lanes have one value, else 0. `.any`: the lanes with the
    /// lane's own value.
    pub(crate) all: bool,
    pub(crate) ty: Type,
}

impl Match {
    pub(super) fn operands(self) -> Operands {
        let mut destinations = vec![Operand::value(Type::B32)];
        if self.all {
            destinations.push(Operand::optional());
        }
        Operands { destinations, sources: vec![Operand::value(self.ty), Operand::members()] }
    }

    #[inline]
    pub(super) fn eval(
        self,
        sources: &[&Lanes],
        executing: Mask,
        out: &mut [Lanes],
    ) -> Result<(), Defect> {
        let (&[values, ..], [result, predicate @ ..]) = (sources, out) else { return Ok(()) };
        let bits = if self.ty == Type::B32 { u64::from(u32::MAX) } else { u64::MAX };
        for lane in lanes_of(executing) {
            let same = lanes_of(executing)
                .filter(|&other| (values[other] ^ values[lane]) & bits == 0)
                .fold(0, |mask: Mask, other| mask | 1 << other);
            if !self.all {
                result[lane] = u64::from(same);
                continue;
            }
            let all = same == executing;
            result[lane] = if all { u64::from(executing) } else { 0 };
            if let Some(predicate) = predicate.first_mut() {
                predicate[lane] = u64::from(all);
            }
        }
        Ok(())
    }
}

/// Writes the mask of the lanes that execute together.
pub(super) fn active_mask(executing: Mask, out: &mut [Lanes]) -> Result<(), Defect> {
    if let [result, ..] = out {
        write(executing, u64::from(executing), result);
    }
    Ok(())
}

/// Elects the lowest lane: its number in the first destination, true in its own second destination.
pub(super) fn elect(executing: Mask, out: &mut [Lanes]) -> Result<(), Defect> {
    if let [result, predicate, ..] = out {
        let leader = u64::from(executing.trailing_zeros());
        write(executing, leader, result);
        for lane in lanes_of(executing) {
            predicate[lane] = u64::from(lane as u64 == leader);
        }
    }
    Ok(())
}

/// Writes `value` into each lane of `mask`.
pub(super) fn write(mask: Mask, value: u64, result: &mut Lanes) {
    for lane in lanes_of(mask) {
        result[lane] = value;
    }
}
