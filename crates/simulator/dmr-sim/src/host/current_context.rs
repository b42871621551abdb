//! Each thread's stack of contexts.

use std::cell::{Cell, RefCell};

use crate::abi::Handle;

thread_local! {
    /// The top of the thread's stack of contexts, and the contexts below it.
    static CURRENT_CONTEXT: Cell<Handle> = const { Cell::new(0) };
    static CONTEXTS_BELOW: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's current context: a handle, 0 for none.
pub(crate) fn current_context() -> Handle {
    CURRENT_CONTEXT.get()
}

/// Replaces the thread's current context; 0 pops it.
pub(crate) fn set_current_context(context: Handle) {
    match context {
        0 => {
            pop_context();
        }
        context => CURRENT_CONTEXT.set(context),
    }
}

/// Makes the context current, above the one that was current.
pub(crate) fn push_context(context: Handle) {
    let below = CURRENT_CONTEXT.replace(context);
    if below != 0 {
        // A thread whose thread-locals are destroyed has one context only.
        let _ = CONTEXTS_BELOW.try_with(|contexts| contexts.borrow_mut().push(below));
    }
}

/// Removes and returns the current context; the one below becomes current.
pub(crate) fn pop_context() -> Handle {
    let below = CONTEXTS_BELOW.try_with(|contexts| contexts.borrow_mut().pop());
    CURRENT_CONTEXT.replace(below.ok().flatten().unwrap_or(0))
}
