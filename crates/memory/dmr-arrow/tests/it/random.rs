//! Random columns of every type, with slices, absent bitmaps, dictionaries and no rows.

use fastrand::Rng;

use crate::support::Spec;

/// Makes a column that is at most `depth` columns deep, with at least `rows` rows.
pub(crate) fn column(rng: &mut Rng, depth: usize, rows: usize) -> Spec {
    let offset = if rng.u8(..4) == 0 { rng.usize(1..9) } else { 0 };
    let mut spec = Spec {
        name: format!("c{}", rng.u16(..)),
        flags: [0, 2, 3][rng.usize(..3)],
        length: rows,
        offset,
        ..Spec::default()
    };
    if rng.u8(..5) == 0 {
        spec.metadata = [1_i32, 1, 0x41, 0]
            .iter()
            .enumerate()
            .flat_map(|(at, number)| match at {
                2 => vec![0x41],
                _ => number.to_ne_bytes().to_vec(),
            })
            .collect();
    }
    let end = if rows == 0 { 0 } else { rows + offset };
    let kinds = if depth == 0 { 8 } else { 17 };
    match rng.usize(..kinds) {
        0 => {
            spec.format = "n".into();
            spec.null_count = rows as i64;
            return spec;
        }
        1 => {
            spec.format = "b".into();
            spec.buffers = vec![None, Some(bytes(rng, end.div_ceil(8)))];
        }
        2..=4 => {
            let (format, width) = FIXED[rng.usize(..FIXED.len())];
            spec.format = format.into();
            spec.buffers = vec![None, Some(bytes(rng, end * width))];
            let is_index = matches!(format, "c" | "C" | "s" | "S" | "i" | "I" | "l" | "L");
            if depth > 0 && is_index && rng.bool() {
                let rows = rng.usize(..7);
                spec.dictionary = Some(Box::new(column(rng, depth - 1, rows)));
            }
        }
        5 | 6 => {
            let is_wide = rng.bool();
            spec.format = if is_wide { ["Z", "U"] } else { ["z", "u"] }[rng.usize(..2)].into();
            let (offsets, last) = offsets(rng, end, is_wide);
            spec.buffers = vec![None, Some(offsets), Some(bytes(rng, last))];
        }
        7 => {
            spec.format = ["vz", "vu"][rng.usize(..2)].into();
            spec.buffers = vec![None, Some(bytes(rng, 16 * end))];
            for _ in 0..rng.usize(..3) {
                let size = if rows == 0 { 0 } else { rng.usize(1..50) };
                spec.buffers.push(Some(bytes(rng, size)));
            }
        }
        8 | 9 => {
            let kind = rng.usize(..3);
            spec.format = ["+l", "+L", "+m"][kind].into();
            let (offsets, last) = offsets(rng, end, kind == 1);
            spec.buffers = vec![None, Some(offsets)];
            spec.children = vec![match kind {
                2 => entries(rng, depth, last),
                _ => column(rng, depth - 1, last),
            }];
        }
        10 => {
            let is_wide = rng.bool();
            spec.format = if is_wide { "+vL" } else { "+vl" }.into();
            let width = if is_wide { 8 } else { 4 };
            spec.buffers = vec![None, Some(vec![0; end * width]), Some(vec![0; end * width])];
            spec.children = vec![column(rng, depth - 1, 3)];
        }
        11 => {
            let size = rng.usize(..4);
            spec.format = format!("+w:{size}");
            spec.buffers = vec![None];
            spec.children = vec![column(rng, depth - 1, (rows + offset) * size)];
        }
        12 | 13 => {
            spec.format = "+s".into();
            spec.buffers = vec![None];
            let count = rng.usize(..4);
            let least = rows + offset;
            spec.children = (0..count).map(|_| column(rng, depth - 1, least)).collect();
        }
        14 => {
            let count = rng.usize(..3);
            let ids: Vec<String> = (0..count).map(|id| (id + 4).to_string()).collect();
            spec.format = format!("+us:{}", ids.join(","));
            spec.buffers = vec![Some(vec![4; end])];
            let least = rows + offset;
            spec.children = (0..count).map(|_| column(rng, depth - 1, least)).collect();
            return spec;
        }
        15 => {
            spec.format = "+ud:0,7".into();
            spec.buffers = vec![Some(vec![7; end]), Some(vec![0; 4 * end])];
            spec.children = (0..2).map(|_| column(rng, depth - 1, 2)).collect();
            return spec;
        }
        _ => {
            spec.format = "+r".into();
            let runs = if rows == 0 { 0 } else { rng.usize(1..5) };
            let ends = Spec {
                format: "i".into(),
                length: runs,
                buffers: vec![None, Some(bytes(rng, 4 * runs))],
                ..Spec::default()
            };
            spec.children = vec![ends, column(rng, depth - 1, runs)];
            return spec;
        }
    }
    if end > 0 && rng.bool() {
        spec.buffers[0] = Some(bytes(rng, end.div_ceil(8)));
        spec.null_count = [-1, 0, rng.usize(..=rows) as i64][rng.usize(..3)];
    }
    spec
}

const FIXED: &[(&str, usize)] = &[
    ("c", 1),
    ("C", 1),
    ("s", 2),
    ("S", 2),
    ("i", 4),
    ("I", 4),
    ("l", 8),
    ("L", 8),
    ("e", 2),
    ("f", 4),
    ("g", 8),
    ("d:9,2,32", 4),
    ("d:18,2,64", 8),
    ("d:38,-2", 16),
    ("d:76,0,256", 32),
    ("tdD", 4),
    ("tdm", 8),
    ("ttu", 8),
    ("tss:", 8),
    ("tsn:Europe/Paris", 8),
    ("tDn", 8),
    ("tiM", 4),
    ("tiD", 8),
    ("tin", 16),
    ("w:5", 5),
    ("w:0", 0),
];

/// Returns a column of the entries of maps.
fn entries(rng: &mut Rng, depth: usize, rows: usize) -> Spec {
    Spec {
        format: "+s".into(),
        name: "entries".into(),
        length: rows,
        buffers: vec![None],
        children: (0..2).map(|_| column(rng, depth - 1, rows)).collect(),
        ..Spec::default()
    }
}

/// Returns offsets that do not decrease, and the last one.
fn offsets(rng: &mut Rng, end: usize, is_wide: bool) -> (Vec<u8>, usize) {
    if end == 0 {
        return (Vec::new(), 0);
    }
    let mut last = 0_usize;
    let mut made = Vec::new();
    for row in 0..=end {
        if row > 0 {
            last += rng.usize(..4);
        }
        match is_wide {
            true => made.extend((last as i64).to_ne_bytes()),
            false => made.extend((last as i32).to_ne_bytes()),
        }
    }
    (made, last)
}

fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.u8(..)).collect()
}

/// Returns the column with each buffer of no bytes absent.
pub(crate) fn normal(mut spec: Spec) -> Spec {
    for buffer in &mut spec.buffers {
        if buffer.as_ref().is_some_and(Vec::is_empty) {
            *buffer = None;
        }
    }
    spec.children = spec.children.into_iter().map(normal).collect();
    spec.dictionary = spec.dictionary.map(|it| Box::new(normal(*it)));
    spec
}
