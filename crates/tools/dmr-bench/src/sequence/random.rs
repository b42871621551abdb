//! W2: RMM's random allocations, as libstdc++ draws them.

use super::Sequence;

/// Blocks outstanding stay below this many MiB.
pub(super) const MOST_MIB: u64 = 16_000;

/// `2 * blocks` operations, sizes up to `max_mib`.
#[must_use]
pub fn random(blocks: u64, max_mib: u64) -> Sequence {
    let mut draws = MinStd(1);
    let mut sequence = Sequence::new(1);
    let mut live: Vec<(usize, u64)> = Vec::new();
    let mut count = 0;
    let mut used = 0;
    for _ in 0..2 * blocks {
        let bytes = draws.between(1, max_mib << 20);
        let allocates = live.is_empty() || {
            let chance = draws.between(0, 99);
            chance < 73 && count < blocks && used + bytes < MOST_MIB << 20
        };
        if allocates {
            live.push((sequence.allocate(bytes, 0), bytes));
            count += 1;
            used += bytes;
        } else {
            let index = draws.between(0, blocks - 1) % live.len() as u64;
            let (slot, bytes) = live.swap_remove(index as usize);
            sequence.free(slot, bytes, 0, index);
            used -= bytes;
        }
    }
    sequence
}

/// `minstd_rand0`, with the distribution that libstdc++ makes of it.
struct MinStd(u64);

impl MinStd {
    /// The highest value of `unit`.
    const RANGE: u64 = 2_147_483_645;

    fn unit(&mut self) -> u64 {
        self.0 = self.0 * 16807 % 2_147_483_647;
        self.0 - 1
    }

    /// Uniform in `low..=high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        let range = high - low;
        if range == Self::RANGE {
            return low + self.unit();
        }
        if range < Self::RANGE {
            let scale = Self::RANGE / (range + 1);
            let past = (range + 1) * scale;
            loop {
                let unit = self.unit();
                if unit < past {
                    return low + unit / scale;
                }
            }
        }
        loop {
            let high_part = (Self::RANGE + 1) * self.between(0, range / (Self::RANGE + 1));
            let value = high_part + self.unit();
            if value <= range {
                return low + value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that the peers' reference generator prints.
    #[test]
    fn the_sequences_have_the_check_values_of_the_peers() {
        let check_values = [
            (1_000, 1, 0xc687_4078_290b_1103),
            (1_000, 4, 0x36c7_7771_eb26_54ff),
            (1_000, 64, 0x04f8_f08c_87e7_7266),
            (1_000, 256, 0x32da_d103_9c4a_2e59),
            (1_000, 1024, 0x3908_85d2_22eb_51fc),
            (1_000, 4096, 0x81bd_5446_db42_9e6e),
            (10_000, 64, 0x931e_e209_e561_2ac1),
            (10_000, 4096, 0xaabf_6194_22c5_d52b),
            (100_000, 1, 0x1d01_dcb2_bbe6_e424),
        ];
        for (blocks, max_mib, value) in check_values {
            let sequence = random(blocks, max_mib);
            assert_eq!(sequence.hash.0, value, "{blocks} blocks of up to {max_mib} MiB");
            assert!(sequence.peak_live < MOST_MIB << 20);
        }
    }
}
