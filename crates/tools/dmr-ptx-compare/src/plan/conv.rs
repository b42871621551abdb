//! Convolutions, pools and upsampling of images.

use super::{Plan, Shape, split_type};
use crate::draw::Style;
use crate::element::Element;
use crate::launch::Launch;

const BATCH: usize = 2;
const CHANNELS_IN: usize = 3;
const CHANNELS_OUT: usize = 4;
const BLOCK: u32 = 64;

/// The geometry of a convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    variant: &'static str,
    stride: usize,
    padding: usize,
    dilation: usize,
    kernel: [usize; 2],
    transposed: bool,
}

const GEOMETRIES: [Geometry; 2] = [
    Geometry {
        variant: "plain",
        stride: 1,
        padding: 1,
        dilation: 1,
        kernel: [3, 2],
        transposed: false,
    },
    Geometry {
        variant: "strided",
        stride: 2,
        padding: 0,
        dilation: 1,
        kernel: [2, 3],
        transposed: true,
    },
];

const HEIGHT: usize = 8;
const WIDTH: usize = 9;

pub(super) fn launches(plan: Plan<'_>) -> Option<Vec<Launch>> {
    let (operation, element) = split_type(plan.kernel)?;
    let each: fn(Plan<'_>, Element, Geometry) -> Launch = match operation {
        "conv1d" => conv1d,
        "conv2d" => conv2d,
        "conv_transpose1d" => conv_transpose1d,
        "conv_transpose2d" => conv_transpose2d,
        "im2col1d" => im2col1d,
        "im2col" => im2col,
        "col2im1d" => col2im1d,
        "avg_pool2d" | "max_pool2d" => pool,
        "upsample_nearest2d" => nearest,
        "upsample_bilinear2d" => bilinear,
        _ => return None,
    };
    Some(GEOMETRIES.map(|geometry| each(plan, element, geometry)).into())
}

impl Geometry {
    fn shape(self, dims: &[usize]) -> Shape {
        if self.transposed { Shape::transposed(dims) } else { Shape::dense(dims) }
    }

    /// Returns the length of the output of a convolution.
    const fn output(self, length: usize, kernel: usize) -> usize {
        (length + 2 * self.padding - self.dilation * (kernel - 1) - 1) / self.stride + 1
    }

    /// Returns the length of the output of a transposed convolution.
    const fn expanded(self, length: usize, kernel: usize) -> usize {
        (length - 1) * self.stride + self.dilation * (kernel - 1) + 1 - 2 * self.padding
    }
}

fn add_values(launch: &mut Launch, element: Element, style: Style, count: usize) {
    let values = launch.draw.values(element, style, count);
    launch.input(values);
}

/// Adds `(..., stride, padding, [out_padding], dilation, info, src, kernel, dst)`.
fn convolve(
    launch: &mut Launch,
    element: Element,
    geometry: Geometry,
    shapes: [&Shape; 2],
    results: usize,
) {
    let Geometry { stride, padding, dilation, .. } = geometry;
    launch.threads(results, BLOCK);
    launch.longs([stride, padding]);
    if shapes[0].dims[1] == shapes[1].dims[0] {
        launch.long(0);
    }
    launch.long(dilation);
    launch.info(&[shapes[0].info(), shapes[1].info()].concat());
    for shape in shapes {
        add_values(launch, element, Style::Mild, shape.span());
    }
    launch.output(element, results);
}

fn conv1d(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let source = geometry.shape(&[BATCH, CHANNELS_IN, WIDTH]);
    let kernel = Shape::dense(&[CHANNELS_OUT, CHANNELS_IN, geometry.kernel[0]]);
    let length = geometry.output(WIDTH, geometry.kernel[0]);
    launch.longs([source.elements(), length]);
    convolve(&mut launch, element, geometry, [&source, &kernel], BATCH * CHANNELS_OUT * length);
    launch
}

fn conv2d(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let [kernel_height, kernel_width] = geometry.kernel;
    let source = geometry.shape(&[BATCH, CHANNELS_IN, HEIGHT, WIDTH]);
    let kernel = Shape::dense(&[CHANNELS_OUT, CHANNELS_IN, kernel_height, kernel_width]);
    let height = geometry.output(HEIGHT, kernel_height);
    let width = geometry.output(WIDTH, kernel_width);
    launch.longs([source.elements(), width, height]);
    convolve(
        &mut launch,
        element,
        geometry,
        [&source, &kernel],
        BATCH * CHANNELS_OUT * height * width,
    );
    launch
}

fn conv_transpose1d(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let source = geometry.shape(&[BATCH, CHANNELS_IN, WIDTH]);
    let kernel = Shape::dense(&[CHANNELS_IN, CHANNELS_OUT, geometry.kernel[0]]);
    let length = geometry.expanded(WIDTH, geometry.kernel[0]);
    launch.longs([source.elements(), length]);
    convolve(&mut launch, element, geometry, [&source, &kernel], BATCH * CHANNELS_OUT * length);
    launch
}

