//! Copies of boxes of tensors, `cp.async.bulk.tensor`, and copies that reduce,
//! `cp.reduce.async.bulk`.

use crate::tensor_map::{MOST_DIMENSIONS, TENSOR_MAP_BYTES, TensorDimension, TensorMap};
use dmr_ptx_arith::{Mask, lanes_of};

use super::access::AccessKind;
use super::atomic::Change;
use super::block::BlockState;
use super::code::{Location, Value};
use super::copies::Part;
use super::fault::{FaultKind, SpaceName};
use super::global::{Qualifier, Scope};
use super::in_flight::CopyKind;
use super::interpreter::{Interpreter, Stop};
use super::memory::{RUN_BYTES, Reach, refused};
use super::space::{Run, resolve};
use super::warp::{LaneGroup, Warp};

/// A copy of a box of a tensor, between global and shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorCopy {
    /// The address of the map.
    pub(super) map: Location,
    /// The coordinates of the box, the innermost first.
    pub(super) coordinates: [Value; MOST_DIMENSIONS],
    pub(super) rank: usize,
    pub(super) shared: Location,
    /// The object that counts the bytes of a copy to shared memory; `None` for a copy to global
    /// memory.
    pub(super) barrier: Option<Location>,
    /// The ranks of the blocks that get the box, as bits; `None` for the block of the address.
    pub(super) ranks: Option<Value>,
    /// The operation by which a copy changes global memory; `None` if it writes.
    pub(super) reduction: Option<&'static str>,
}

/// A copy of bytes from shared to global memory that changes what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReducingCopy {
    pub(super) to: Location,
    pub(super) from: Location,
    pub(super) size: Value,
    pub(super) change: Change,
    /// The bytes of an element.
    pub(super) element: u8,
}

/// Elements that lie side by side, in the tensor and in the box.
struct Row {
    /// The address in global memory.
    address: u64,
    /// The offset in the box.
    offset: u64,
    bytes: u64,
}

