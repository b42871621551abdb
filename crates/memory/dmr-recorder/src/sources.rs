//! Registers of what recordings ask for: values that others own, as long as these live.

use std::sync::{Arc, Mutex, Weak};

use dmr_core::sync::lock;

/// A register of sources, which it does not keep alive.
pub(crate) struct Sources<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Default for Sources<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Sources<T> {
    pub(crate) fn register(&self, source: Weak<T>) {
        let mut sources = lock(&self.0);
        sources.retain(|known| known.strong_count() > 0);
        sources.push(source);
    }

    /// Returns those that live, for calls without the lock.
    pub(crate) fn live(&self) -> Vec<Arc<T>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}
