//! Kernels that read or write at indices.

use super::{Plan, Shape, split_type};
use crate::draw::Style;
use crate::element::Element;
use crate::launch::Launch;

const LEFT: usize = 5;
const RIGHT: usize = 9;
const SOURCE: usize = 7;
const TARGET: usize = 8;
const IDS: usize = 6;

pub(super) fn launches(plan: Plan<'_>) -> Option<Vec<Launch>> {
    let (rest, element) = split_type(plan.kernel)?;
    let (operation, ids) = split_type(rest)?;
    Some(match operation {
        "is" => select(plan, ids, element),
        "gather" => vec![gather(plan, ids, element)],
        "ia" => vec![add(plan, ids, element)],
        "s" | "sa" => vec![scatter(plan, ids, element)],
        _ => return None,
    })
}

/// Returns indices below `end`; with `absent`, the largest value among them, which means none.
fn indices(launch: &mut Launch, ids: Element, end: usize, count: usize, absent: bool) -> Vec<u8> {
    let bits = 8 * ids.size() as u32;
    let signed = matches!(ids, Element::I16 | Element::I32 | Element::I64);
    let none = u64::MAX >> (64 - bits + u32::from(signed));
    let draw = &mut launch.draw;
    let indices: Vec<u64> = (0..count)
        .map(|_| if absent && draw.below(6) == 0 { none } else { draw.below(end as u64) })
        .collect();
    ids.bytes(indices)
}

/// Launches `(numel, num_dims, info, ids, inp, out, left, src_dim, ids_dim, right)`.
fn select(plan: Plan<'_>, ids: Element, element: Element) -> Vec<Launch> {
    let mut launches = Vec::new();
    let dims = [LEFT, SOURCE, RIGHT];
    for (variant, shape) in [("dense", Shape::dense(&dims)), ("strided", Shape::transposed(&dims))]
    {
        let mut launch = plan.launch(variant);
        let elements = LEFT * IDS * RIGHT;
        launch.threads(128, 64);
        launch.longs([elements, 3]);
        launch.info(&shape.info());
        let at = indices(&mut launch, ids, SOURCE, IDS, true);
        launch.input(at);
        let values = launch.draw.values(element, Style::Any, shape.span());
        launch.input(values);
        launch.output(element, elements);
        launch.longs([LEFT, SOURCE, IDS, RIGHT]);
        launches.push(launch);
    }
    launches
}

/// Launches `(numel, ids, inp, out, left, src_dim, ids_dim, right)`.
fn gather(plan: Plan<'_>, ids: Element, element: Element) -> Launch {
    let mut launch = plan.launch("gather");
    let elements = LEFT * IDS * RIGHT;
    launch.threads(128, 64);
    launch.long(elements);
    let at = indices(&mut launch, ids, SOURCE, elements, true);
    launch.input(at);
    let values = launch.draw.values(element, Style::Any, LEFT * SOURCE * RIGHT);
    launch.input(values);
    launch.output(element, elements);
    launch.longs([LEFT, SOURCE, IDS, RIGHT]);
    launch
}

/// Returns whether a kernel accepts an index that means none: those of 8-bit floats do not.
fn accepts_none(element: Element) -> bool {
    element != Element::F8E4M3
}

/// Launches `(ids, ids_dim, inp, out, left, src_dim, dst_dim, right)`.
fn add(plan: Plan<'_>, ids: Element, element: Element) -> Launch {
    let mut launch = plan.launch("add");
    launch.threads(32, 16);
    let at = indices(&mut launch, ids, TARGET, IDS, accepts_none(element));
    launch.input(at);
    launch.long(IDS);
    let values = launch.draw.values(element, Style::Any, LEFT * IDS * RIGHT);
    launch.input(values);
    let values = launch.draw.values(element, Style::Mild, LEFT * TARGET * RIGHT);
    launch.update(element, values);
    launch.longs([LEFT, SOURCE, TARGET, RIGHT]);
    launch
}

/// Launches `(ids, inp, out, left, src_dim, dst_dim, right)`.
fn scatter(plan: Plan<'_>, ids: Element, element: Element) -> Launch {
    let mut launch = plan.launch("scatter");
    launch.threads(32, 16);
    let count = LEFT * SOURCE * RIGHT;
    let at = indices(&mut launch, ids, TARGET, count, accepts_none(element));
    launch.input(at);
    let values = launch.draw.values(element, Style::Any, count);
    launch.input(values);
    let values = launch.draw.values(element, Style::Mild, LEFT * TARGET * RIGHT);
    launch.update(element, values);
    launch.longs([LEFT, SOURCE, TARGET, RIGHT]);
    launch
}