impl Interpreter<'_> {
    pub(super) fn copy_tensor(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        copy: &TensorCopy,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let maps = self.addresses(warp, group, &copy.map);
        let shared = self.addresses(warp, group, &copy.shared);
        let barriers = copy.barrier.map(|barrier| self.addresses(warp, group, &barrier));
        for lane in lanes_of(mask) {
            let map = self.read_map(block, warp, copy, maps[lane], lane)?;
            let coordinate =
                |index: usize| self.value(warp, group.base, copy.coordinates[index])[lane];
            let start: Vec<i64> =
                (0..copy.rank).map(|index| i64::from(coordinate(index) as i32)).collect();
            let address = self.own_address(resolve_shared(&copy.shared, shared[lane]));
            self.check_multiple(SpaceName::Shared, address, 128, lane)?;
            let rows = rows(&map, &start);
            let whole = map.box_bytes();
            let Some(barriers) = &barriers else {
                self.store_box(block, warp, (&map, &rows), (address, lane), copy.reduction)?;
                let part = Part { address, bytes: whole, is_source: true, global: None };
                self.start_copy(block, warp, (CopyKind::Bulk, lane), part, None);
                continue;
            };
            let object = Some(self.own_address(resolve(barriers[lane]).1));
            let ranks = copy.ranks.map(|ranks| self.value(warp, group.base, ranks)[lane]);
            for target in self.targets((SpaceName::Shared, address), object, ranks) {
                self.load_box(block, warp, (&map, &rows), (target.place.1, lane))?;
                let address = target.place.1;
                let part = Part { address, bytes: whole, is_source: false, global: None };
                self.finish_target(block, warp, lane, &target, part)?;
            }
        }
        Ok(())
    }

    fn read_map(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        copy: &TensorCopy,
        address: u64,
        lane: usize,
    ) -> Result<TensorMap, Box<Stop>> {
        let (space, offset) = match copy.map.space {
            SpaceName::Generic => resolve(address),
            space => (space, address),
        };
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let (reach, run) = access(space, offset, bytes.len(), lane);
        self.read_written(block, warp, &reach, run, &mut bytes)?;
        let map = TensorMap::from_bytes(&bytes);
        let room = block.shared.len() as u64;
        let fits = |map: &TensorMap| map.dimensions.len() == copy.rank && map.box_bytes() <= room;
        map.filter(fits).ok_or_else(|| {
            let rank = copy.rank;
            let message =
                format!("no map of a tensor of {rank} dimensions is there with a box of {room} bytes at most");
            Stop::new(FaultKind::Invalid(message), lane)
        })
    }

    /// Copies a box into shared memory; what is out of bounds is filled.
    fn load_box(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        from: (&TensorMap, &[Row]),
        to: (u64, usize),
    ) -> Result<(), Box<Stop>> {
        let (map, rows) = from;
        let (address, lane) = to;
        let mut bytes = vec![0; map.box_bytes() as usize];
        if map.fills_nan {
            let element = map.element.bytes();
            bytes
                .chunks_exact_mut(element)
                .for_each(|to| to.copy_from_slice(&map.element.nan()[..element]));
        }
        for row in rows {
            let all = &mut bytes[row.offset as usize..(row.offset + row.bytes) as usize];
            for (index, part) in all.chunks_mut(RUN_BYTES).enumerate() {
                let at = row.address.wrapping_add((index * RUN_BYTES) as u64);
                let (reach, run) = access(SpaceName::Global, at, part.len(), lane);
                self.read_written(block, warp, &reach, run, part)?;
            }
        }
        for (at, part) in units(map, &mut bytes) {
            let at = map.swizzle.apply(address.wrapping_add(at));
            let (reach, run) = access(SpaceName::Shared, at, part.len(), lane);
            self.write_run(block, warp, &reach, run, part)?;
        }
        Ok(())
    }

    /// Copies a box out of shared memory; what is out of bounds is left out.
    fn store_box(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        to: (&TensorMap, &[Row]),
        from: (u64, usize),
        reduction: Option<&'static str>,
    ) -> Result<(), Box<Stop>> {
        let (map, rows) = to;
        let (address, lane) = from;
        let mut bytes = vec![0; map.box_bytes() as usize];
        for (at, part) in units(map, &mut bytes) {
            let at = map.swizzle.apply(address.wrapping_add(at));
            let (reach, run) = access(SpaceName::Shared, at, part.len(), lane);
            self.read_written(block, warp, &reach, run, part)?;
        }
        for row in rows {
            let all = &bytes[row.offset as usize..(row.offset + row.bytes) as usize];
            if let Some(name) = reduction {
                let change = Change::decode(name, map.element.ty()).ok_or_else(|| {
                    let message = format!("a reduction `.{name}` of {:?}", map.element);
                    Stop::new(FaultKind::Invalid(message), lane)
                })?;
                let element = map.element.bytes();
                self.reduce(block, warp, (row.address, lane), (change, element), all)?;
                continue;
            }
            for (index, part) in all.chunks(RUN_BYTES).enumerate() {
                let at = row.address.wrapping_add((index * RUN_BYTES) as u64);
                let (reach, run) = access(SpaceName::Global, at, part.len(), lane);
                self.write_run(block, warp, &reach, run, part)?;
            }
        }
        Ok(())
    }

    pub(super) fn copy_reducing(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        copy: &ReducingCopy,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let to = self.addresses(warp, group, &copy.to);
        let from = self.addresses(warp, group, &copy.from);
        let sizes = *self.value(warp, group.base, copy.size);
        for lane in lanes_of(mask) {
            let size = sizes[lane] & 0xffff_ffff;
            let address = self.own_address(resolve_shared(&copy.from, from[lane]));
            if !size.is_multiple_of(16) {
                let message = format!("a copy that reduces {size} bytes: not a multiple of 16");
                return Err(Stop::new(FaultKind::Invalid(message), lane));
            }
            self.check_multiple(SpaceName::Shared, address, 16, lane)?;
            self.check_multiple(SpaceName::Global, to[lane], 16, lane)?;
            let mut buffer = [0; RUN_BYTES];
            for at in (0..size).step_by(RUN_BYTES) {
                let part = &mut buffer[..(size - at).min(RUN_BYTES as u64) as usize];
                let (reach, run) =
                    access(SpaceName::Shared, address.wrapping_add(at), part.len(), lane);
                self.read_written(block, warp, &reach, run, part)?;
                let operation = (copy.change, usize::from(copy.element));
                self.reduce(block, warp, (to[lane].wrapping_add(at), lane), operation, part)?;
            }
            let part = Part { address, bytes: size, is_source: true, global: None };
            self.start_copy(block, warp, (CopyKind::Bulk, lane), part, None);
        }
        Ok(())
    }

    /// Changes elements of global memory, each as one atomic change.
    fn reduce(
        &mut self,
        block: &BlockState,
        warp: &mut Warp,
        to: (u64, usize),
        operation: (Change, usize),
        bytes: &[u8],
    ) -> Result<(), Box<Stop>> {
        let (address, lane) = to;
        let (change, element) = operation;
        for (index, part) in bytes.chunks_exact(element).enumerate() {
            let (mut reach, run) = access(
                SpaceName::Global,
                address.wrapping_add((index * element) as u64),
                element,
                lane,
            );
            reach.qualifier = Qualifier::Atomic(Scope::Gpu);
            let global = self.global_access(block, warp, &reach, run, element);
            self.record_global(block, warp, &reach, run, (AccessKind::StrongWrite, &[]));
            let operand = number(part);
            let mut apply = |all: &mut [u8]| {
                let new = change.apply(number(all), operand, 0, 8 * element as u32, true);
                all.copy_from_slice(&new.to_le_bytes()[..element]);
            };
            self.memory.atomic(&global, &mut apply).map_err(|error| refused(&reach, run, error))?;
        }
        self.polls = 0;
        self.changed = true;
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// Returns the access of one lane to bytes of a space.
fn access(space: SpaceName, address: u64, bytes: usize, lane: usize) -> (Reach, Run) {
    let mask = 1 << lane;
    let qualifier = Qualifier::Plain;
    let reach = Reach { space, mask, bytes: bytes as u32, qualifier, uniform: false };
    (reach, Run { address, first: lane, count: 1 })
}

fn resolve_shared(location: &Location, address: u64) -> u64 {
    if location.space == SpaceName::Generic { resolve(address).1 } else { address }
}

/// Splits a box into parts that stay together in shared memory, with their offsets.
fn units<'b>(map: &TensorMap, bytes: &'b mut [u8]) -> impl Iterator<Item = (u64, &'b mut [u8])> {
    let unit = if map.swizzle == crate::tensor_map::Swizzle::None { RUN_BYTES } else { 16 };
    bytes.chunks_mut(unit).enumerate().map(move |(index, part)| ((index * unit) as u64, part))
}

