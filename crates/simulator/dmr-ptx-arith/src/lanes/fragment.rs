//! The lane, register and position in it of each element of a matrix.

use super::element::Element;
use super::lanes_of;
use crate::{Lanes, Mask, WARP};
use dmr_ptx_syntax::Type;

/// A matrix that the registers of a warp hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(super) element: Element,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The number of registers of a lane.
    pub(super) registers: usize,
    pub(super) layout: Layout,
}

/// A rule that gives each element its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Matrix A of `mma`: a row by four lanes; odd registers hold the rows from 8 on.
    Left,
    /// Matrix B of `mma`: a column by four lanes.
    Right,
    /// Matrices C and D of `mma` and `wmma`: a row by four lanes, two columns each; the rows from 8
    /// on in the next elements, then the columns from 8 on. With more columns than rows (`m8n32`)
    /// the same of the transposed matrix. Kernels rely on it, although `wmma` has no layout in the
    /// ISA: they convert sums element by element. Measured on an H200.
    Sum,
    /// Matrix A of `mma.m8n8k4` with halves: four matrices, each by two groups of four lanes.
    QuadLeft { by_columns: bool },
    /// Matrix B of `mma.m8n8k4` with halves.
    QuadRight { by_columns: bool },
    /// Matrices C and D of `mma.m8n8k4` with halves, in `f16`.
    QuadSum16,
    /// Matrices C and D of `mma.m8n8k4` with halves, in `f32`.
    QuadSum32,
    /// Matrices A and B of `wmma`, which have no layout in the ISA: row after row of the matrix,
    /// dealt to the lanes register by register, and again from the start where there is more room
    /// than elements.
    Dealt,
}

/// An order of all elements of a fragment, with the products of a sum in the order in which they
/// are added, and the columns of B and sums so that those of a register of C are neighbours: 0, 2,
/// 4, 6, 1, 3, 5, 7 of each eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Matrix after matrix, row after row, as they are in memory.
    Rows,
    /// Matrix A: matrix after matrix, row after row.
    Left,
    /// Matrix B: matrix after matrix, eight columns after eight columns, row after row.
    Right,
    /// Matrices C and D: matrix after matrix, row after row.
    Sum,
}

/// The place of an element: its matrix (of the four of a quad layout, else 0), row and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) matrix: usize,
    pub(super) row: usize,
    pub(super) column: usize,
}

impl Fragment {
    /// Returns the type of its registers.
    pub(super) fn register_type(&self) -> Type {
        match self.element {
            Element::F64 => Type::F64,
            Element::F32 => Type::F32,
            Element::S32 => Type::S32,
            _ => Type::B32,
        }
    }

    /// Returns the place of element `index` of register `register` of a lane.
    pub(super) fn place(&self, lane: usize, register: usize, index: usize) -> Place {
        let per_register = self.element.per_register();
        let element = register * per_register + index;
        let group = lane / 4;
        let quarter = lane % 4;
        let upper = lane / 16 * 4;
        let (row, column) = match self.layout {
            Layout::Left => (
                group + 8 * (register % 2),
                4 * per_register * (register / 2) + quarter * per_register + index,
            ),
            Layout::Right => (4 * per_register * register + quarter * per_register + index, group),
            Layout::Sum if self.columns > self.rows => {
                (2 * quarter + element % 2, group + 8 * (element / 2))
            }
            Layout::Sum => {
                let row = group + 8 * (element / 2);
                (row % self.rows, 2 * quarter + element % 2 + 8 * (row / self.rows))
            }
            Layout::QuadLeft { by_columns: false } => (quarter + upper, element),
            Layout::QuadLeft { by_columns: true } => (element + upper, quarter),
            Layout::QuadRight { by_columns: false } => (quarter, element + upper),
            Layout::QuadRight { by_columns: true } => (element, quarter + upper),
            Layout::QuadSum16 => (quarter + upper, element),
            Layout::QuadSum32 => {
                ((lane & 1) + (element & 2) + upper, (element & 4) + (lane & 2) + (element & 1))
            }
            Layout::Dealt => {
                let dealt = (register * WARP + lane) * per_register + index;
                let dealt = dealt % (self.rows * self.columns);
                (dealt / self.columns, dealt % self.columns)
            }
        };
        Place { matrix: if self.is_quad() { group % 4 } else { 0 }, row, column }
    }

