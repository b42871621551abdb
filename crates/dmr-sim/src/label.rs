//! Where an operation was submitted: the thread's label, or its call stack.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static LABELS: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
}

/// Labels every operation that this thread submits until the guard is dropped. Labels nest; the
/// innermost counts. Reports show it.
///
/// ```
/// let _label = dmr_sim::label("loading the probe side");
/// ```
pub fn label(text: impl Into<String>) -> LabelGuard {
    LABELS.with_borrow_mut(|labels| labels.push(text.into().into()));
    LabelGuard { _not_send: std::marker::PhantomData }
}

/// Ends a [`label`] when dropped.
#[derive(Debug)]
#[must_use = "the label ends when the guard is dropped"]
pub struct LabelGuard {
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for LabelGuard {
    fn drop(&mut self) {
        // A thread that is being torn down has no labels left.
        let _ = LABELS.try_with(|labels| labels.borrow_mut().pop());
    }
}

/// The thread's innermost label.
pub(crate) fn current() -> Option<Arc<str>> {
    LABELS.try_with(|labels| labels.borrow().last().cloned()).ok().flatten()
}

/// A call stack, made readable only when a report shows it.
#[derive(Debug)]
pub(crate) struct CallStack(Backtrace);

impl CallStack {
    pub(crate) fn capture() -> Self {
        Self(Backtrace::force_capture())
    }

    /// The innermost frame outside of the simulator, the bindings and the standard library.
    pub(crate) fn call_site(&self) -> Option<String> {
        let text = self.0.to_string();
        let mut function = "";
        for line in text.lines().map(str::trim) {
            match line.strip_prefix("at ") {
                None => function = line.split_once(": ").map_or(line, |(_, name)| name),
                Some(place) if is_users(function, place) => return Some(place.to_owned()),
                Some(_) => {}
            }
        }
        None
    }
}

fn is_users(function: &str, place: &str) -> bool {
    let inside = |prefix: &str| function.trim_start_matches('<').starts_with(prefix);
    !(inside("dmr_sim::")
        || inside("cudarc::")
        || inside("std::")
        || inside("core::")
        || function.starts_with("cu")
        || place.starts_with("/rustc/"))
}
