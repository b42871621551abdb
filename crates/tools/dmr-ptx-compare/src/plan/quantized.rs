//! Kernels on blocks of quantized numbers.

use super::Plan;
use crate::draw::{Draw, Style};
use crate::element::Element;
use crate::launch::Launch;

/// A format of quantized blocks.
#[derive(Clone, Copy, Debug)]
struct Format {
    name: &'static str,
    /// The numbers of a block.
    numbers: usize,
    /// The bytes of a block.
    bytes: usize,
    /// The places of the scales of 16-bit floats.
    scales: &'static [usize],
}

const FORMATS: [Format; 12] = [
    Format { name: "q4_0", numbers: 32, bytes: 18, scales: &[0] },
    Format { name: "q4_1", numbers: 32, bytes: 20, scales: &[0, 2] },
    Format { name: "q5_0", numbers: 32, bytes: 22, scales: &[0] },
    Format { name: "q5_1", numbers: 32, bytes: 24, scales: &[0, 2] },
    Format { name: "q8_0", numbers: 32, bytes: 34, scales: &[0] },
    Format { name: "q8_1", numbers: 32, bytes: 36, scales: &[0, 2] },
    Format { name: "q2_k", numbers: 256, bytes: 84, scales: &[80, 82] },
    Format { name: "q3_k", numbers: 256, bytes: 110, scales: &[108] },
    Format { name: "q4_k", numbers: 256, bytes: 144, scales: &[0, 2] },
    Format { name: "q5_k", numbers: 256, bytes: 176, scales: &[0, 2] },
    Format { name: "q6_k", numbers: 256, bytes: 210, scales: &[208] },
    Format { name: "q8_k", numbers: 256, bytes: 292, scales: &[] },
];

const Q8_1: Format = FORMATS[5];

impl Format {
    /// Returns the format whose name `text` begins with, and the text after it.
    fn split(text: &str) -> Option<(Self, &str)> {
        let lower = text.to_ascii_lowercase();
        FORMATS.into_iter().find_map(|format| {
            let plain = format.name.replace("_k", "k");
            let name = [format.name, &plain].into_iter().find(|name| lower.starts_with(name))?;
            Some((format, &text[name.len()..]))
        })
    }

    /// Returns blocks of `count` numbers.
    fn blocks(self, draw: &mut Draw, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..count / self.numbers {
            let mut block = draw.bytes(self.bytes);
            for at in self.scales {
                let scale = Element::F16.encode((draw.unit() - 0.5) / 16.0);
                block[*at..at + 2].copy_from_slice(&scale.to_le_bytes()[..2]);
            }
            if self.scales.is_empty() {
                let scale = Element::F32.encode((draw.unit() - 0.5) / 16.0);
                block[..4].copy_from_slice(&scale.to_le_bytes()[..4]);
            }
            all.extend(block);
        }
        all
    }
}

pub(super) fn launches(plan: Plan<'_>) -> Option<Vec<Launch>> {
    let name = plan.kernel;
    if let Some(rest) = name.strip_prefix("dequantize_block_") {
        return dequantize(plan, rest);
    }
    if let Some(rest) = name.strip_prefix("dequantize_mul_mat_vec_") {
        let (format, _) = Format::split(rest)?;
        return Some(vec![dequantize_vector(plan, format)]);
    }
    if let Some(rest) = name.strip_prefix("mul_mat_vec_") {
        let (format, rest) = Format::split(rest)?;
        let columns = rest.strip_prefix("_q8_1_cuda")?.parse().ok()?;
        return Some(vec![matrix_vector(plan, format, columns)]);
    }
    if let Some(rest) = name.strip_prefix("mul_mat_") {
        let (format, _) = Format::split(rest)?;
        return Some(vec![matrix_matrix(plan, format)]);
    }
    if let Some(rest) = name.strip_prefix("indexed_moe_forward_") {
        let (format, _) = Format::split(rest)?;
        return Some(vec![experts(plan, format)]);
    }
    (name == "quantize_q8_1").then(|| vec![quantize(plan)])
}

/// Launches `(vx, y, [k])`.
fn dequantize(plan: Plan<'_>, rest: &str) -> Option<Vec<Launch>> {
    let (format, rest) = Format::split(rest)?;
    let target = Element::of_name(rest.strip_prefix('_')?)?;
    let mut launch = plan.launch("dequantize");
    let numbers = 1024;
    let groups = (numbers / 256) as u32;
    let name = format.name;
    let (block, grid) = match name {
        "q5_0" | "q5_1" => (256, (numbers as u32).div_ceil(512)),
        "q2_k" | "q3_k" | "q5_k" | "q6_k" => (64, groups),
        _ => (32, groups),
    };
    launch.block = [block, 1, 1];
    launch.grid = [grid, 1, 1];
    let blocks = format.blocks(&mut launch.draw, numbers);
    launch.input(blocks);
    launch.output(target, numbers);
    if !name.ends_with('k') {
        launch.words([if name.starts_with("q5") { numbers } else { numbers / 32 }]);
    }
    Some(vec![launch])
}