fn conv_transpose2d(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let [kernel_height, kernel_width] = geometry.kernel;
    let source = geometry.shape(&[BATCH, CHANNELS_IN, HEIGHT, WIDTH]);
    let kernel = Shape::dense(&[CHANNELS_IN, CHANNELS_OUT, kernel_height, kernel_width]);
    let height = geometry.expanded(HEIGHT, kernel_height);
    let width = geometry.expanded(WIDTH, kernel_width);
    launch.longs([source.elements(), width, height]);
    convolve(
        &mut launch,
        element,
        geometry,
        [&source, &kernel],
        BATCH * CHANNELS_OUT * height * width,
    );
    launch
}

/// Launches `(numel, l_out, l_k, stride, padding, dilation, info, src, dst)`.
fn im2col1d(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let Geometry { stride, padding, dilation, kernel, .. } = geometry;
    let source = geometry.shape(&[BATCH, CHANNELS_IN, WIDTH]);
    let length = geometry.output(WIDTH, kernel[0]);
    let threads = BATCH * length * CHANNELS_IN;
    launch.threads(threads, BLOCK);
    launch.longs([threads, length, kernel[0], stride, padding, dilation]);
    launch.info(&source.info());
    add_values(&mut launch, element, Style::Any, source.span());
    launch.output(element, threads * kernel[0]);
    launch
}

/// Launches `(dst_numel, h_out, w_out, h_k, w_k, stride, padding, dilation, info, src, dst)`.
fn im2col(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let Geometry { stride, padding, dilation, kernel: [kernel_height, kernel_width], .. } =
        geometry;
    let source = geometry.shape(&[BATCH, CHANNELS_IN, HEIGHT, WIDTH]);
    let height = geometry.output(HEIGHT, kernel_height);
    let width = geometry.output(WIDTH, kernel_width);
    let results = BATCH * height * width * CHANNELS_IN * kernel_height * kernel_width;
    launch.threads(results, BLOCK);
    launch.longs([results, height, width, kernel_height, kernel_width, stride, padding, dilation]);
    launch.info(&source.info());
    add_values(&mut launch, element, Style::Any, source.span());
    launch.output(element, results);
    launch
}

/// Launches `(dst_el, l_out, l_in, c_out, k_size, stride, src, dst)`.
fn col2im1d(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let [kernel, _] = geometry.kernel;
    let length = (WIDTH - 1) * geometry.stride + kernel;
    let results = BATCH * CHANNELS_OUT * length;
    launch.threads(results, BLOCK);
    launch.longs([results, length, WIDTH, CHANNELS_OUT, kernel, geometry.stride]);
    add_values(&mut launch, element, Style::Mild, BATCH * WIDTH * CHANNELS_OUT * kernel);
    launch.output(element, results);
    launch
}

/// Launches `(src_numel, w_k, h_k, w_stride, h_stride, info, src, dst)`.
fn pool(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let [first, second] = geometry.kernel;
    let stride = geometry.stride;
    let source = geometry.shape(&[BATCH, CHANNELS_IN, HEIGHT, WIDTH]);
    let results =
        BATCH * CHANNELS_IN * ((HEIGHT - first) / stride + 1) * ((WIDTH - second) / stride + 1);
    launch.threads(results, BLOCK);
    launch.longs([source.elements(), first, second, stride, stride]);
    launch.info(&source.info());
    let style = if plan.kernel.starts_with("max") { Style::Any } else { Style::Mild };
    add_values(&mut launch, element, style, source.span());
    launch.output(element, results);
    launch
}

/// Launches `(w_out, h_out, w_scale, h_scale, info, src, dst)`.
fn nearest(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let source = geometry.shape(&[BATCH, CHANNELS_IN, HEIGHT, WIDTH]);
    let [first, second] = [13, 17];
    let results = BATCH * CHANNELS_IN * first * second;
    launch.threads(results, BLOCK);
    launch.longs([first, second]);
    launch.value(Element::F64, HEIGHT as f64 / first as f64);
    launch.value(Element::F64, WIDTH as f64 / second as f64);
    launch.info(&source.info());
    add_values(&mut launch, element, Style::Any, source.span());
    launch.output(element, results);
    launch
}

/// Launches
/// `(w_out, h_out, align_corners, has_scale_h, scale_h, has_scale_w, scale_w, info, src, dst)`.
fn bilinear(plan: Plan<'_>, element: Element, geometry: Geometry) -> Launch {
    let mut launch = plan.launch(geometry.variant);
    let source = geometry.shape(&[BATCH, CHANNELS_IN, HEIGHT, WIDTH]);
    let [height, width] = [13, 17];
    let results = BATCH * CHANNELS_IN * height * width;
    launch.threads(results, BLOCK);
    launch.longs([width, height]);
    launch.value(Element::U8, f64::from(u8::from(geometry.transposed)));
    for scale in [1.6, 1.9] {
        launch.value(Element::U8, 1.0);
        launch.value(Element::F64, scale);
    }
    launch.info(&source.info());
    add_values(&mut launch, element, Style::Mild, source.span());
    launch.output(element, results);
    launch
}
