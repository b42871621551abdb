//! The windows of shared, local and parameter memory among generic addresses, and runs of adjacent
//! accesses.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::fault::SpaceName;

/// The generic address of byte 0 of shared memory. Above what a program of any process can map.
pub(super) const SHARED: u64 = 1 << 48;
/// The generic address of byte 0 of a thread's local memory.
pub(super) const LOCAL: u64 = SHARED + WINDOW;
/// The generic address of byte 0 of the kernel's parameters.
pub(super) const PARAM: u64 = LOCAL + WINDOW;
/// The address of function 0; each is [`FUNCTION_STRIDE`] after the one before.
pub(super) const FUNCTIONS: u64 = PARAM + WINDOW;
/// The distance of functions.
pub(super) const FUNCTION_STRIDE: u64 = 16;

const WINDOW: u64 = 1 << 32;

/// Returns the space of a generic address, and its offset in the space.
#[inline]
pub(super) fn resolve(address: u64) -> (SpaceName, u64) {
    match address.wrapping_sub(SHARED) / WINDOW {
        0 => (SpaceName::Shared, address - SHARED),
        1 => (SpaceName::Local, address - LOCAL),
        2 => (SpaceName::Param, address - PARAM),
        _ => (SpaceName::Global, address),
    }
}

/// Returns the number to add to an address of this space to get the generic address.
#[inline]
pub(super) fn window(space: SpaceName) -> u64 {
    match space {
        SpaceName::Shared => SHARED,
        SpaceName::Local => LOCAL,
        SpaceName::Param => PARAM,
        SpaceName::Global | SpaceName::Const | SpaceName::Generic => 0,
    }
}

/// Returns the lanes of `mask` that fulfil a condition.
#[inline]
pub(super) fn lanes_where(mask: Mask, condition: impl Fn(usize) -> bool) -> Mask {
    lanes_of(mask).filter(|&lane| condition(lane)).fold(0, |all, lane| all | 1 << lane)
}

/// Lanes whose accesses are adjacent, in ascending order; in local memory, at the same address of
/// each lane's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) address: u64,
    /// The first lane.
    pub(super) first: usize,
    /// The number of lanes; they have consecutive numbers.
    pub(super) count: usize,
}

impl Run {
    #[inline]
    pub(super) fn mask(self) -> Mask {
        (((1u64 << self.count) - 1) << self.first) as Mask
    }

    /// Returns the run of the first lanes, whose accesses have `len` bytes; `None` if there are
    /// none.
    pub(super) fn head(self, len: usize, lane_bytes: u32) -> Option<Self> {
        let count = len / lane_bytes as usize;
        (count > 0).then_some(Self { count, ..self })
    }
}

/// Returns whether the accesses of all lanes are one run, in which addresses have this distance.
#[inline]
pub(super) fn is_one_run(addresses: &Lanes, distance: u64) -> bool {
    let mut next = addresses[0];
    let mut differs = 0;
    for address in addresses {
        differs |= address ^ next;
        next = next.wrapping_add(distance);
    }
    differs == 0
}

/// Removes the next run from `rest`, in which addresses have this distance.
#[inline]
pub(super) fn next_run(rest: &mut Mask, addresses: &Lanes, distance: u64) -> Option<Run> {
    let first = rest.trailing_zeros() as usize;
    let address = *addresses.get(first)?;
    let longest = (!(*rest >> first)).trailing_zeros() as usize;
    let longest = longest.min(WARP - first);
    let mut count = 1;
    while count < longest
        && addresses[first + count] == address.wrapping_add(count as u64 * distance)
    {
        count += 1;
    }
    let run = Run { address, first, count };
    *rest &= !run.mask();
    Some(run)
}

/// Removes the lanes from `rest` that have the address of its first two lanes; none if these two
/// differ.
#[inline]
pub(super) fn next_same(rest: &mut Mask, addresses: &Lanes) -> Mask {
    let first = rest.trailing_zeros() as usize % WARP;
    let second = (*rest & rest.wrapping_sub(1)).trailing_zeros() as usize;
    if second >= WARP || addresses[second] != addresses[first] {
        return 0;
    }
    let mut same = 0;
    for (lane, &address) in addresses.iter().enumerate() {
        same |= Mask::from(address == addresses[first]) << lane;
    }
    same &= *rest;
    *rest &= !same;
    same
}

/// Returns whether the lanes of `mask` have the same value.
#[inline]
pub(super) fn is_same(mask: Mask, values: &Lanes) -> bool {
    let first = values[mask.trailing_zeros() as usize % WARP];
    if mask == Mask::MAX {
        return values.iter().all(|&value| value == first);
    }
    lanes_of(mask).all(|lane| values[lane] == first)
}
