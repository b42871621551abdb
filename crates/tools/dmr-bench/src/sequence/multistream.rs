//! W3: log-uniform sizes of 256 B to 16 MiB, at most 64 live blocks, one sequence per thread.

use dmr_testkit::SplitMix64;

use super::Sequence;

/// The seed of every published figure.
pub const MULTISTREAM_SEED: u64 = 0x5EED_0F0A_110C_A7E5;

const MOST_LIVE: u64 = 64;

/// Returns the sequence of thread number `thread`. It does not free the blocks that are live at its
/// end.
#[must_use]
pub fn multistream(seed: u64, thread: u64, ops: usize) -> Sequence {
    let mut draws = SplitMix64::new(SplitMix64::new(seed.wrapping_add(thread)).next_u64());
    let mut sequence = Sequence::new(1);
    let mut live: Vec<(usize, u64)> = Vec::new();
    for _ in 0..ops {
        // Always two draws, whatever becomes of them.
        let coin = draws.next_u64();
        let value = draws.next_u64();
        let count = live.len() as u64;
        if count == 0 || (count < MOST_LIVE && coin >> 63 == 0) {
            let octave = 8 + (((value >> 32) * 16) >> 32);
            let bytes = (1 << octave) + (((value & 0xffff_ffff) << octave) >> 32);
            live.push((sequence.allocate(bytes, 0), bytes));
        } else {
            let index = ((value >> 32) * count) >> 32;
            let (slot, bytes) = live.swap_remove(index as usize);
            sequence.free(slot, bytes, 0, index);
        }
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequences_have_the_check_values_of_the_peers() {
        let check_values = [
            (0, 0x1b48_a49f_db00_aa81),
            (1, 0x98de_daee_f788_cc18),
            (2, 0x4c30_0a76_58cc_7f62),
            (3, 0x7621_2d82_8368_502f),
            (4, 0x9c31_d553_d5ff_719d),
            (5, 0x25cb_786a_6473_8a5f),
            (6, 0x6aef_d5ab_1a50_163a),
            (7, 0xcba4_c3ea_7146_f14a),
            (8, 0x7757_3b54_eefa_abd1),
            (15, 0x43a2_d50e_0a12_5a45),
        ];
        for (thread, value) in check_values {
            let sequence = multistream(MULTISTREAM_SEED, thread, 100_000);
            assert_eq!(sequence.hash.0, value, "thread {thread}");
            assert!(sequence.slots <= 64, "thread {thread}");
        }
    }

    #[test]
    fn the_first_operations_of_thread_0_are_those_of_the_peers() {
        let sequence = multistream(MULTISTREAM_SEED, 0, 10);
        let sizes: Vec<_> =
            sequence.ops.iter().filter(|op| op.allocates).map(|op| op.bytes).collect();
        assert_eq!(sizes, [30324, 663, 1693, 833_861, 2_206_737, 720_851, 14870]);
        let frees: Vec<_> = (0..10).filter(|&n| !sequence.ops[n].allocates).collect();
        assert_eq!(frees, [1, 4, 6]);
    }
}
