//! On whose behalf memory is allocated: a query id for each thread.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    // Without a destructor, so that it can be read until the thread is gone.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Runs `body` with `id` as the query of this thread, and restores the one before, also when
/// `body` panics. Threads that `body` starts have no query of their own accord.
///
/// ```
/// use dmr_adaptors::logging::{current_query, with_query};
///
/// let inner = with_query(1, || with_query(2, current_query));
/// assert_eq!((inner, current_query()), (2, 0));
/// ```
pub fn with_query<T>(id: u64, body: impl FnOnce() -> T) -> T {
    let _scope = QueryScope::enter(id);
    body()
}

/// The query of this thread; 0 outside every scope.
#[must_use]
pub fn current_query() -> u64 {
    CURRENT.get()
}

/// From [`enter`](Self::enter) until it is dropped, this thread works for a query.
///
/// Scopes nest: drop them in the reverse order, as blocks do by themselves.
#[derive(Debug)]
#[must_use = "the scope ends where this is dropped"]
pub struct QueryScope {
    previous: u64,
    /// It belongs to the thread that entered.
    not_send: PhantomData<*const ()>,
}

impl QueryScope {
    /// Makes `id` the query of this thread. 0 stands for none.
    pub fn enter(id: u64) -> Self {
        Self { previous: CURRENT.replace(id), not_send: PhantomData }
    }
}

impl Drop for QueryScope {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}
