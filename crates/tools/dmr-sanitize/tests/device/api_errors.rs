//! Errors of the driver that tests provoke on purpose: memcheck reports each, and the runner
//! demands exactly these.

use std::collections::BTreeMap;
use std::sync::Mutex;

use dmr_core::sync::lock;

use dmr_sanitize::lines;

type Counts = BTreeMap<(&'static str, &'static str), u64>;

static PROVOKED: Mutex<Counts> = Mutex::new(Counts::new());

/// Counts `count` calls of `call` that have failed with `error`, on purpose.
pub(crate) fn provoked(call: &'static str, error: &'static str, count: u64) {
    let mut counts = lock(&PROVOKED);
    *counts.entry((call, error)).or_default() += count;
}

/// Prints a line for each call and error.
pub(crate) fn print() {
    for ((call, error), count) in &*lock(&PROVOKED) {
        lines::expect_api_error(call, error, *count);
    }
}