/// Launches `(vx, y, dst, ncols, [nrows])`.
fn dequantize_vector(plan: Plan<'_>, format: Format) -> Launch {
    let mut launch = plan.launch("vector");
    let [columns, rows] = [512, 7];
    launch.grid = [rows as u32, 1, 1];
    launch.block = [32, 1, 1];
    let blocks = format.blocks(&mut launch.draw, rows * columns);
    launch.input(blocks);
    let values = launch.draw.values(Element::F32, Style::Mild, columns);
    launch.input(values);
    launch.output(Element::F32, rows);
    launch.words([columns]);
    if !plan.kernel.ends_with("q5_k") {
        launch.words([rows]);
    }
    launch
}

/// Launches `(vx, vy, dst, ncols_x, nrows_x, nrows_y, nrows_dst)`.
fn matrix_vector(plan: Plan<'_>, format: Format, columns: usize) -> Launch {
    let mut launch = plan.launch("vectors");
    let [length, rows] = [512, 6];
    let (blocks, warps) = match columns {
        1 => (rows, 4),
        2..=4 => (rows / 2, 4),
        _ => (rows / 2, 2),
    };
    launch.grid = [blocks as u32, 1, 1];
    launch.block = [32, warps, 1];
    let left = format.blocks(&mut launch.draw, rows * length);
    launch.input(left);
    let right = Q8_1.blocks(&mut launch.draw, columns * length);
    launch.input(right);
    launch.output(Element::F32, rows * columns);
    launch.words([length, rows, length, rows]);
    launch
}

/// Launches `(vx, vy, dst, ncols_x, nrows_x, ncols_y, nrows_y, nrows_dst)`. The rows fill whole
/// tiles: in a part of a tile these kernels read shared memory that they have not written, and drop
/// the results.
fn matrix_matrix(plan: Plan<'_>, format: Format) -> Launch {
    let mut launch = plan.launch("tiles");
    let [rows, columns] = [128, 67];
    let [length, padded] = [512, 512];
    let (tile_columns, tile_rows) = match format.name {
        "q4_0" | "q4_1" => (64, 128),
        "q3_k" => (128, 128),
        "q6_k" => (64, 64),
        "q2_k" | "q4_k" | "q5_k" => (64, 128),
        _ => (128, 64),
    };
    launch.grid = [(rows as u32).div_ceil(tile_rows), (columns as u32).div_ceil(tile_columns), 1];
    launch.block = [32, 4, 1];
    let left = format.blocks(&mut launch.draw, rows * length);
    launch.input(left);
    let right = Q8_1.blocks(&mut launch.draw, columns * padded);
    launch.input(right);
    launch.output(Element::F32, rows * columns);
    launch.words([length, rows, columns, padded, rows]);
    launch
}

/// Launches `(weights, inputs, indices, outputs, n, k, batch, topk, k_padded, input_dim1)`.
fn experts(plan: Plan<'_>, format: Format) -> Launch {
    let mut launch = plan.launch("experts");
    let [experts, n, k, batch, chosen] = [4, 5, 512, 3, 2];
    launch.grid = [n as u32, batch as u32, chosen as u32];
    launch.block = [32, 4, 1];
    let weights = format.blocks(&mut launch.draw, experts * n * k);
    launch.input(weights);
    let inputs = Q8_1.blocks(&mut launch.draw, batch * chosen * k);
    launch.input(inputs);
    let indices: Vec<u64> =
        (0..batch * chosen).map(|_| launch.draw.below(experts as u64)).collect();
    launch.input(Element::U32.bytes(indices));
    launch.output(Element::F32, batch * chosen * n);
    launch.words([n, k, batch, chosen, k, chosen]);
    launch
}

/// Launches `(x, vy, kx, kx_padded)`.
fn quantize(plan: Plan<'_>) -> Launch {
    let mut launch = plan.launch("quantize");
    let [length, padded, rows] = [300, 512, 3];
    launch.grid = [2, rows as u32, 1];
    launch.block = [256, 1, 1];
    let values = launch.draw.values(Element::F32, Style::Mild, rows * length);
    launch.input(values);
    launch.output(Element::U8, rows * padded / 32 * 36);
    launch.words([length, padded]);
    launch
}
