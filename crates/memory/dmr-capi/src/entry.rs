//! The way into each exported function: nothing unwinds out of it, a forked child is refused before
//! anything else, and the text of an error is kept for the thread.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dmr::dmr_core::panics;
use dmr::dmr_streams::CurrentContext;

use crate::RuntimeHandle;
use crate::registry;
use crate::runtime::Runtime;
use crate::status::{Failure, Outcome, Status};

thread_local! {
    /// The text of the last call of this thread that has failed.
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of a function.
pub(crate) fn call(body: impl FnOnce() -> Outcome<()>) -> Status {
    let outcome =
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panicked(payload)));
    match outcome {
        Ok(()) => Status::Ok,
        Err(Failure { status, text }) => {
            // A thread that ends has no text any more.
            let _ = LAST_ERROR.try_with(|last| last.replace(text));
            status
        }
    }
}

/// Runs the body of a function of a runtime. The context that is current on the thread is current
/// again afterwards, also if the body drops what another library owns, and that changes it.
pub(crate) fn call_on(
    handle: *const RuntimeHandle,
    body: impl FnOnce(&Arc<Runtime>) -> Outcome<()>,
) -> Status {
    call(|| {
        registry::refuse_fork()?;
        // Before the runtime, so dropped after it: the last call of a runtime drops its memory.
        let _current = CurrentContext::keep();
        let runtime = registry::find(handle)?;
        body(&runtime)
    })
}

/// Runs the body of a function of a runtime as [`call_on`] does, for one that allocates or frees a
/// block: it makes no context current but that of the runtime's device, and drops nothing of
/// another library. That saves a driver call.
pub(crate) fn call_on_block(
    handle: *const RuntimeHandle,
    body: impl FnOnce(&Arc<Runtime>) -> Outcome<()>,
) -> Status {
    call(|| {
        registry::refuse_fork()?;
        let mut current = CurrentContext::keep();
        let runtime = registry::find(handle)?;
        current.only_changed_by(runtime.gpu().device());
        body(&runtime)
    })
}

/// Passes the text of the thread's last error to `read`.
pub(crate) fn with_last_error<T>(read: impl FnOnce(&str) -> T) -> Option<T> {
    LAST_ERROR.try_with(|last| read(&last.borrow())).ok()
}

fn panicked(payload: Box<dyn Any + Send>) -> Failure {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "without a message".to_owned(),
    };
    // Its drop may panic in turn.
    let _ = panics::catch(|| drop(payload));
    let text = format!("the library panicked, which is a fault of it; please report this: {text}");
    Failure::new(Status::Panic, text)
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    fn last_error() -> String {
        with_last_error(str::to_owned).unwrap_or_default()
    }

    #[test]
    fn a_panic_is_a_status_with_its_text() {
        assert_eq!(call(|| panic!("of a test {}", 7)), Status::Panic);
        assert!(last_error().ends_with("of a test 7"), "{}", last_error());
        assert_eq!(call(|| panic!("literal")), Status::Panic);
        assert!(last_error().ends_with("literal"), "{}", last_error());
        assert_eq!(call(|| panic_any(7)), Status::Panic);
        assert!(last_error().ends_with("without a message"), "{}", last_error());
    }

    #[test]
    fn a_call_that_succeeds_keeps_the_text_of_the_last_error() {
        assert_eq!(call(|| Err(Failure::new(Status::Other, "first"))), Status::Other);
        assert_eq!(call(|| Ok(())), Status::Ok);
        assert_eq!(last_error(), "first");
        let of_another = std::thread::spawn(last_error).join();
        assert_eq!(of_another.ok().as_deref(), Some(""));
    }
}
