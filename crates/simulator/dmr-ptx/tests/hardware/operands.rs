//! The operands of a form: edge values of the operands' kinds, crossed, and random ones.

/// The kind of an operand: the values that its table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Pred,
    /// An integer of this many bits; the bits above it are random.
    Int(u32),
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F32x2,
    F64,
    /// The number of the row in its low bits: all patterns, if there are as many rows.
    Row,
    /// An amount, position or length: mostly small, sometimes above 255.
    Amount,
    /// One of few values, so that lanes have equal ones.
    Few,
    /// Four bytes, two halves or one `f32` for a matrix: see [`Matrix`].
    Matrix(Matrix),
}

/// The elements in a 32-bit register of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Matrix {
    F16,
    Bf16,
    F32,
    E4m3,
    E5m2,
}

/// A generator of random numbers (splitmix64): the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Returns the operands of `rows` rows, row after row, one word an operand.
pub(crate) fn operands(kinds: &[Kind], rows: u32, seed: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let edges: Vec<Vec<u64>> = kinds.iter().map(|kind| edges(*kind)).collect();
    let product =
        edges.iter().fold(1u64, |product, edges| product.saturating_mul(edges.len() as u64));
    let mut words = Vec::with_capacity(rows as usize * kinds.len());
    for row in 0..u64::from(rows) {
        let crossed = product <= u64::from(rows) && row < product;
        let mut index = row;
        let picked = row < u64::from(rows / 2);
        for (kind, edges) in kinds.iter().zip(&edges) {
            let count = edges.len().max(1) as u64;
            let edge = if crossed {
                edges.get((index % count) as usize)
            } else if picked || random.below(8) == 0 {
                edges.get(random.below(count) as usize)
            } else {
                None
            };
            index /= count;
            words.push(match (kind, edge) {
                (Kind::Row, _) => row,
                (_, Some(edge)) => *edge,
                (_, None) => any(*kind, &mut random),
            });
        }
    }
    words
}

/// Returns the edge values of a kind.
fn edges(kind: Kind) -> Vec<u64> {
    match kind {
        Kind::Pred => vec![0, 1],
        Kind::Int(bits) => integers(bits),
        Kind::F16 => floats(10, 5),
        Kind::Bf16 => floats(7, 8),
        Kind::F32 => floats(23, 8),
        Kind::F64 => {
            // Near the least normal `f32`, and the greatest, between two of them, and near
            // integers' limits.
            let mut all = floats(52, 11);
            all.extend([
                0x380f_ffff_ffff_ffff,
                0x380f_ffff_f000_0000,
                0x380f_ffff_e000_0000,
                0xb80f_ffff_ffff_ffff,
                0x3810_0000_0000_0001,
                0x47ef_ffff_efff_ffff,
                0x47ef_ffff_f000_0000,
                0x41df_ffff_ffe0_0000,
                0xc1e0_0000_0010_0000,
                0x43df_ffff_ffff_ffff,
                0x43ef_ffff_ffff_ffff,
            ]);
            all
        }
        Kind::F16x2 => pairs(&floats(10, 5), 16),
        Kind::Bf16x2 => pairs(&floats(7, 8), 16),
        Kind::F32x2 => pairs(&floats(23, 8), 32),
        Kind::Amount => {
            vec![
                0,
                1,
                2,
                7,
                8,
                15,
                16,
                17,
                31,
                32,
                33,
                40,
                63,
                64,
                65,
                100,
                127,
                128,
                255,
                256,
                288,
                0xffff_ffff,
            ]
        }
        Kind::Row | Kind::Few | Kind::Matrix(_) => Vec::new(),
    }
}

fn integers(bits: u32) -> Vec<u64> {
    let mask = u64::MAX >> (64 - bits);
    let top = 1u64 << (bits - 1);
    let half = 1u64 << (bits / 2);
    let mut all = vec![
        0,
        1,
        2,
        3,
        5,
        7,
        10,
        0x7f,
        0x80,
        0xff,
        half - 1,
        half,
        half + 1,
        top - 1,
        top,
        top + 1,
        top >> 1,
        mask,
        mask - 1,
        mask - 2,
        mask / 3,
        mask / 3 * 2,
        0xff_ffff,
        0x80_0000,
        0x7f_ffff,
    ];
    // With other bits above the type's.
    all.extend([0x1234_5678_0000_0000 | top, 0xffff_ffff_0000_0000]);
    if bits < 64 {
        all.iter_mut().rev().take(2).for_each(|x| *x = *x & !mask | 1);
    }
    for value in all.iter_mut().take(25) {
        *value &= mask;
    }
    all
}

