//! Scopes: the statistics of what one thread does between a push and its pop.

use std::collections::HashMap;
use std::marker::PhantomData;

use dmr_core::AllocTag;

use super::counts::{Counts, Event};
use super::report::{ScopeCounter, ScopeStatistics};
use crate::thread_number::thread_number;

/// Counts what the calling thread does through one resource, from
/// [`push`](super::StatisticsResource::push) until it is popped or dropped.
///
/// Scopes nest: a scope counts what the scopes inside it count. If a scope is popped before those
/// inside it, these end with it and return nothing.
///
/// A scope stays on its thread: calls of other threads are not counted.
#[derive(Debug)]
#[must_use = "a scope that is dropped at once counts nothing"]
pub struct StatisticsScope<'a> {
    counts: &'a Counts,
    tag: AllocTag,
    /// `None` in a forked child, where nothing is counted.
    number: Option<u64>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<'a> StatisticsScope<'a> {
    pub(super) fn open(counts: &'a Counts, tag: AllocTag) -> Self {
        let number = counts.own().map(|mut cell| cell.scopes.push());
        Self { counts, tag, number, stays_on_its_thread: PhantomData }
    }

    /// Ends the scope and returns what it counted.
    #[must_use = "to end a scope without its counts, drop it"]
    pub fn pop(self) -> ScopeStatistics {
        self.read(OpenScopes::pop)
    }

    /// Returns what the scope has counted so far.
    #[must_use]
    pub fn so_far(&self) -> ScopeStatistics {
        self.read(|scopes, number| scopes.peek(number))
    }

    /// Returns what `read` returns, or zeros if the scope has ended with one around it.
    fn read(
        &self,
        read: impl FnOnce(&mut OpenScopes, u64) -> Option<ScopeCounters>,
    ) -> ScopeStatistics {
        let counted = self.number.zip(self.counts.own());
        let counted = counted.and_then(|(number, mut cell)| read(&mut cell.scopes, number));
        ScopeStatistics::new(self.tag, counted.unwrap_or_default())
    }
}

impl Drop for StatisticsScope<'_> {
    fn drop(&mut self) {
        let _ = self.read(OpenScopes::pop);
    }
}

/// The counters of a scope.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScopeCounters {
    pub(super) bytes: ScopeCounter,
    pub(super) blocks: ScopeCounter,
    pub(super) failures: u64,
}

impl ScopeCounters {
    fn count(&mut self, event: Event) {
        match event {
            Event::Allocated(bytes) => {
                self.bytes.add(bytes);
                self.blocks.add(1);
            }
            Event::Grown(bytes) => self.bytes.add(bytes),
            Event::Freed(bytes) => {
                self.bytes.subtract(bytes);
                self.blocks.subtract(1);
            }
            Event::Failed => self.failures += 1,
        }
    }

    /// Returns the number of blocks freed: those that were allocated and are not there any more.
    pub(super) fn frees(&self) -> u64 {
        self.blocks.total.wrapping_sub(self.blocks.current as u64)
    }
}

/// The open scopes of the threads of one cell.
#[derive(Debug, Default)]
pub(super) struct OpenScopes {
    /// The scopes of each thread that has any, the innermost last.
    by_thread: HashMap<u64, Vec<OpenScope>>,
    pushed: u64,
}

#[derive(Debug)]
struct OpenScope {
    number: u64,
    counters: ScopeCounters,
}

impl OpenScopes {
    /// Counts a call of the calling thread.
    #[inline]
    pub(super) fn count(&mut self, event: Event) {
        if !self.by_thread.is_empty() {
            self.count_in_scopes(event);
        }
    }

    #[inline(never)]
    fn count_in_scopes(&mut self, event: Event) {
        let scopes = self.by_thread.get_mut(&thread_number());
        scopes.into_iter().flatten().for_each(|scope| scope.counters.count(event));
    }

    /// Opens a scope of the calling thread and returns its number.
    fn push(&mut self) -> u64 {
        self.pushed += 1;
        let scope = OpenScope { number: self.pushed, counters: ScopeCounters::default() };
        self.by_thread.entry(thread_number()).or_default().push(scope);
        self.pushed
    }

    /// Closes a scope of the calling thread, and those inside it.
    fn pop(&mut self, number: u64) -> Option<ScopeCounters> {
        let counted = self.peek(number)?;
        let scopes = self.by_thread.get_mut(&thread_number())?;
        scopes.retain(|scope| scope.number < number);
        if scopes.is_empty() {
            self.by_thread.remove(&thread_number());
        }
        Some(counted)
    }

    /// Returns what a scope of the calling thread has counted.
    fn peek(&self, number: u64) -> Option<ScopeCounters> {
        let scopes = self.by_thread.get(&thread_number())?;
        Some(scopes.iter().find(|scope| scope.number == number)?.counters)
    }
}
