//! The lane, register and position in it of each element of a matrix.

use super::element::Element;
use super::lanes_of;
use crate::types::{Lanes, Mask, Type, WARP};

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
    /// Matrices C and D of `mma`: a row by four lanes, two columns each; the rows from 8 on in the elements from 2 on.
    Sum,
    /// Matrix A of `mma.m8n8k4` with halves: four matrices, each by two groups of four lanes.
    QuadLeft { by_columns: bool },
    /// Matrix B of `mma.m8n8k4` with halves.
    QuadRight { by_columns: bool },
    /// Matrices C and D of `mma.m8n8k4` with halves, in `f16`.
    QuadSum16,
    /// Matrices C and D of `mma.m8n8k4` with halves, in `f32`.
    QuadSum32,
    /// Every matrix of `wmma`, which has no layout in the ISA: row after row of the matrix, dealt to the lanes register
    /// by register, and again from the start where there is more room than elements.
    Dealt,
}

/// The place of an element: its matrix (of the four of a quad layout, else 0), row and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let (group, quarter) = (lane / 4, lane % 4);
        let upper = lane / 16 * 4;
        let (row, column) = match self.layout {
            Layout::Left => (
                group + 8 * (register % 2),
                4 * per_register * (register / 2) + quarter * per_register + index,
            ),
            Layout::Right => (4 * per_register * register + quarter * per_register + index, group),
            Layout::Sum => (group + 8 * (element / 2), 2 * quarter + element % 2),
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

    /// Returns the position of an element in the list of all elements: matrix after matrix, row after row.
    pub(super) fn position(&self, place: Place) -> usize {
        (place.matrix * self.rows + place.row) * self.columns + place.column
    }

    /// Puts all elements into `into`, matrix after matrix, row after row. Those of lanes that are not in `executing` are
    /// the default.
    pub(super) fn gather<T: Copy + Default>(
        &self,
        registers: &[&Lanes],
        executing: Mask,
        positions: &[u16],
        value: impl Fn(u64) -> T,
        into: &mut Vec<T>,
    ) {
        into.clear();
        into.resize(self.elements(), T::default());
        let (per_register, bits) = (self.element.per_register(), self.element.bits());
        let kept = u64::MAX >> (64 - bits);
        let parts = registers.iter().flat_map(|lanes| (0..per_register).map(move |i| (lanes, i)));
        for ((lanes, index), positions) in parts.zip(positions.chunks_exact(WARP)) {
            let mut values = [T::default(); WARP];
            for (to, lane) in values.iter_mut().zip(lanes.iter()) {
                *to = value(lane >> (index * bits) & kept);
            }
            for (lane, (&value, &position)) in values.iter().zip(positions).enumerate() {
                if (executing == Mask::MAX || executing >> lane & 1 != 0)
                    && let Some(element) = into.get_mut(usize::from(position))
                {
                    *element = value;
                }
            }
        }
    }

    /// Writes all elements, matrix after matrix, row after row, into the registers of the lanes of `executing`.
    pub(super) fn scatter(
        &self,
        executing: Mask,
        positions: &[u16],
        element: impl Fn(usize) -> u64,
        out: &mut [Lanes],
    ) {
        let (per_register, bits) = (self.element.per_register(), self.element.bits());
        let kept = u64::MAX >> (64 - bits);
        for (lanes, positions) in out.iter_mut().zip(positions.chunks_exact(WARP * per_register)) {
            let mut all = [0; WARP];
            for (index, positions) in positions.chunks_exact(WARP).enumerate() {
                for (value, &position) in all.iter_mut().zip(positions) {
                    *value |= (element(usize::from(position)) & kept) << (index * bits);
                }
            }
            if executing == Mask::MAX {
                *lanes = all;
            } else {
                lanes_of(executing).for_each(|lane| lanes[lane] = all[lane]);
            }
        }
    }

    fn elements(&self) -> usize {
        self.matrices() * self.rows * self.columns
    }

    /// Returns the position of each element: register by register, then by the index in it, then by the lane.
    fn positions(&self) -> Vec<u16> {
        let mut positions = Vec::new();
        for register in 0..self.registers {
            for index in 0..self.element.per_register() {
                for lane in 0..WARP {
                    positions.push(self.position(self.place(lane, register, index)) as u16);
                }
            }
        }
        positions
    }
}

/// The positions of the elements of the fragments that were used.
#[derive(Debug, Default)]
pub(super) struct Positions(Vec<(Fragment, Vec<u16>)>);

impl Positions {
    pub(super) fn of(&mut self, fragment: &Fragment) -> &[u16] {
        let found = self.0.iter().position(|(other, _)| other == fragment);
        let index = found.unwrap_or_else(|| {
            self.0.push((*fragment, fragment.positions()));
            self.0.len() - 1
        });
        &self.0[index].1
    }
}
