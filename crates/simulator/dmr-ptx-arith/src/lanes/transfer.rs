//! `ldmatrix`, `stmatrix`, `wmma.load`, `wmma.store` and `movmatrix`: matrices between memory and
//! registers.

use super::fragment::{Fragment, Order};
use super::lanes_of;
use super::{Defect, Operand, Operands, Role, Work};
use crate::{Lanes, Mask, WARP};
use dmr_ptx_syntax::Type;

/// The address space of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Generic addresses (the instruction names no space).
    Generic,
    /// `.global`.
    Global,
    /// `.shared`.
    Shared,
}

/// An instruction that loads or stores matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// True if it writes memory.
    pub is_store: bool,
    /// The space that its addresses are in.
    pub window: Window,
    pub(super) matrix: Matrix,
}

/// The matrices that a transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// `count` matrices of 8 rows of 8 elements of 2 bytes, one register each; a lane gives the
    /// address of a row.
    Rows { count: usize, transpose: bool },
    /// A matrix of `wmma` with one address and a stride between its rows, or between its columns.
    Whole { fragment: Fragment, by_columns: bool },
}

/// One access to memory. The bytes of the accesses of a transfer follow each other in the list of
/// its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The lane that makes the access.
    pub lane: u8,
    /// The address in the transfer's window.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u32,
    /// The alignment that the address must have, in bytes.
    pub align: u32,
}

impl Transfer {
    pub(super) fn operands(&self) -> Operands {
        let (ty, registers) = match self.matrix {
            Matrix::Rows { count, .. } => (Type::B32, count),
            Matrix::Whole { fragment, .. } => (fragment.register_type(), fragment.registers),
        };
        let address = Operand { ty: Type::B64, registers: 1, role: Role::Address };
        let value = Operand::vector(ty, registers);
        let mut operands = Operands { destinations: Vec::new(), sources: vec![address] };
        if self.is_store {
            operands.sources.push(value)
        } else {
            operands.destinations.push(value)
        }
        if let Matrix::Whole { .. } = self.matrix {
            operands.sources.push(Operand { ty: Type::U32, registers: 1, role: Role::Stride });
        }
        operands
    }

