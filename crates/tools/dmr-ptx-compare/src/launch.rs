//! A launch: grid, arguments, outputs.

use crate::draw::Draw;
use crate::element::Element;

/// One launch of a kernel, with everything that it needs.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its name among the launches of the kernel: "dense", "strided".
    pub variant: &'static str,
    /// The source of its values.
    pub draw: Draw,
    /// The number of blocks.
    pub grid: [u32; 3],
    /// The number of threads of a block.
    pub block: [u32; 3],
    /// The bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments.
    pub arguments: Vec<Argument>,
}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A value.
    Value(Vec<u8>),
    /// A null pointer.
    Null,
    /// A pointer to memory with these bytes.
    Input(Vec<u8>),
    /// A pointer to memory whose bytes are results.
    Output(Output),
}

/// The memory that a kernel writes.
#[derive(Clone, Debug)]
pub struct Output {
    /// The bytes before the launch.
    pub bytes: Vec<u8>,
    /// The type of its elements.
    pub element: Element,
    /// The type that they are computed in.
    pub computed_in: Element,
    /// The largest difference of each element between two orders of additions.
    pub bounds: Option<Vec<f64>>,
}

impl Launch {
    /// Makes a launch of one thread without arguments.
    #[must_use]
    pub fn new(kernel: &str, variant: &'static str, seed: u64) -> Self {
        let draw = Draw::new(kernel, variant, seed);
        Self { variant, draw, grid: [1; 3], block: [1; 3], shared: 0, arguments: Vec::new() }
    }

    /// Sets a grid of one dimension with a thread for each of `threads` elements.
    pub const fn threads(&mut self, threads: usize, block: u32) {
        self.grid = [(threads as u32).div_ceil(block), 1, 1];
        self.block = [block, 1, 1];
    }

    /// Adds a value of 8 bytes.
    pub fn long(&mut self, value: usize) {
        self.arguments.push(Argument::Value((value as u64).to_le_bytes().to_vec()));
    }

    /// Adds several values of 8 bytes.
    pub fn longs<const N: usize>(&mut self, values: [usize; N]) {
        values.into_iter().for_each(|value| self.long(value));
    }

    /// Adds several values of 4 bytes.
    pub fn words<const N: usize>(&mut self, values: [usize; N]) {
        for value in values {
            self.arguments.push(Argument::Value((value as u32).to_le_bytes().to_vec()));
        }
    }

    /// Adds a value of this type.
    pub fn value(&mut self, element: Element, value: f64) {
        self.arguments.push(Argument::Value(element.bytes([element.encode(value)])));
    }

    /// Adds memory with these bytes.
    pub fn input(&mut self, bytes: Vec<u8>) {
        self.arguments.push(Argument::Input(bytes));
    }

    /// Adds memory with these numbers of 8 bytes: dimensions and strides.
    pub fn info(&mut self, numbers: &[usize]) {
        self.input(Element::I64.bytes(numbers.iter().map(|number| *number as u64)));
    }

    /// Adds memory for `count` results, full of arbitrary bytes.
    pub fn output(&mut self, element: Element, count: usize) {
        let bytes = self.draw.bytes(count * element.size());
        self.update(element, bytes);
    }

    /// Adds memory that the kernel reads and writes.
    pub fn update(&mut self, element: Element, bytes: Vec<u8>) {
        self.arguments.push(Argument::Output(Output {
            bytes,
            element,
            computed_in: element,
            bounds: None,
        }));
    }

    /// Returns the outputs.
    pub fn outputs(&self) -> impl Iterator<Item = &Output> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Output(output) => Some(output),
            _ => None,
        })
    }
}
