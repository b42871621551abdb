//! Asynchronous copies that no thread has waited for, and the bytes that they read and write.
//!
//! The bytes of a copy are there at once. Until it is waited for, an access to them is a race with
//! the thread that began the copy: on a device they may not be there.
//!
//! Memory is bounded. Of the copies of a thread that have the same bytes and are waited for in the
//! same way, the last one is kept: its bytes are in flight until it is waited for, which is no
//! earlier than for those before it. Of different ones, a block keeps [`MOST`]; those that begin
//! later count as completed, which can only miss races.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The instructions that a copy belongs to, each kind with groups of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopyKind {
    /// `cp.async`
    Lane,
    /// `cp.async.bulk`
    Bulk,
}

/// The phase of an `mbarrier` object that ends when a copy has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// The address of the object in shared memory.
    pub(super) object: u64,
    pub(super) number: u64,
}

/// A copy between global and shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) kind: CopyKind,
    /// The number in the block of the thread that began it.
    pub(super) thread: u32,
    pub(super) instruction: u32,
    /// The bytes in shared memory: multiples of 4, unless misaligned accesses are not checked.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// True if it reads the bytes, and false if it writes them.
    pub(super) is_source: bool,
    /// The first of as many bytes in global memory, the other side of the copy, if that is
    /// followed.
    pub(super) global: Option<u64>,
    /// True if a thread has waited for it to read its bytes: it still writes those in global
    /// memory.
    pub(super) is_read: bool,
    pub(super) phase: Option<Phase>,
}

impl InFlight {
    /// Returns the bytes in global memory; none of a copy whose other side is not followed.
    fn global_bytes(&self) -> Range<u64> {
        self.global.map_or(0..0, |start| start..start.saturating_add(self.bytes))
    }
}

/// The maximum number of copies that a block keeps.
const MOST: usize = 1 << 18;
/// The number of copies of a thread from which on those that others replace are removed.
const SOME: usize = 64;

/// The groups and copies of a thread.
#[derive(Debug, Default)]
struct Groups {
    /// The number of committed groups, by kind.
    committed: [u32; 2],
    /// The copies, and the number of the group of each.
    copies: Vec<(u32, u32)>,
    /// The number of copies that were left when replaced ones were last removed.
    left: usize,
}

/// The copies of a block that are in flight.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// For each word of shared memory, one more than the copy that is in flight there; 0 for none.
    words: Vec<u32>,
    threads: HashMap<u32, Groups>,
    /// The copies whose completion an object counts, by its address.
    by_object: HashMap<u64, Vec<u32>>,
    /// A range of global memory with the bytes of all copies.
    global: Range<u64>,
}

impl Copies {
    pub(super) fn is_empty(&self) -> bool {
        self.copies.len() == self.free.len()
    }

    /// Records a copy in a block with `shared` bytes of shared memory.
    pub(super) fn start(&mut self, copy: InFlight, shared: usize) {
        if self
            .threads
            .get(&copy.thread)
            .is_some_and(|groups| groups.copies.len() >= SOME.max(2 * groups.left))
        {
            self.remove_replaced(copy.thread);
        }
        if self.copies.len() - self.free.len() >= MOST {
            return;
        }
        self.words.resize(shared.div_ceil(4), 0);
        let global = copy.global_bytes();
        if self.is_empty() || self.global.is_empty() {
            self.global = global;
        } else if !global.is_empty() {
            self.global = self.global.start.min(global.start)..self.global.end.max(global.end);
        }
        let index = self.free.pop().unwrap_or(self.copies.len() as u32);
        if index as usize == self.copies.len() {
            self.copies.push(Some(copy));
        } else {
            self.copies[index as usize] = Some(copy);
        }
        if let Some(words) = self.words_of(&copy) {
            words.fill(index + 1);
        }
        let groups = self.threads.entry(copy.thread).or_default();
        groups.copies.push((index, groups.committed[copy.kind as usize]));
        if let Some(phase) = copy.phase {
            self.by_object.entry(phase.object).or_default().push(index);
        }
    }

