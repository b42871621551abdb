//! Kernels that compute each element of the output from one element of each input.

use super::{Plan, Shape, split_type};
use crate::draw::Style;
use crate::element::Element;
use crate::launch::{Argument, Launch};

const DIMS: [usize; 3] = [7, 11, 13];
const BLOCK: u32 = 128;
/// The number of threads: fewer than elements, so that the loops of the kernels run more than once.
const THREADS: usize = 640;

pub(super) fn launches(plan: Plan<'_>) -> Option<Vec<Launch>> {
    let (operation, element) = split_type(plan.kernel)?;
    if let Some((ids, _)) =
        operation.strip_prefix("where_").and_then(Element::of_name).zip(Some(()))
    {
        return Some(choose(plan, ids, element));
    }
    if let Some(source) = operation.strip_prefix("cast_").and_then(Element::of_name) {
        return Some(unary(plan, source, element, None));
    }
    Some(match operation {
        "badd" | "bsub" | "bmul" | "bdiv" | "bmaximum" | "bminimum" => {
            binary(plan, element, element)
        }
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" => binary(plan, element, Element::U8),
        "affine" => affine(plan, element),
        "uelu" => unary(plan, element, element, Some(0.75)),
        "upowf" => unary(plan, element, element, Some(1.5)),
        "fill" => fill(plan, element),
        "copy2d" => copy(plan, element),
        "const_set" => set(plan, element),
        name if name.starts_with('u') && !name.starts_with("upsample") => {
            unary(plan, element, element, None)
        }
        _ => return None,
    })
}

fn start(plan: Plan<'_>, variant: &'static str, shape: &Shape) -> Launch {
    let mut launch = plan.launch(variant);
    launch.threads(THREADS, BLOCK);
    launch.longs([shape.elements(), shape.dims.len()]);
    launch
}

/// Launches `(numel, num_dims, info, [parameter], inp, out)`: dense, strided, without shape, in
/// place.
fn unary(plan: Plan<'_>, source: Element, target: Element, parameter: Option<f64>) -> Vec<Launch> {
    let mut launches = Vec::new();
    for variant in ["dense", "strided", "flat", "in place"] {
        let in_place = variant == "in place";
        if in_place && plan.kernel.starts_with("cast_") {
            continue;
        }
        let shape =
            if variant == "strided" { Shape::transposed(&DIMS) } else { Shape::dense(&DIMS) };
        let mut launch = start(plan, variant, &shape);
        match variant {
            "dense" | "strided" => launch.info(&shape.info()),
            _ => launch.arguments.push(Argument::Null),
        }
        if let Some(parameter) = parameter {
            launch.value(source, parameter);
        }
        let values = launch.draw.values(source, Style::Any, shape.span());
        if in_place {
            launch.arguments.push(Argument::Null);
            launch.update(target, values);
        } else {
            launch.input(values);
            launch.output(target, shape.elements());
        }
        launches.push(launch);
    }
    launches
}

/// Launches `(numel, num_dims, info, inp, out, mul, add)`.
fn affine(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launches = unary(plan, element, element, None);
    for launch in &mut launches {
        let [mul, add] = if element.is_float() { [1.25, -0.75] } else { [3.0, 5.0] };
        launch.value(element, mul);
        launch.value(element, add);
    }
    launches
}

/// Launches `(numel, num_dims, dims_and_strides, lhs, rhs, out)`.
fn binary(plan: Plan<'_>, element: Element, target: Element) -> Vec<Launch> {
    let divisor = plan.kernel.starts_with("bdiv") && !element.is_float();
    let rhs_style = if divisor { Style::Positive } else { Style::Any };
    let mut launches = Vec::new();
    for (variant, lhs, rhs) in [
        ("dense", Shape::dense(&DIMS), Shape::dense(&DIMS)),
        ("left strided", Shape::transposed(&DIMS), Shape::dense(&DIMS)),
        ("right strided", Shape::dense(&DIMS), Shape::transposed(&DIMS)),
        ("both strided", Shape::transposed(&DIMS), Shape::transposed(&DIMS)),
    ] {
        let mut launch = start(plan, variant, &lhs);
        launch.info(&[&lhs.info()[..], &rhs.strides].concat());
        let values = launch.draw.values(element, Style::Any, lhs.span());
        launch.input(values);
        let values = launch.draw.values(element, rhs_style, rhs.span());
        launch.input(values);
        launch.output(target, lhs.elements());
        launches.push(launch);
    }
    launches
}

/// Launches `(numel, num_dims, info, ids, t, f, out)`.
fn choose(plan: Plan<'_>, ids: Element, element: Element) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, shape) in [("dense", Shape::dense(&DIMS)), ("strided", Shape::transposed(&DIMS))]
    {
        let dense = Shape::dense(&DIMS);
        let mut launch = start(plan, variant, &shape);
        launch.info(&[&shape.dims[..], &shape.strides, &dense.strides, &shape.strides].concat());
        let count = shape.span();
        let chosen: Vec<u64> = (0..count).map(|_| launch.draw.below(3)).collect();
        launch.input(ids.bytes(chosen));
        for _ in 0..2 {
            let values = launch.draw.values(element, Style::Any, count);
            launch.input(values);
        }
        launch.output(element, shape.elements());
        launches.push(launch);
    }
    launches
}

/// Launches `(buf, value, numel)`.
fn fill(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launch = plan.launch("fill");
    launch.threads(THREADS, BLOCK);
    launch.output(element, 1001);
    launch.value(element, 3.0);
    launch.long(1001);
    vec![launch]
}

/// Launches `(src, dst, d1, d2, src_s, dst_s)`.
fn copy(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launch = plan.launch("copy");
    let [rows, columns, source_stride, target_stride] = [19, 23, 29, 31];
    launch.threads(rows * columns, BLOCK);
    let values = launch.draw.values(element, Style::Any, rows * source_stride);
    launch.input(values);
    launch.output(element, rows * target_stride);
    launch.words([rows, columns, source_stride, target_stride]);
    vec![launch]
}

/// Launches `(numel, num_dims, info, value, out)`.
fn set(plan: Plan<'_>, element: Element) -> Vec<Launch> {
    let mut launches = Vec::new();
    for (variant, shape) in [("dense", Shape::dense(&DIMS)), ("strided", Shape::transposed(&DIMS))]
    {
        let mut launch = start(plan, variant, &shape);
        launch.info(&shape.info());
        launch.value(element, 3.0);
        launch.output(element, shape.span());
        launches.push(launch);
    }
    launches
}
