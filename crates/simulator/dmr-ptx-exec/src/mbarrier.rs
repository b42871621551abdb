//! `mbarrier` objects: 64 bits of shared memory that count the arrivals of a phase and the bytes of
//! asynchronous copies.
//!
//! `decode` gives the instruction and its operands; [`Instruction::apply`] computes the new bits of
//! the object and the result of one lane from the old bits. The caller reads and writes memory, in
//! one step for each lane. It also orders the threads: an instruction with
//! [`Instruction::releases`] publishes, and one with [`Instruction::acquires`] whose result is true
//! has seen what was published at that object.
//!
//! The bits are opaque in the ISA. Here they are, from the lowest: the pending count (20), the
//! expected count of the next phase (20), the bytes that are outstanding (21, signed), the number
//! of the phase (2), and a bit that is set in each object that is initialised.

use dmr_ptx_arith::lanes::{Operand, Operands, Role, Window};
use dmr_ptx_syntax::Type;

#[cfg(test)]
mod tests;

/// The maximum of the counts.
const MOST: u64 = (1 << 20) - 1;

/// An instruction on an `mbarrier` object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// The space that its address is in.
    pub(crate) window: Window,
    /// True if it is ordered after what the thread did before.
    pub(crate) releases: bool,
    /// True if what the thread does next is ordered after it.
    pub(crate) acquires: bool,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Init,
    Invalidate,
    ExpectBytes,
    CompleteBytes,
    Arrive {
        drops: bool,
        expects: bool,
        completes: bool,
    },
    /// `cp.async.mbarrier.arrive`, whose copies have been made.
    ArriveOfCopies {
        increments: bool,
    },
    Test {
        parity: bool,
        waits: bool,
    },
    PendingCount,
}

/// The result of an instruction for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The new bits of the object.
    pub(crate) object: u64,
    /// The value of the destination: a state, a predicate or a count.
    pub(crate) result: u64,
}

/// A use that the ISA leaves undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Defect {
    /// The object was not initialised, or was invalidated.
    #[error("the mbarrier object is not initialised")]
    NotInitialised,
    /// A count that is zero or too large.
    #[error("a count of {0} is not between 1 and 1048575")]
    Count(u64),
    /// More threads arrive than are pending.
    #[error("{arrivals} arrivals at an mbarrier object with {pending} pending")]
    TooManyArrivals {
        /// The arrivals of the instruction.
        arrivals: u64,
        /// The pending count before.
        pending: u64,
    },
    /// `.noComplete` would complete the phase.
    #[error("an arrival with .noComplete completes the phase")]
    Completes,
    /// The number of outstanding bytes leaves its range.
    #[error(
        "{0} outstanding bytes of an mbarrier object: between -1048575 and 1048575 are possible"
    )]
    Bytes(i64),
}

/// Decodes an instruction on an `mbarrier` object: `name` is the part before the first dot,
/// `modifiers` the parts after.
///
/// Returns `None` for another instruction, and an error that says what is not supported.
pub(crate) fn decode(name: &str, modifiers: &[&str]) -> Option<Result<Instruction, String>> {
    let (verb, rest) = match (name, modifiers) {
        ("mbarrier", [verb, rest @ ..]) => (*verb, rest),
        ("cp", ["async", "mbarrier", "arrive", rest @ ..]) => ("copies", rest),
        ("mbarrier", []) => ("", modifiers),
        _ => return None,
    };
    let decoded = decode_verb(verb, rest);
    Some(decoded.map_err(|why| format!("{name}.{}: {why}", modifiers.join("."))))
}

