//! The launches of a kernel, by the conventions of its family.

mod conv;
mod elementwise;
mod indexing;
mod quantized;
mod reduce;

use crate::element::Element;
use crate::launch::Launch;

/// Returns the launches of the kernel with this name; `None` where no family has it.
#[must_use]
pub fn launches(kernel: &str, seed: u64) -> Option<Vec<Launch>> {
    let plan = Plan { kernel, seed };
    elementwise::launches(plan)
        .or_else(|| reduce::launches(plan))
        .or_else(|| indexing::launches(plan))
        .or_else(|| conv::launches(plan))
        .or_else(|| quantized::launches(plan))
}

/// Returns the family of a kernel: its name without types and formats.
#[must_use]
pub fn family(kernel: &str) -> String {
    let mut name = kernel;
    while let Some((rest, _)) = split_type(name) {
        name = rest;
    }
    if name.starts_with("quantize_") || name.starts_with("cast_") {
        return name.split('_').take(1).collect();
    }
    let format =
        |part: &&str| part.starts_with('q') && part[1..].starts_with(|c: char| c.is_ascii_digit());
    name.split('_').take_while(|part| !format(part)).collect::<Vec<_>>().join("_")
}

/// A kernel for which launches are wanted.
#[derive(Clone, Copy, Debug)]
struct Plan<'a> {
    kernel: &'a str,
    seed: u64,
}

impl Plan<'_> {
    fn launch(self, variant: &'static str) -> Launch {
        Launch::new(self.kernel, variant, self.seed)
    }
}

/// Splits the type at the end off a name.
fn split_type(name: &str) -> Option<(&str, Element)> {
    let long = ["_fp8_e4m3", "_f8_e4m3"].iter().find(|suffix| name.ends_with(**suffix));
    let start = long.map_or_else(|| name.rfind('_'), |suffix| Some(name.len() - suffix.len()))?;
    let element = Element::of_name(&name[start + 1..])?;
    Some((&name[..start], element))
}

/// Dimensions of a tensor and the strides of its elements.
#[derive(Clone, Debug)]
struct Shape {
    dims: Vec<usize>,
    strides: Vec<usize>,
}

impl Shape {
    /// Returns a tensor in row-major order.
    fn dense(dims: &[usize]) -> Self {
        let mut strides = vec![1; dims.len()];
        for d in (1..dims.len()).rev() {
            strides[d - 1] = strides[d] * dims[d];
        }
        Self { dims: dims.to_vec(), strides }
    }

    /// Returns a tensor whose first dimension has the smallest stride, with gaps.
    fn transposed(dims: &[usize]) -> Self {
        let mut strides = vec![1; dims.len()];
        for d in 1..dims.len() {
            strides[d] = strides[d - 1] * dims[d - 1] + 1;
        }
        Self { dims: dims.to_vec(), strides }
    }

    /// Returns the number of elements.
    fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the number of elements of memory that it spans.
    fn span(&self) -> usize {
        1 + self
            .dims
            .iter()
            .zip(&self.strides)
            .map(|(dim, stride)| (dim - 1) * stride)
            .sum::<usize>()
    }

    /// Returns the dimensions, then the strides.
    fn info(&self) -> Vec<usize> {
        [&self.dims[..], &self.strides[..]].concat()
    }
}
