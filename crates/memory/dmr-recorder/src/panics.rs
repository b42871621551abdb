//! A recording at a panic.

use std::panic;
use std::sync::Once;

use crate::gate;
use crate::recorder::{Heaps, write_file};

/// Adds a panic hook before the program's, once for the process. It does nothing while the recorder
/// is off.
pub(crate) fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        let program = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if gate::is_on() {
                // The thread may hold a lock of a heap.
                write_file("panic", Heaps::LeftOut);
            }
            program(info);
        }));
    });
}