/// Returns the elements of a box that are in the tensor.
fn rows(map: &TensorMap, start: &[i64]) -> Vec<Row> {
    let Some((inner, outer)) = map.dimensions.split_first() else { return Vec::new() };
    let element = map.element.bytes() as u64;
    let mut rows = Vec::new();
    let count: u64 = outer.iter().map(TensorDimension::copied).product();
    'rows: for number in 0..count {
        let mut rest = number;
        let mut address = map.address;
        for (dimension, &start) in outer.iter().zip(&start[1..]) {
            let step = (rest % dimension.copied()) * u64::from(dimension.element_stride);
            rest /= dimension.copied();
            let Some(at) = within(start, step, dimension.size) else { continue 'rows };
            address = address.wrapping_add(at.wrapping_mul(dimension.stride));
        }
        for index in 0..inner.copied() {
            let step = index * u64::from(inner.element_stride);
            let Some(at) = within(start[0], step, inner.size) else { continue };
            let address = address.wrapping_add(at * element);
            let offset = (number * inner.copied() + index) * element;
            match rows.last_mut() {
                Some(Row { address: first, offset: from, bytes })
                    if first.wrapping_add(*bytes) == address && *from + *bytes == offset =>
                {
                    *bytes += element;
                }
                _ => rows.push(Row { address, offset, bytes: element }),
            }
        }
    }
    rows
}

/// Returns `start + step` if it is a coordinate of a dimension of this size.
fn within(start: i64, step: u64, size: u64) -> Option<u64> {
    u64::try_from(start + step as i64).ok().filter(|&at| at < size)
}