    /// Appends the accesses to memory, in the order of their bytes.
    ///
    /// `addresses` has the address of each lane, `stride` the stride in elements if the text has
    /// one.
    ///
    /// # Errors
    ///
    /// What the ISA leaves undefined. `pieces` is appended to all the same: a row whose lane does
    /// not execute is read from (written to) the address that the lane's element of `addresses`
    /// has.
    pub fn pieces(
        &self,
        addresses: &Lanes,
        stride: Option<&Lanes>,
        executing: Mask,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Defect> {
        let mut defect = Ok(());
        match self.matrix {
            Matrix::Rows { count, .. } => {
                let rows = addresses.iter().take(8 * count).enumerate();
                pieces.extend(rows.map(|(lane, &address)| Piece {
                    lane: lane as u8,
                    address,
                    bytes: 16,
                    align: 16,
                }));
            }
            Matrix::Whole { fragment, by_columns } => {
                let lines = Lines::of(&fragment, by_columns);
                let first = executing.trailing_zeros() as usize % WARP;
                let stride_of = |lane: usize| {
                    stride.map_or(lines.length as u64, |stride| stride[lane] & 0xffff_ffff)
                };
                let differs = |&lane: &usize| {
                    addresses[lane] != addresses[first] || stride_of(lane) != stride_of(first)
                };
                if let Some(lane) = lanes_of(executing).find(differs) {
                    defect = Err(Defect::Differs { lane: lane as u8 });
                }
                let bits = fragment.element.bits();
                let align = (fragment.registers * fragment.register_type().bytes()).min(16) as u32;
                pieces.extend((0..lines.count).map(|line| {
                    Piece {
                        lane: line as u8,
                        address: addresses[first]
                            .wrapping_add(line as u64 * stride_of(first) * bits as u64 / 8),
                        bytes: (lines.length * bits / 8) as u32,
                        align,
                    }
                }));
            }
        }
        if executing == Mask::MAX { defect } else { Err(Defect::Missing(!executing)) }
    }

    /// Writes the destinations of a load into the lanes of `executing`, from the bytes of its
    /// pieces.
    pub fn unpack(&self, bytes: &[u8], executing: Mask, work: &mut Work, out: &mut [Lanes]) {
        match self.matrix {
            Matrix::Rows { transpose, .. } => {
                for (lanes, bytes) in out.iter_mut().zip(bytes.chunks_exact(128)) {
                    load_rows(bytes, executing, transpose, lanes);
                }
            }
            Matrix::Whole { fragment, by_columns } => {
                let lines = Lines::of(&fragment, by_columns);
                let bits = fragment.element.bits();
                let element = |position| read_bits(bytes, lines.offset(position) * bits, bits);
                work.bits.clear();
                work.bits.extend((0..fragment.elements()).map(element));
                let positions = work.orders.of(&fragment, Order::Rows);
                fragment.scatter(executing, positions, &work.bits, out);
            }
        }
    }

    /// Appends the bytes of a store's pieces, from the registers of its value. Those of lanes that
    /// are not in `executing` are 0.
    pub fn pack(&self, value: &[&Lanes], executing: Mask, work: &mut Work, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        match self.matrix {
            Matrix::Rows { count, transpose } => {
                bytes.resize(start + 128 * count, 0);
                for (lanes, bytes) in value.iter().zip(bytes[start..].chunks_exact_mut(128)) {
                    store_rows(lanes, executing, transpose, bytes);
                }
            }
            Matrix::Whole { fragment, by_columns } => {
                let lines = Lines::of(&fragment, by_columns);
                let size = fragment.element.bits() / 8;
                bytes.resize(start + fragment.rows * fragment.columns * size, 0);
                // Only accumulators are stored: an element is at least 2 bytes.
                let positions = work.orders.of(&fragment, Order::Rows);
                fragment.gather(value, executing, positions, |bits| bits, &mut work.bits);
                for (position, element) in work.bits.iter().enumerate() {
                    let at = start + lines.offset(position) * size;
                    bytes[at..at + size].copy_from_slice(&element.to_le_bytes()[..size]);
                }
            }
        }
    }
}

/// Transposes the matrix of 8 times 8 elements of 2 bytes that a register of the warp holds.
pub(super) fn move_matrix(
    sources: &[&Lanes],
    executing: Mask,
    out: &mut [Lanes],
) -> Result<(), Defect> {
    let Some(source) = sources.first() else { return Ok(()) };
    let mut bytes = [0; 128];
    store_rows(source, executing, false, &mut bytes);
    if let Some(lanes) = out.first_mut() {
        load_rows(&bytes, executing, true, lanes);
    }
    Ok(())
}

/// Writes the halves of a register into the 128 bytes of a matrix.
fn store_rows(lanes: &Lanes, executing: Mask, transpose: bool, bytes: &mut [u8]) {
    for lane in lanes_of(executing) {
        for index in 0..2 {
            let at = offset_of_half(lane, index, transpose);
            let half = (lanes[lane] >> (16 * index)) as u16;
            bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
}

/// Reads the halves of a register from the 128 bytes of a matrix.
fn load_rows(bytes: &[u8], executing: Mask, transpose: bool, lanes: &mut Lanes) {
    if !transpose && executing == Mask::MAX {
        for (lane, bytes) in lanes.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *lane = u64::from(u32::from_le_bytes(*bytes));
        }
        return;
    }
    for lane in lanes_of(executing) {
        let half = |index| {
            let at = offset_of_half(lane, index, transpose);
            u64::from(bytes[at]) | u64::from(bytes[at + 1]) << 8
        };
        lanes[lane] = half(0) | half(1) << 16;
    }
}

/// Returns the offset in the 128 bytes of a matrix of the half `index` of a lane's register.
fn offset_of_half(lane: usize, index: usize, transpose: bool) -> usize {
    let line = lane / 4;
    let place = lane % 4 * 2 + index;
    let (row, column) = if transpose { (place, line) } else { (line, place) };
    row * 16 + column * 2
}

/// The rows of a matrix in memory, or its columns.
#[derive(Clone, Copy)]
struct Lines {
    count: usize,
    /// In elements.
    length: usize,
    columns: usize,
    by_columns: bool,
}

impl Lines {
    fn of(fragment: &Fragment, by_columns: bool) -> Self {
        let rows = fragment.rows;
        let columns = fragment.columns;
        let (count, length) = if by_columns { (columns, rows) } else { (rows, columns) };
        Self { count, length, columns, by_columns }
    }

    /// Returns where in the lines an element is, in elements; `position` counts row after row.
    fn offset(&self, position: usize) -> usize {
        let row = position / self.columns;
        let column = position % self.columns;
        if self.by_columns { column * self.length + row } else { position }
    }
}

/// Returns `bits` bits of the bytes from bit `at` on; at least a byte, or within one.
fn read_bits(bytes: &[u8], at: usize, bits: usize) -> u64 {
    let bytes = bytes.get(at / 8..).unwrap_or_default().iter().take(bits.div_ceil(8));
    let value = bytes.rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    value >> (at % 8) & (u64::MAX >> (64 - bits))
}
