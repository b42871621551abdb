//! W1: one block at a time, always of the same size.

use super::{Fnv, Sequence};

/// `pairs` allocations of `bytes`, each freed at once. The peers hash nothing here.
#[must_use]
pub fn pingpong(bytes: u64, pairs: usize) -> Sequence {
    let mut sequence = Sequence::new(1);
    sequence.ops.reserve(2 * pairs);
    for _ in 0..pairs {
        let slot = sequence.allocate(bytes, 0);
        sequence.free(slot, bytes, 0, 0);
    }
    sequence.hash = Fnv::default();
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_is_live_at_a_time() {
        let sequence = pingpong(256, 3);
        assert_eq!((sequence.ops.len(), sequence.slots, sequence.peak_live), (6, 1, 256));
    }
}