    /// Removes the copies of a thread that a later one with the same bytes replaces.
    fn remove_replaced(&mut self, thread: u32) {
        let Some(groups) = self.threads.get_mut(&thread) else { return };
        let mut kept = HashSet::new();
        let mut replaced = Vec::new();
        for &(index, _) in groups.copies.iter().rev() {
            let Some(copy) = self.copies[index as usize] else { continue };
            let InFlight { kind, address, bytes, is_source, phase, .. } = copy;
            if !kept.insert((kind, address, bytes, is_source, phase.map(|phase| phase.object))) {
                replaced.push(index);
            }
        }
        groups.left = kept.len();
        let gone: HashSet<u32> = replaced.iter().copied().collect();
        groups.copies.retain(|(index, _)| !gone.contains(index));
        for bound in self.by_object.values_mut() {
            bound.retain(|index| !gone.contains(index));
        }
        for index in replaced {
            self.remove(index);
        }
    }

    /// Returns a copy in flight that an access to these bytes conflicts with.
    pub(super) fn conflict(&self, address: u64, bytes: u64, writes: bool) -> Option<&InFlight> {
        if self.is_empty() {
            return None;
        }
        let words = address / 4..(address + bytes).div_ceil(4);
        let found = self.words.get(words.start as usize..words.end as usize)?;
        let copies =
            found.iter().filter_map(|&word| self.copies.get(word.checked_sub(1)? as usize));
        let overlaps =
            |copy: &InFlight| address < copy.address + copy.bytes && copy.address < address + bytes;
        copies.flatten().find(|copy| (writes || !copy.is_source) && overlaps(copy))
    }

