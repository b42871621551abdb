//! Reductions, normalisations, rotary embeddings and sorts.

use super::{Plan, Shape, split_type};
use crate::draw::Style;
use crate::element::Element;
use crate::launch::{Argument, Launch};

pub(super) fn launches(plan: Plan<'_>) -> Option<Vec<Launch>> {
    let (operation, element) = split_type(plan.kernel)?;
    Some(match operation {
        "fast_sum" => fast(plan, element, element, &[Style::Mild, Style::Any]),
        "fast_min" | "fast_max" => fast(plan, element, element, &[Style::Any]),
        "fast_argmin" | "fast_argmax" => fast(plan, element, Element::U32, &[Style::Any]),
        "sum" => sum(plan, element),
        "softmax" => softmax(plan, element),
        "rmsnorm" => norm(plan, element, 1),
        "layernorm" => norm(plan, element, 2),
        "rope_i" | "rope" | "rope_thd" => rope(plan, element, operation),
        "asort_asc" | "asort_desc" => sort(plan, element),
        _ => return None,
    })
}

/// Launches `(src_numel, el_to_sum_per_block, num_dims, info, src, dst)`, one block for each
/// result.
fn fast(plan: Plan<'_>, element: Element, target: Element, styles: &[Style]) -> Vec<Launch> {
    let mut launches = Vec::new();
    for style in styles {
        for (variant, shape, block) in [
            ("dense", Shape::dense(&[3, 300]), 128),
            ("strided", Shape::transposed(&[4, 5, 50]), 64),
            ("specials", Shape::dense(&[6, 200]), 256),
        ] {
            if (*style == Style::Any) != (variant == "specials") && styles.len() > 1 {
                continue;
            }
            let mut launch = plan.launch(variant);
            launch.grid = [shape.dims[0] as u32, 1, 1];
            launch.block = [block, 1, 1];
            let elements = shape.elements();
            launch.longs([elements, elements / shape.dims[0], shape.dims.len()]);
            launch.info(&shape.info());
            let values = launch.draw.values(element, *style, shape.span());
            launch.input(values);
            launch.output(target, shape.dims[0]);
            launches.push(launch);
        }
    }
    launches
}

/// Launches `(numel, num_dims, num_sum_dims, info, inp, out)`, which adds by atomics, in no order.
fn sum(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, shape, style) in [
        ("whole", Shape::dense(&[5, 6, 7]), Style::Whole),
        ("strided", Shape::transposed(&[5, 6, 7]), Style::Whole),
        ("in any order", Shape::dense(&[5, 6, 7]), Style::Mild),
    ] {
        let mut launch = plan.launch(variant);
        let elements = shape.elements();
        launch.threads(128, 64);
        launch.longs([elements, 3, 1]);
        // The sum is over dimension 1: of 6 elements with the stride 7 in a dense tensor.
        launch.info(&[&shape.info()[..], &[6, 7]].concat());
        let values = launch.draw.values(element, style, shape.span());
        let mut sums = vec![0.0; 35];
        if style == Style::Mild {
            for (index, bits) in element.each(&values).enumerate() {
                sums[index / 42 * 7 + index % 7] += element.decode(bits).abs();
            }
        }
        launch.input(values);
        launch.update(element, element.bytes([0; 35]));
        if style == Style::Mild && element.is_float() {
            // Each of two orders rounds five sums.
            let unit = 2f64.powi(-(element.mantissa_bits() as i32) - 1);
            if let Some(Argument::Output(output)) = launch.arguments.last_mut() {
                output.bounds = Some(sums.iter().map(|sum| 2.0 * 5.0 * unit * sum).collect());
            }
        }
        launches.push(launch);
    }
    launches
}

/// Launches `(src, dst, n_cols)`.
fn softmax(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, style) in [("mild", Style::Mild), ("specials", Style::Any)] {
        let mut launch = plan.launch(variant);
        let [rows, columns] = [12, 77];
        launch.grid = [rows as u32, 1, 1];
        launch.block = [1, 32, 1];
        let values = launch.draw.values(element, style, rows * columns);
        launch.input(values);
        launch.output(element, rows * columns);
        launch.words([columns]);
        launches.push(launch);
    }
    launches
}

/// Launches `(src, dst, alpha, [beta], n_cols, block_size, eps)`.
fn norm(plan: Plan<'_>, element: Element, factors: usize) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, columns, block, given) in
        [("narrow", 96, 32, true), ("plain", 80, 32, false), ("wide", 1100, 1024, true)]
    {
        let mut launch = plan.launch(variant);
        let rows = 5;
        launch.grid = [rows as u32, 1, 1];
        launch.block = [block as u32, 1, 1];
        let values = launch.draw.values(element, Style::Mild, rows * columns);
        launch.input(values);
        launch.output(element, rows * columns);
        if let Some(Argument::Output(output)) = launch.arguments.last_mut() {
            // These kernels compute in `f32` whatever the type of their elements.
            output.computed_in = if element == Element::F64 { Element::F32 } else { element };
        }
        for _ in 0..factors {
            if given {
                let values = launch.draw.values(element, Style::Mild, columns);
                launch.input(values);
            } else {
                launch.arguments.push(Argument::Null);
            }
        }
        launch.words([columns, block]);
        launch.value(Element::F32, 1e-5);
        launches.push(launch);
    }
    launches
}

/// Launches `(src, cos, sin, dst, ...)` of the three layouts.
fn rope(plan: Plan<'_>, element: Element, operation: &str) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, batched) in [("one", false), ("batched", true)] {
        let mut launch = plan.launch(variant);
        let [b, h, t, d] = [2, 3, 5, 8];
        let elements = b * h * t * d;
        launch.threads(elements / 2, 64);
        let values = launch.draw.values(element, Style::Mild, elements);
        launch.input(values);
        for _ in 0..2 {
            let values = launch.draw.values(element, Style::Mild, b * t * d / 2);
            launch.input(values);
        }
        launch.output(element, elements);
        let stride = if batched { h * t * d } else { 0 };
        match operation {
            "rope_i" => launch.words([b * h, t * d, stride]),
            "rope" => launch.words([b * h, t * d, d, stride]),
            _ => launch.words([b, t, h, d, stride]),
        }
        launches.push(launch);
    }
    launches
}

/// Launches `(x, dst, ncols, ncols_pad)`.
fn sort(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, columns, block) in [("narrow", 45, 64), ("loops", 100, 32)] {
        let mut launch = plan.launch(variant);
        let rows = 4;
        let padded = usize::next_power_of_two(columns);
        launch.grid = [rows as u32, 1, 1];
        launch.block = [block, 1, 1];
        launch.shared = 4 * padded as u32;
        let values = launch.draw.values(element, Style::Any, rows * columns);
        launch.input(values);
        launch.output(Element::U32, rows * columns);
        launch.words([columns, padded]);
        launches.push(launch);
    }
    launches
}