/// Returns zeros, ones, limits, subnormals, infinities and NaN of both signs.
fn floats(fraction: u32, exponent: u32) -> Vec<u64> {
    let bias = (1u64 << (exponent - 1)) - 1;
    let one = bias << fraction;
    let least = 1u64 << fraction;
    let infinity = ((1u64 << exponent) - 1) << fraction;
    let quiet = 1u64 << (fraction - 1);
    let positive = [
        0,
        1,
        2,
        least / 2,
        least - 1,
        least,
        least + 1,
        2 * least - 1,
        one / 2,
        one - least,
        one - 1,
        one,
        one + 1,
        one + quiet,
        one + least,
        one + least + quiet,
        one + 5 * least + 3,
        one + (u64::from(fraction) << fraction),
        one + (u64::from(fraction) << fraction) + 1,
        infinity - 3 * least,
        infinity - 3 * least + 1,
        infinity - 2 * least,
        infinity - 2 * least + 1,
        infinity - least,
        infinity - 1,
        infinity,
        infinity | 1,
        infinity | quiet,
        infinity | quiet | 3,
        infinity | (least - 1),
    ];
    let sign = 1 << (fraction + exponent);
    positive.iter().copied().chain(positive.iter().map(|x| x | sign)).collect()
}

fn pairs(halves: &[u64], bits: u32) -> Vec<u64> {
    let count = halves.len();
    (0..count).map(|n| halves[n] | halves[(n * 7 + 3) % count] << bits).collect()
}

/// Returns a random value of a kind.
fn any(kind: Kind, random: &mut Random) -> u64 {
    let word = random.next();
    match kind {
        Kind::Pred => word & 1,
        Kind::Int(_) => match word >> 60 {
            // Few bits, or few zeros.
            0..4 => random.next() >> (word & 63),
            4..6 => !(random.next() >> (word & 63)),
            _ => random.next(),
        },
        Kind::F16 => float(random, 10, 5),
        Kind::Bf16 => float(random, 7, 8),
        Kind::F32 => float(random, 23, 8),
        Kind::F64 => float(random, 52, 11),
        Kind::F16x2 => float(random, 10, 5) | float(random, 10, 5) << 16,
        Kind::Bf16x2 => float(random, 7, 8) | float(random, 7, 8) << 16,
        Kind::F32x2 => float(random, 23, 8) | float(random, 23, 8) << 32,
        Kind::Row => 0,
        Kind::Amount => word % 70,
        Kind::Few => [7, 9, 0x1_0000_0007, 0xffff_ffff][(word % 4) as usize],
        Kind::Matrix(matrix) => elements(matrix, random),
    }
}

/// Returns a float: any bits, or an exponent near that of 1, often with few bits in the fraction.
fn float(random: &mut Random, fraction: u32, exponent: u32) -> u64 {
    let word = random.next();
    let all = word & (u64::MAX >> (63 - fraction - exponent));
    let bias = (1u64 << (exponent - 1)) - 1;
    let near = |spread: u64, random: &mut Random| {
        let exponent_field = bias + spread / 2 - random.below(spread);
        let kept = all & !(((1u64 << exponent) - 1) << fraction);
        kept | exponent_field << fraction
    };
    match random.below(8) {
        0..2 => all,
        2..5 => near(8.min(bias), random),
        5 => near((2 * u64::from(fraction) + 6).min(bias), random),
        _ => near(8.min(bias), random) & !((1u64 << (fraction / 2)) - 1),
    }
}

/// Returns the elements of a register of a matrix: mostly of similar size, sometimes any bits.
fn elements(matrix: Matrix, random: &mut Random) -> u64 {
    let (fraction, exponent, count) = match matrix {
        Matrix::F16 => (10, 5, 2),
        Matrix::Bf16 => (7, 8, 2),
        Matrix::F32 => (23, 8, 1),
        Matrix::E4m3 => (3, 4, 4),
        Matrix::E5m2 => (2, 5, 4),
    };
    let bits = fraction + exponent + 1;
    let spread = [1, 3, 8, 12][random.below(4) as usize];
    (0..count).fold(0, |word, place| {
        let value = random.next() & (u64::MAX >> (64 - bits));
        let bias = (1u64 << (exponent - 1)) - 1;
        let field = bias + 1 - random.below(spread.min(bias));
        let special = random.below(256);
        let value = if special == 0 {
            value
        } else if special < 8 {
            value & 1 << (bits - 1)
        } else {
            value & !(((1u64 << exponent) - 1) << fraction) | field << fraction
        };
        word | value << (place * bits)
    })
}