fn decode_verb(verb: &str, modifiers: &[&str]) -> Result<Instruction, String> {
    let has = |modifier| modifiers.contains(&modifier);
    let operation = match verb {
        "init" => Operation::Init,
        "inval" => Operation::Invalidate,
        "expect_tx" => Operation::ExpectBytes,
        "complete_tx" => Operation::CompleteBytes,
        "arrive" | "arrive_drop" => Operation::Arrive {
            drops: verb == "arrive_drop",
            expects: has("expect_tx"),
            completes: !has("noComplete"),
        },
        "copies" => Operation::ArriveOfCopies { increments: !has("noinc") },
        "test_wait" | "try_wait" => {
            Operation::Test { parity: has("parity"), waits: verb == "try_wait" }
        }
        "pending_count" => Operation::PendingCount,
        _ => return Err("this operation is not supported".to_owned()),
    };
    let mut window = Window::Generic;
    for &modifier in modifiers {
        match modifier {
            "b64" | "release" | "acquire" | "relaxed" | "cta" | "cluster" => {}
            "shared" | "shared::cta" | "shared::cluster" => window = Window::Shared,
            "expect_tx" | "noComplete" if matches!(operation, Operation::Arrive { .. }) => {}
            "noinc" if matches!(operation, Operation::ArriveOfCopies { .. }) => {}
            "parity" if matches!(operation, Operation::Test { .. }) => {}
            _ => return Err(format!("the modifier .{modifier} is not supported")),
        }
    }
    let is_arrival =
        matches!(operation, Operation::Arrive { .. } | Operation::ArriveOfCopies { .. });
    let is_test = matches!(operation, Operation::Test { .. });
    let relaxed = has("relaxed");
    Ok(Instruction {
        window,
        releases: is_arrival && !relaxed,
        acquires: is_test && !relaxed,
        operation,
    })
}

impl Instruction {
    /// Returns its operands in the order of the PTX text. An operand of the role [`Role::Optional`]
    /// may be left out.
    pub(crate) fn operands(&self) -> Operands {
        let operand = |ty, role| Operand { ty, registers: 1, role };
        let address = operand(Type::B64, Role::Address);
        let value = |ty| operand(ty, Role::Value);
        let (destination, sources) = match self.operation {
            Operation::Init | Operation::ExpectBytes | Operation::CompleteBytes => {
                (None, vec![address, value(Type::U32)])
            }
            Operation::Invalidate | Operation::ArriveOfCopies { .. } => (None, vec![address]),
            Operation::Arrive { expects: true, .. } => {
                (Some(Type::B64), vec![address, value(Type::U32)])
            }
            Operation::Arrive { .. } => {
                (Some(Type::B64), vec![address, operand(Type::U32, Role::Optional)])
            }
            Operation::Test { parity, waits } => {
                let state = if parity { Type::U32 } else { Type::B64 };
                let mut sources = vec![address, value(state)];
                if waits {
                    sources.push(operand(Type::U32, Role::Optional));
                }
                (Some(Type::Pred), sources)
            }
            Operation::PendingCount => (Some(Type::U32), vec![value(Type::B64)]),
        };
        Operands { destinations: destination.map(value).into_iter().collect(), sources }
    }

    /// Returns true if it accesses no object: its operand is a state.
    pub(crate) fn is_of_a_state(&self) -> bool {
        self.operation == Operation::PendingCount
    }

    /// Returns true if it arrives when the copies of the thread have completed.
    pub(crate) fn counts_copies(&self) -> bool {
        matches!(self.operation, Operation::ArriveOfCopies { .. })
    }