    /// Returns a copy in flight that an access to these bytes of global memory conflicts with, and
    /// the first such byte.
    #[inline]
    pub(super) fn global_conflict(
        &self,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Option<(&InFlight, u64)> {
        if address >= self.global.end || address + bytes <= self.global.start || self.is_empty() {
            return None;
        }
        self.copies.iter().flatten().find_map(|copy| {
            let global = copy.global_bytes();
            let first = global.start.max(address);
            let end = global.end.min(address + bytes);
            (first < end && (writes || copy.is_source)).then_some((copy, first))
        })
    }

    /// Ends the group that a thread's copies since the last one belong to.
    pub(super) fn commit(&mut self, thread: u32, kind: CopyKind) {
        self.threads.entry(thread).or_default().committed[kind as usize] += 1;
    }

    /// Removes the copies of a thread but those of its last `but` committed groups, and returns
    /// them. The writes to global memory of a group that only `is_read` stay.
    pub(super) fn wait(
        &mut self,
        thread: u32,
        kind: CopyKind,
        but: u32,
        is_read: bool,
    ) -> Vec<InFlight> {
        let Some(groups) = self.threads.get_mut(&thread) else { return Vec::new() };
        let Some(end) = groups.committed[kind as usize].checked_sub(but) else { return Vec::new() };
        let copies = &self.copies;
        // Bulk copies that an object counts are in no group.
        let is_in_group =
            |copy: InFlight| copy.kind == kind && (kind == CopyKind::Lane || copy.phase.is_none());
        let is_in_group = |copy: InFlight| is_in_group(copy) && !(is_read && copy.is_read);
        let is_kind = |index: u32| copies[index as usize].is_some_and(is_in_group);
        let done = groups.copies.extract_if(.., |(index, group)| is_kind(*index) && *group < end);
        let done: Vec<(u32, u32)> = done.collect();
        let mut removed = Vec::new();
        for (index, group) in done {
            let Some(copy) = self.remove(index) else { continue };
            if is_read && copy.global.is_some() {
                self.keep_write(copy, group);
            }
            if !copy.is_read {
                removed.push(copy);
            }
        }
        removed
    }

    /// Records the write to global memory of a copy that has read its bytes.
    fn keep_write(&mut self, copy: InFlight, group: u32) {
        let Some(index) = self.free.pop() else { return };
        self.copies[index as usize] = Some(InFlight { is_read: true, ..copy });
        self.threads.entry(copy.thread).or_default().copies.push((index, group));
    }

    /// Makes the phase of an object end with the `cp.async` copies of a thread, and returns these.
    pub(super) fn count(&mut self, thread: u32, phase: Phase) -> Vec<InFlight> {
        let Some(groups) = self.threads.get(&thread) else { return Vec::new() };
        let mut counted = Vec::new();
        for &(index, _) in &groups.copies {
            let Some(copy) = &mut self.copies[index as usize] else { continue };
            if copy.kind == CopyKind::Lane && copy.phase.is_none() {
                copy.phase = Some(phase);
                counted.push(*copy);
                self.by_object.entry(phase.object).or_default().push(index);
            }
        }
        counted
    }

    /// Removes the copies that the completed phases of an object have waited for; `number` is that
    /// of its phase now.
    pub(super) fn complete(&mut self, object: u64, number: u64) {
        let Some(bound) = self.by_object.get_mut(&object) else { return };
        let copies = &self.copies;
        let phase = |index: u32| copies[index as usize].and_then(|copy| copy.phase);
        let is_done = |index: &mut u32| {
            phase(*index).is_some_and(|phase| phase.object == object && phase.number != number)
        };
        let done: Vec<u32> = bound.extract_if(.., is_done).collect();
        for index in done {
            if let Some(copy) = self.remove(index)
                && let Some(groups) = self.threads.get_mut(&copy.thread)
            {
                groups.copies.retain(|(other, _)| *other != index);
            }
        }
    }

    /// Removes a copy from everything but its thread's list.
    fn remove(&mut self, index: u32) -> Option<InFlight> {
        let copy = self.copies[index as usize].take()?;
        if let Some(words) = self.words_of(&copy) {
            words.iter_mut().filter(|word| **word == index + 1).for_each(|word| *word = 0);
        }
        if let Some(bound) = copy.phase.and_then(|phase| self.by_object.get_mut(&phase.object)) {
            bound.retain(|other| *other != index);
        }
        self.free.push(index);
        Some(copy)
    }

    fn words_of(&mut self, copy: &InFlight) -> Option<&mut [u32]> {
        let words = copy.address / 4..(copy.address + copy.bytes).div_ceil(4);
        self.words.get_mut(words.start as usize..words.end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: usize = 1 << 20;

    fn copy(thread: u32, address: u64) -> InFlight {
        let kind = CopyKind::Lane;
        let instruction = 0;
        InFlight {
            kind,
            thread,
            instruction,
            address,
            bytes: 4,
            is_source: false,
            global: None,
            is_read: false,
            phase: None,
        }
    }

    #[test]
    fn a_million_copies_of_the_same_bytes_take_the_memory_of_some() {
        let phase = Some(Phase { object: 64, number: 0 });
        for (kind, is_source, phase) in [
            (CopyKind::Lane, false, None),
            (CopyKind::Bulk, true, None),
            (CopyKind::Bulk, false, phase),
        ] {
            let mut copies = Copies::default();
            for index in 0..1_000_000 {
                let address = index % 8 * 4;
                copies.start(InFlight { kind, is_source, phase, ..copy(0, address) }, SHARED);
            }
            assert!(copies.copies.len() <= 2 * SOME, "{}", copies.copies.len());
            assert!(copies.by_object.values().all(|bound| bound.len() <= 2 * SOME));
            for address in 0..8 {
                assert!(copies.conflict(address * 4, 4, true).is_some());
            }
        }
    }

    #[test]
    fn different_copies_are_bounded_and_those_that_are_kept_can_be_waited_for() {
        let mut copies = Copies::default();
        for index in 0..300_000 {
            copies.start(copy(index % 1024, u64::from(index) * 4 % SHARED as u64), SHARED);
        }
        assert_eq!(copies.copies.len(), MOST);
        for thread in 0..1024 {
            copies.commit(thread, CopyKind::Lane);
            copies.wait(thread, CopyKind::Lane, 0, false);
        }
        assert!(copies.is_empty());
        copies.start(copy(0, 0), SHARED);
        assert!(copies.conflict(0, 4, false).is_some());
    }
}
