//! Calls of the program's code whose panics are caught: callbacks, sinks, wakers, observers,
//! resources under a drop.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls code of the program; `None` if it panics. What the code has left behind after a panic is
/// its own matter.
///
/// Nothing of the panic leaves this function: its payload is dropped here, and leaked if its drop
/// panics in turn.
pub fn catch<T>(call: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
    None
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic_any(Self);
        }
    }

    struct Catches;

    impl Drop for Catches {
        fn drop(&mut self) {
            assert_eq!(catch(|| panic_any(PanicsWhenDropped)), None::<()>);
        }
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_caught_also_while_a_panic_unwinds() {
        assert_eq!(catch(|| 7), Some(7));
        assert_eq!(catch(|| panic_any(PanicsWhenDropped)), None::<()>);
        let unwound = catch(|| {
            let _catches = Catches;
            panic!("unwinds");
        });
        assert_eq!(unwound, None::<()>);
    }
}