    /// Calls a function for each element that a lane holds: with its place, its register, the lane,
    /// and its bits there.
    pub(super) fn for_each(&self, mut call: impl FnMut(Place, usize, usize, u64)) {
        let width = self.element.bits();
        let bits = u64::MAX >> (64 - width);
        for register in 0..self.registers {
            for lane in 0..WARP {
                for index in 0..self.element.per_register() {
                    let place = self.place(lane, register, index);
                    call(place, register, lane, bits << (index * width));
                }
            }
        }
    }

    fn is_quad(&self) -> bool {
        matches!(
            self.layout,
            Layout::QuadLeft { .. }
                | Layout::QuadRight { .. }
                | Layout::QuadSum16
                | Layout::QuadSum32
        )
    }

    /// Returns the number of matrices that it holds.
    pub(super) fn matrices(&self) -> usize {
        if self.is_quad() { 4 } else { 1 }
    }

    /// Returns the position of an element in the list of all elements in this order.
    pub(super) fn position(&self, order: Order, place: Place) -> usize {
        let Place { matrix, row, column } = place;
        let neighbour = |column: usize| column / 8 * 8 + column % 2 * 4 + column % 8 / 2;
        let at = |column: usize| (matrix * self.rows + row) * self.columns + column;
        match order {
            Order::Rows => at(column),
            Order::Left => at(self.turn(column, self.columns)),
            Order::Right => {
                let column = matrix * self.columns + neighbour(column);
                (column / 8 * self.rows + self.turn(row, self.rows)) * 8 + column % 8
            }
            Order::Sum => at(neighbour(column)),
        }
    }

    /// Returns the place of product `k` of `depth` among those that are added.
    fn turn(&self, k: usize, depth: usize) -> usize {
        match self.element {
            // Those whose place in their register is low come first.
            Element::E4m3 | Element::E5m2 => k % 4 / 2 * (depth / 2) + k / 4 * 2 + k % 2,
            _ => k,
        }
    }

