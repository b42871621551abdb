//! Objects of the program that live as long as a graph needs them: `CUuserObject`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::abi::{ERROR_INVALID_VALUE, Outcome};
use crate::host::callback;
use crate::machine::HostCall;

/// An object of the program. Its destructor runs when the last reference is gone, on a thread of
/// its own as with NVIDIA's driver: it may wait for a lock that a thread inside of a driver call
/// holds.
pub(crate) struct UserObject {
    pub(crate) destructor: HostCall,
    /// Gone at the end of the universe, which runs no destructors: the program may have ended
    /// without a release.
    pub(crate) universe: Weak<()>,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if self.universe.strong_count() == 0 {
            return;
        }
        let call = self.destructor;
        let destroy = move || {
            // SAFETY: once for each object; by the contract of `cuUserObjectCreate` both are valid
            // until then.
            let _ = callback::run(|| unsafe { call.run() });
        };
        if std::thread::Builder::new().spawn(destroy).is_err() {
            destroy();
        }
    }
}

/// The references of the program or of one graph, by the number of the object.
#[derive(Clone, Default)]
pub(crate) struct References(BTreeMap<u32, Reference>);

#[derive(Clone)]
struct Reference {
    object: Arc<UserObject>,
    count: u32,
}

impl References {
    /// Returns an object that has a reference here.
    pub(crate) fn object(&self, number: u32) -> Outcome<Arc<UserObject>> {
        let found = self.0.get(&number).ok_or(ERROR_INVALID_VALUE)?;
        Ok(Arc::clone(&found.object))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds references.
    pub(crate) fn retain(&mut self, number: u32, object: Arc<UserObject>, more: u32) -> Outcome {
        let reference = self.0.entry(number).or_insert(Reference { object, count: 0 });
        reference.count = reference.count.checked_add(more).ok_or(ERROR_INVALID_VALUE)?;
        Ok(())
    }

    /// Removes references. More than there are is an error, without an effect; an H100 accepts
    /// them, and what happens then is not documented.
    pub(crate) fn release(&mut self, number: u32, fewer: u32) -> Outcome {
        let reference = self.0.get_mut(&number).ok_or(ERROR_INVALID_VALUE)?;
        reference.count = reference.count.checked_sub(fewer).ok_or(ERROR_INVALID_VALUE)?;
        if reference.count == 0 {
            self.0.remove(&number);
        }
        Ok(())
    }

    /// Adds the references of another graph.
    pub(crate) fn add(&mut self, others: &Self) {
        for (number, other) in &others.0 {
            // A count that does not fit keeps the object as well.
            let _ = self.retain(*number, Arc::clone(&other.object), other.count);
        }
    }
}
