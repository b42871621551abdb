//! The decoding of asynchronous copies, and of the waits for them.

use dmr_ptx_syntax::Operand;
use dmr_ptx_syntax::Type;

use super::function::{Decoding, FunctionLoader};
use crate::atomic::Change;
use crate::code::{Op, Value};
use crate::copies::{BulkCopy, CopyInst, CountedAccess, LaneCopy, SharedAccess};
use crate::fault::SpaceName;
use crate::in_flight::CopyKind;
use crate::tensors::{ReducingCopy, TensorCopy};

impl FunctionLoader<'_, '_> {
    /// Decodes `cp.async` and `cp.async.bulk`.
    pub(super) fn decode_copy(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<Op> {
        let inst = match modifiers {
            ["async", "bulk", "prefetch", ..] => return Ok(Op::Nop),
            ["async", "bulk", "tensor", rest @ ..] => self.decode_tensor(rest, operands, false)?,
            ["reduce", "async", "bulk", "tensor", rest @ ..] => {
                self.decode_tensor(rest, operands, true)?
            }
            ["reduce", "async", "bulk", rest @ ..] => self.decode_reducing(rest, operands)?,
            ["async", "bulk", "commit_group"] => CopyInst::Commit(CopyKind::Bulk),
            ["async", "bulk", "wait_group", rest @ ..] => {
                wait(CopyKind::Bulk, operands, rest.contains(&"read"))?
            }
            ["async", "bulk", rest @ ..] => self.decode_bulk(rest, operands)?,
            ["async", "commit_group"] => CopyInst::Commit(CopyKind::Lane),
            ["async", "wait_group"] => wait(CopyKind::Lane, operands, false)?,
            ["async", "wait_all"] => CopyInst::WaitAll,
            ["async", "ca" | "cg", rest @ ..] => self.decode_lanes_copy(rest, operands)?,
            _ => return Err("this copy is not supported".to_owned()),
        };
        Ok(Op::Copies(Box::new(inst)))
    }

    /// Decodes `st.async` and `red.async` from what follows that.
    pub(super) fn decode_counted(
        &mut self,
        name: &str,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<Op> {
        let (count, plain): (Vec<&str>, Vec<&str>) =
            modifiers.iter().partition(|name| **name == "mbarrier::complete_tx::bytes");
        if count.is_empty() || !plain.contains(&"shared::cluster") {
            return Err("only accesses that an mbarrier object counts are supported".to_owned());
        }
        let [address, value, barrier] = operands else {
            return Err("it has three operands".to_owned());
        };
        let access = [address.clone(), value.clone()];
        let (access, bytes) = match name {
            "st" => match self.decode_store(&plain, &access)? {
                Op::Store(store) => (SharedAccess::Store(store), store.element * store.count),
                _ => return Err("it is no store".to_owned()),
            },
            _ => match self.decode_atomic(name, &plain, &access)? {
                Op::Atomic(change) => (SharedAccess::Change(change), change.element * change.count),
                _ => return Err("it is no atomic change".to_owned()),
            },
        };
        let barrier = self.location(barrier, SpaceName::Shared)?;
        Ok(Op::Copies(Box::new(CopyInst::Counted(CountedAccess { access, bytes, barrier }))))
    }

    /// Returns the mask of a copy to several blocks, the first of the operands behind the barrier.
    fn ranks(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<Option<Value>> {
        if !modifiers.contains(&"multicast::cluster") {
            return Ok(None);
        }
        let mask = operands.first().ok_or("the mask of its blocks is missing")?;
        self.value(mask, Type::U16).map(Some)
    }

    fn decode_lanes_copy(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand],
    ) -> Decoding<CopyInst> {
        let [to, from, Operand::Integer(bytes), rest @ ..] = operands else {
            return Err("its size is not a constant".to_owned());
        };
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(format!("a copy of {bytes} bytes"));
        }
        let mut size: Option<Value> = None;
        let mut ignores: Option<Value> = None;
        let hints = usize::from(modifiers.contains(&"L2::cache_hint"));
        for operand in rest.iter().take(rest.len().saturating_sub(hints)) {
            match operand {
                Operand::Register(id) if self.is_predicate(*id) => {
                    ignores = Some(self.value(operand, Type::Pred)?);
                }
                _ => size = Some(self.value(operand, Type::U32)?),
            }
        }
        Ok(CopyInst::Lanes(LaneCopy {
            to: self.location(to, SpaceName::Shared)?,
            from: self.location(from, SpaceName::Global)?,
            bytes: *bytes as u8,
            size,
            ignores,
        }))
    }

    /// Decodes `cp.async.bulk` from what follows that.
    fn decode_bulk(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<CopyInst> {
        let (to, from) = match modifiers {
            ["shared::cluster" | "shared::cta", "global", "mbarrier::complete_tx::bytes", ..] => {
                (SpaceName::Shared, SpaceName::Global)
            }
            ["shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes"] => {
                (SpaceName::Shared, SpaceName::Shared)
            }
            ["global", "shared::cta", "bulk_group", ..] => (SpaceName::Global, SpaceName::Shared),
            _ => return Err("a copy between these spaces is not supported".to_owned()),
        };
        if modifiers.contains(&"cp_mask") {
            return Err("copies by a mask of bytes are not supported".to_owned());
        }
        let [target, source, size, rest @ ..] = operands else {
            return Err("it has too few operands".to_owned());
        };
        let barrier = match rest.first() {
            Some(operand) if to == SpaceName::Shared => {
                Some(self.location(operand, SpaceName::Shared)?)
            }
            None if to == SpaceName::Shared => return Err("its barrier is missing".to_owned()),
            _ => None,
        };
        let ranks = self.ranks(modifiers, &rest[rest.len().min(1)..])?;
        Ok(CopyInst::Bulk(BulkCopy {
            ranks,
            to: self.location(target, to)?,
            from: self.location(source, from)?,
            size: self.value(size, Type::U32)?,
            barrier,
        }))
    }

    /// Decodes `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor` from what follows that.
    fn decode_tensor(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand],
        reduces: bool,
    ) -> Decoding<CopyInst> {
        let loads = modifiers.contains(&"mbarrier::complete_tx::bytes");
        for &modifier in modifiers {
            match modifier {
                "1d"
                | "2d"
                | "3d"
                | "4d"
                | "5d"
                | "global"
                | "shared::cluster"
                | "shared::cta"
                | "tile"
                | "multicast::cluster"
                | "mbarrier::complete_tx::bytes"
                | "bulk_group"
                | "L2::cache_hint" => {}
                _ if reduces && reduction(&[modifier]).is_some() => {}
                _ => return Err(format!("the modifier `.{modifier}` is not supported")),
            }
        }
        let reduction = reduces.then(|| reduction(modifiers).ok_or("its operation is missing"));
        let (indexed, shared, rest) = match operands {
            [shared, Operand::Indexed(indexed), rest @ ..] if loads => (indexed, shared, rest),
            [Operand::Indexed(indexed), shared, rest @ ..] if !loads => (indexed, shared, rest),
            _ => return Err("the map and its coordinates are missing".to_owned()),
        };
        let [map, values] = &indexed[..] else {
            return Err("the coordinates of the map are missing".to_owned());
        };
        let values = self.values(values, Type::S32)?;
        let mut coordinates = [self.loader.constant(0); 5];
        let rank = values.len();
        coordinates.get_mut(..rank).ok_or("more than five coordinates")?.copy_from_slice(&values);
        let barrier = match (loads, rest.first()) {
            (false, _) => None,
            (true, Some(operand)) => Some(self.location(operand, SpaceName::Shared)?),
            (true, None) => return Err("its barrier is missing".to_owned()),
        };
        let ranks = self.ranks(modifiers, &rest[rest.len().min(1)..])?;
        Ok(CopyInst::Tensor(TensorCopy {
            ranks,
            map: self.location(map, SpaceName::Generic)?,
            coordinates,
            rank,
            shared: self.location(shared, SpaceName::Shared)?,
            barrier,
            reduction: reduction.transpose()?,
        }))
    }

    /// Decodes `cp.reduce.async.bulk` from what follows that.
    fn decode_reducing(&mut self, modifiers: &[&str], operands: &[Operand]) -> Decoding<CopyInst> {
        let ["global", "shared::cta", "bulk_group", rest @ ..] = modifiers else {
            return Err("only reductions from shared to global memory are supported".to_owned());
        };
        let [to, from, size, ..] = operands else {
            return Err("it has too few operands".to_owned());
        };
        let ty = rest.iter().rev().find_map(|name| Type::from_name(name));
        let ty = ty.filter(|ty| ty.bytes() <= 8).ok_or("its type is missing")?;
        let change = reduction(rest).and_then(|name| Change::decode(name, ty));
        let change = change.ok_or("this reduction is not supported")?;
        Ok(CopyInst::Reducing(ReducingCopy {
            to: self.location(to, SpaceName::Global)?,
            from: self.location(from, SpaceName::Shared)?,
            size: self.value(size, Type::U32)?,
            change,
            element: ty.bytes() as u8,
        }))
    }
}

fn wait(kind: CopyKind, operands: &[Operand], is_read: bool) -> Decoding<CopyInst> {
    let [Operand::Integer(but)] = operands else {
        return Err("its number of groups is not a constant".to_owned());
    };
    Ok(CopyInst::Wait { kind, but: u32::try_from(*but).unwrap_or(u32::MAX), is_read })
}

/// Returns the operation of a copy that reduces.
fn reduction(modifiers: &[&str]) -> Option<&'static str> {
    const NAMES: [&str; 8] = ["add", "min", "max", "inc", "dec", "and", "or", "xor"];
    NAMES.into_iter().find(|name| modifiers.contains(name))
}