    /// Puts all elements into `into`, in the order of `positions`. Those of lanes that are not in
    /// `executing` are zeros.
    pub(super) fn gather<T: Copy + Default>(
        &self,
        registers: &[&Lanes],
        executing: Mask,
        positions: &Positions,
        value: impl Fn(u64) -> T + Copy,
        into: &mut Vec<T>,
    ) {
        into.resize(self.elements(), T::default());
        let per_register = self.element.per_register();
        let all = positions.all.chunks_exact(WARP * per_register);
        for (&lanes, all) in registers.iter().zip(all) {
            let mut some;
            let lanes = if executing == Mask::MAX {
                lanes
            } else {
                some = [0; WARP];
                lanes_of(executing).for_each(|lane| some[lane] = lanes[lane]);
                &some
            };
            match (positions.run, per_register) {
                (8, 2) => self.gather_runs::<T, 8, 2>(lanes, all, value, into),
                (4.., 1) => self.gather_runs::<T, 4, 1>(lanes, all, value, into),
                (_, 2) => self.gather_runs::<T, 1, 2>(lanes, all, value, into),
                _ => {
                    let bits = self.element.bits();
                    let kept = self.element.bit_mask();
                    for (lane, positions) in lanes.iter().zip(all.chunks_exact(per_register)) {
                        for (index, &position) in positions.iter().enumerate() {
                            if let Some(element) = into.get_mut(usize::from(position)) {
                                *element = value(lane >> (index * bits) & kept);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Puts the elements of a register into `into`. They are adjacent in runs of `RUN`; a lane has
    /// `PER` of them.
    fn gather_runs<T: Copy, const RUN: usize, const PER: usize>(
        &self,
        lanes: &Lanes,
        positions: &[u16],
        value: impl Fn(u64) -> T,
        into: &mut [T],
    ) {
        let bits = self.element.bits();
        let kept = self.element.bit_mask();
        let count = RUN.max(PER);
        let parts = lanes.chunks_exact(count / PER).zip(positions.chunks_exact(count));
        for (lanes, positions) in parts {
            for (first, positions) in positions.chunks_exact(RUN).enumerate() {
                let run: [T; RUN] = std::array::from_fn(|element| {
                    let element = first * RUN + element;
                    value(lanes[element / PER] >> (element % PER * bits) & kept)
                });
                let position = usize::from(positions[0]);
                if let Some(to) = into.get_mut(position..position + RUN) {
                    to.copy_from_slice(&run);
                }
            }
        }
    }

    /// Writes all elements, which are in the order of `positions`, into the registers of the lanes
    /// of `executing`.
    pub(super) fn scatter(
        &self,
        executing: Mask,
        positions: &Positions,
        elements: &[u64],
        out: &mut [Lanes],
    ) {
        let per_register = self.element.per_register();
        let bits = self.element.bits();
        let all = positions.all.chunks_exact(WARP * per_register);
        for (lanes, all) in out.iter_mut().zip(all) {
            let mut some = [0; WARP];
            let to = if executing == Mask::MAX { &mut *lanes } else { &mut some };
            if (positions.run, per_register) == (4, 1) {
                for (to, positions) in to.as_chunks_mut::<4>().0.iter_mut().zip(all.chunks_exact(4))
                {
                    let from = elements.get(usize::from(positions[0])..);
                    *to = from.and_then(|from| from.first_chunk()).copied().unwrap_or_default();
                }
            } else {
                for (to, positions) in to.iter_mut().zip(all.chunks_exact(per_register)) {
                    *to = 0;
                    for (index, &position) in positions.iter().enumerate() {
                        let element = elements.get(usize::from(position)).copied();
                        *to |= element.unwrap_or_default() << (index * bits);
                    }
                }
            }
            if executing != Mask::MAX {
                lanes_of(executing).for_each(|lane| lanes[lane] = some[lane]);
            }
        }
    }

    /// Returns the number of elements of all matrices.
    pub(super) fn elements(&self) -> usize {
        self.matrices() * self.rows * self.columns
    }

    /// Returns the position of each element: register by register, lane by lane, by the index in
    /// the register.
    fn positions(&self, order: Order) -> Positions {
        let mut all = Vec::new();
        for register in 0..self.registers {
            for lane in 0..WARP {
                for index in 0..self.element.per_register() {
                    all.push(self.position(order, self.place(lane, register, index)) as u16);
                }
            }
        }
        let is_adjacent = |run: &[u16]| run.iter().zip(run[0]..).all(|(&one, next)| one == next);
        let run = [8, 4].into_iter().find(|&run| all.chunks(run).all(is_adjacent));
        Positions { all, run: run.unwrap_or(1) }
    }
}

/// The positions of the elements of a fragment in an order.
#[derive(Debug)]
pub(super) struct Positions {
    all: Vec<u16>,
    /// The number of neighbours among them that are adjacent: 8, 4 or 1.
    run: usize,
}

/// The positions of the elements of the fragments that were used.
#[derive(Debug, Default)]
pub(super) struct Orders(Vec<(Fragment, Order, Positions)>);

impl Orders {
    pub(super) fn of(&mut self, fragment: &Fragment, order: Order) -> &Positions {
        let is_it = |one: &(Fragment, Order, _)| one.0 == *fragment && one.1 == order;
        let index = self.0.iter().position(is_it).unwrap_or_else(|| {
            self.0.push((*fragment, order, fragment.positions(order)));
            self.0.len() - 1
        });
        &self.0[index].2
    }
}