    /// Returns true if it leaves the object as it is.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.operation, Operation::Test { .. } | Operation::PendingCount)
    }

    /// Computes the new object and the result for one lane, from the bits of the object and the
    /// operand behind the address (that of `pending_count` is its state); `None` if it is left out.
    ///
    /// # Errors
    /// What the ISA leaves undefined. Then the object does not change.
    pub(crate) fn apply(&self, object: u64, operand: Option<u64>) -> Result<Outcome, Defect> {
        let value = operand.unwrap_or(1);
        if self.operation == Operation::Init {
            check_count(value)?;
            let new = Object { pending: value, expected: value, bytes: 0, phase: 0 };
            return Ok(Outcome { object: new.bits(), result: 0 });
        }
        let source = if self.is_of_a_state() { value } else { object };
        let mut state = Object::of(source).ok_or(Defect::NotInitialised)?;
        let result = match self.operation {
            Operation::Init => 0,
            Operation::Invalidate => return Ok(Outcome { object: 0, result: 0 }),
            Operation::ExpectBytes => state.add_bytes(value as i64).map(|()| 0)?,
            Operation::CompleteBytes => {
                state.add_bytes(-(value as i64))?;
                state.complete();
                0
            }
            Operation::Arrive { drops, expects, completes } => {
                let arrivals = if expects { 1 } else { value };
                if expects {
                    state.add_bytes(value as i64)?;
                }
                if drops {
                    state.expected = state.expected.saturating_sub(arrivals);
                }
                state.arrive(arrivals)?;
                if state.complete() && !completes {
                    return Err(Defect::Completes);
                }
                object
            }
            Operation::ArriveOfCopies { increments } => {
                if increments {
                    check_count(state.pending + 1)?;
                    state.pending += 1;
                }
                state.arrive(1)?;
                state.complete();
                0
            }
            Operation::Test { parity: true, .. } => u64::from(state.phase & 1 != value & 1),
            Operation::Test { parity: false, .. } => {
                let of = Object::of(value).ok_or(Defect::NotInitialised)?;
                u64::from(state.phase != of.phase)
            }
            Operation::PendingCount => return Ok(Outcome { object, result: state.pending }),
        };
        Ok(Outcome { object: state.bits(), result })
    }
}

fn check_count(count: u64) -> Result<(), Defect> {
    if (1..=MOST).contains(&count) { Ok(()) } else { Err(Defect::Count(count)) }
}

/// Returns the number of the phase of an object: it counts modulo 4.
pub(crate) fn phase(object: u64) -> u64 {
    object >> 61 & 3
}

/// Returns the object after `bytes` bytes of an asynchronous copy that it waits for were written.
///
/// # Errors
/// As of [`Instruction::apply`].
pub(crate) fn complete_bytes(object: u64, bytes: u64) -> Result<u64, Defect> {
    let mut state = Object::of(object).ok_or(Defect::NotInitialised)?;
    state.add_bytes(-(bytes as i64))?;
    state.complete();
    Ok(state.bits())
}

/// The fields of an object.
#[derive(Clone, Copy)]
struct Object {
    pending: u64,
    expected: u64,
    bytes: i64,
    phase: u64,
}

impl Object {
    fn of(bits: u64) -> Option<Self> {
        let bytes = (bits << 3) as i64 >> 43;
        let object = Self {
            pending: bits & MOST,
            expected: bits >> 20 & MOST,
            bytes,
            phase: bits >> 61 & 3,
        };
        (bits >> 63 == 1).then_some(object)
    }

    fn bits(self) -> u64 {
        let bytes = (self.bytes as u64 & 0x1f_ffff) << 40;
        self.pending | self.expected << 20 | bytes | (self.phase & 3) << 61 | 1 << 63
    }

    fn add_bytes(&mut self, bytes: i64) -> Result<(), Defect> {
        let sum = self.bytes.saturating_add(bytes);
        if sum.unsigned_abs() > MOST {
            return Err(Defect::Bytes(sum));
        }
        self.bytes = sum;
        Ok(())
    }

    fn arrive(&mut self, arrivals: u64) -> Result<(), Defect> {
        check_count(arrivals)?;
        let Some(pending) = self.pending.checked_sub(arrivals) else {
            return Err(Defect::TooManyArrivals { arrivals, pending: self.pending });
        };
        self.pending = pending;
        Ok(())
    }

    /// Begins the next phase if nothing is pending, and returns whether it did.
    fn complete(&mut self) -> bool {
        let is_complete = self.pending == 0 && self.bytes == 0;
        if is_complete {
            self.pending = self.expected;
            self.phase += 1;
        }
        is_complete
    }
}
