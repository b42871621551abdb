//! The layouts of `mma` as the ISA's tables have them, element by element, written without the code
//! under test.

/// Where element `i` of a lane is: its row and column.
pub(super) type Formula = fn(lane: usize, i: usize) -> (usize, usize);

/// A shape of `mma` with the formulas of A, B and C (D is as C).
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Formula,
    pub(super) b: Formula,
    pub(super) c: Formula,
}

fn g(lane: usize) -> usize {
    lane >> 2
}

fn t(lane: usize) -> usize {
    lane % 4
}

fn lower_if(condition: bool, lane: usize) -> usize {
    if condition { g(lane) } else { g(lane) + 8 }
}

fn c_8(lane: usize, i: usize) -> (usize, usize) {
    (g(lane), t(lane) * 2 + i)
}

fn c_16(lane: usize, i: usize) -> (usize, usize) {
    (lower_if(i == 0 || i == 1, lane), t(lane) * 2 + (i & 1))
}

pub(super) const F16_16X8X8: Shape = Shape {
    m: 16,
    n: 8,
    k: 8,
    a: |lane, i| (lower_if(i < 2, lane), t(lane) * 2 + (i & 1)),
    b: |lane, i| (t(lane) * 2 + i, g(lane)),
    c: c_16,
};

pub(super) const F16_16X8X16: Shape = Shape {
    m: 16,
    n: 8,
    k: 16,
    a: |lane, i| {
        (
            lower_if(i < 2 || (4..6).contains(&i), lane),
            t(lane) * 2 + (i & 1) + if i < 4 { 0 } else { 8 },
        )
    },
    b: |lane, i| (t(lane) * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, g(lane)),
    c: c_16,
};

pub(super) const TF32_16X8X4: Shape = Shape {
    m: 16,
    n: 8,
    k: 4,
    a: |lane, i| (lower_if(i == 0, lane), t(lane)),
    b: |lane, _| (t(lane), g(lane)),
    c: c_16,
};

pub(super) const TF32_16X8X8: Shape = Shape {
    m: 16,
    n: 8,
    k: 8,
    a: |lane, i| (lower_if(i == 0 || i == 2, lane), if i < 2 { t(lane) } else { t(lane) + 4 }),
    b: |lane, i| (if i == 0 { t(lane) } else { t(lane) + 4 }, g(lane)),
    c: c_16,
};

pub(super) const F64_8X8X4: Shape = Shape {
    m: 8,
    n: 8,
    k: 4,
    a: |lane, _| (g(lane), t(lane)),
    b: |lane, _| (t(lane), g(lane)),
    c: c_8,
};

pub(super) const F64_16X8X16: Shape = Shape {
    m: 16,
    n: 8,
    k: 16,
    a: |lane, i| {
        (lower_if(i % 2 == 0, lane), if i % 2 == 0 { i * 2 + t(lane) } else { i * 2 - 2 + t(lane) })
    },
    b: |lane, i| (t(lane) + 4 * i, g(lane)),
    c: c_16,
};

pub(super) const S8_8X8X16: Shape = Shape {
    m: 8,
    n: 8,
    k: 16,
    a: |lane, i| (g(lane), t(lane) * 4 + i),
    b: |lane, i| (t(lane) * 4 + i, g(lane)),
    c: c_8,
};

pub(super) const S8_16X8X16: Shape = Shape {
    m: 16,
    n: 8,
    k: 16,
    a: |lane, i| (lower_if(i < 4, lane), t(lane) * 4 + (i & 3)),
    b: |lane, i| (t(lane) * 4 + i, g(lane)),
    c: c_16,
};

pub(super) const S8_16X8X32: Shape = Shape {
    m: 16,
    n: 8,
    k: 32,
    a: |lane, i| {
        (
            lower_if(i < 4 || (8..12).contains(&i), lane),
            t(lane) * 4 + (i & 3) + if i < 8 { 0 } else { 16 },
        )
    },
    b: |lane, i| (t(lane) * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, g(lane)),
    c: c_16,
};

pub(super) const S4_8X8X32: Shape = Shape {
    m: 8,
    n: 8,
    k: 32,
    a: |lane, i| (g(lane), t(lane) * 8 + i),
    b: |lane, i| (t(lane) * 8 + i, g(lane)),
    c: c_8,
};

pub(super) const S4_16X8X32: Shape = Shape {
    m: 16,
    n: 8,
    k: 32,
    a: |lane, i| (lower_if(i < 8, lane), t(lane) * 8 + (i & 7)),
    b: |lane, i| (t(lane) * 8 + i, g(lane)),
    c: c_16,
};

pub(super) const S4_16X8X64: Shape = Shape {
    m: 16,
    n: 8,
    k: 64,
    a: |lane, i| {
        (
            lower_if(i < 8 || (16..24).contains(&i), lane),
            t(lane) * 8 + (i & 7) + if i < 16 { 0 } else { 32 },
        )
    },
    b: |lane, i| (t(lane) * 8 + (i & 7) + if i < 8 { 0 } else { 32 }, g(lane)),
    c: c_16,
};

pub(super) const B1_8X8X128: Shape = Shape {
    m: 8,
    n: 8,
    k: 128,
    a: |lane, i| (g(lane), t(lane) * 32 + i),
    b: |lane, i| (t(lane) * 32 + i, g(lane)),
    c: c_8,
};

pub(super) const B1_16X8X128: Shape = Shape {
    m: 16,
    n: 8,
    k: 128,
    a: |lane, i| (lower_if(i < 32, lane), t(lane) * 32 + (i & 31)),
    b: |lane, i| (t(lane) * 32 + i, g(lane)),
    c: c_16,
};

pub(super) const B1_16X8X256: Shape = Shape {
    m: 16,
    n: 8,
    k: 256,
    a: |lane, i| {
        (
            lower_if(i < 32 || (64..96).contains(&i), lane),
            t(lane) * 32 + (i & 31) + if i < 64 { 0 } else { 128 },
        )
    },
    b: |lane, i| (t(lane) * 32 + (i & 31) + if i < 32 { 0 } else { 128 }, g(lane)),
    c: c_16,
};

/// The formulas of `mma.m8n8k4` with halves: four matrices. Lanes 0 to 3 and 16 to 19 hold the
/// first.
pub(super) mod quad {
    use super::Formula;

    fn upper(lane: usize) -> usize {
        if lane < 16 { 0 } else { 4 }
    }

    pub(in super::super) const A_BY_ROWS: Formula = |lane, i| (lane % 4 + upper(lane), i);
    pub(in super::super) const A_BY_COLUMNS: Formula = |lane, i| (i % 4 + upper(lane), lane % 4);
    pub(in super::super) const B_BY_ROWS: Formula = |lane, i| (lane % 4, i + upper(lane));
    pub(in super::super) const B_BY_COLUMNS: Formula = |lane, i| (i, lane % 4 + upper(lane));
    pub(in super::super) const C_F16: Formula = |lane, i| (lane % 4 + upper(lane), i);
    pub(in super::super) const C_F32: Formula = |lane, i| {
        ((lane & 0b1) + (i & 0b10) + upper(lane), (i & 0b100) + (lane & 0b10) + (i & 0b1))
    };

    /// The lanes that hold each of the four matrices.
    pub(in super::super) const LANES: [[usize; 8]; 4] = [
        [0, 1, 2, 3, 16, 17, 18, 19],
        [4, 5, 6, 7, 20, 21, 22, 23],
        [8, 9, 10, 11, 24, 25, 26, 27],
        [12, 13, 14, 15, 28, 29, 30, 31],
    ];
}
