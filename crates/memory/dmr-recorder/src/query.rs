//! Query ids: which query of the program a thread works for.

use std::marker::PhantomData;

use crate::thread::replace_query;

/// Runs `body` with `id` as the query of this thread, and restores the query before, also when
/// `body` panics. Threads that `body` starts have no query.
///
/// ```
/// use dmr_recorder::query::{current_query, with_query};
///
/// let inner = with_query(1, || with_query(2, current_query));
/// assert_eq!((inner, current_query()), (2, 0));
/// ```
pub fn with_query<T>(id: u64, body: impl FnOnce() -> T) -> T {
    let _scope = QueryScope::enter(id);
    body()
}

pub use crate::thread::current_query;

/// The scope of a query: from [`enter`](Self::enter) until it is dropped, this thread works for the
/// query.
///
/// Scopes nest: drop them in the reverse order, as the end of a block of code does.
#[derive(Debug)]
#[must_use = "the scope ends where this is dropped"]
pub struct QueryScope {
    previous: u64,
    /// The scope stays on the thread that entered it.
    not_send: PhantomData<*const ()>,
}

impl QueryScope {
    /// Makes `id` the query of this thread; 0 for none.
    pub fn enter(id: u64) -> Self {
        Self { previous: replace_query(id), not_send: PhantomData }
    }
}

impl Drop for QueryScope {
    fn drop(&mut self) {
        replace_query(self.previous);
    }
}
