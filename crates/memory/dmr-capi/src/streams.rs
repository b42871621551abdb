//! The streams of the program, by handle: adopted when they are first used, kept until the program
//! retires them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dmr::dmr_core::StreamId;
use dmr::dmr_core::sync::lock;
use dmr::dmr_streams::{StreamLease, StreamPool};

use crate::status::{Failure, Outcome, Status};
use crate::{AddressMap, driver};

/// `CU_STREAM_LEGACY`, which the null handle means as well.
const LEGACY: usize = 1;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// The time that a retirement waits for calls of other threads that use the stream.
const PATIENCE: Duration = Duration::from_secs(1);

/// A `CUstream` of the program, by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) fn new(stream: *mut std::ffi::c_void) -> Self {
        match stream.addr() {
            // One stream, which has two handles.
            LEGACY => Self(0),
            address => Self(address),
        }
    }

    /// Returns the handle as the program has passed it; null for the legacy default stream.
    pub(crate) fn raw(self) -> *mut std::ffi::c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    fn is_legacy(self) -> bool {
        self.0 == 0
    }

    fn refuse_per_thread(self) -> Outcome<()> {
        if self.0 != PER_THREAD {
            return Ok(());
        }
        Err(Failure::new(
            Status::StreamMisuse,
            "the per-thread default stream is a different stream on each thread: make a stream \
             with `cuStreamCreate`, submit the work to it, and pass it",
        ))
    }
}

impl std::fmt::Display for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_legacy() {
            true => f.write_str("the legacy default stream"),
            false => write!(f, "stream {:#x}", self.0),
        }
    }
}

/// The adopted streams of a runtime.
#[derive(Default)]
pub(crate) struct Streams {
    adopted: AddressMap<Handle, Arc<Adopted>>,
    /// Held while a stream is adopted or retired, and by no other call: so two threads that use a
    /// new stream at once adopt it once.
    changing: Mutex<()>,
}

struct Adopted {
    lease: StreamLease,
    /// The driver's number of the stream; `None` for the legacy default stream, which is never
    /// destroyed, and if the driver has none.
    number: Option<u64>,
}

impl Adopted {
    /// Returns whether the handle is of another stream by now: the one that was adopted was
    /// destroyed.
    fn is_other_stream(&self, handle: Handle) -> bool {
        // SAFETY: the handle is of a stream that was not destroyed, as each function that takes
        // one requires.
        let now = || unsafe { driver::id_of_stream(handle.raw()) };
        self.number.is_some_and(|number| now().is_some_and(|now| now != number))
    }
}

impl Streams {
    /// Returns the id of a stream, which is adopted now if it is new.
    ///
    /// The handle must be of a stream that was not destroyed.
    pub(crate) fn id(&self, pool: &Arc<StreamPool>, handle: Handle) -> Outcome<StreamId> {
        handle.refuse_per_thread()?;
        if let Some(known) = self.known(handle) {
            return checked(&known, handle);
        }
        let _changing = lock(&self.changing);
        if let Some(known) = self.known(handle) {
            return checked(&known, handle);
        }
        let adopted = match handle.is_legacy() {
            true => Adopted { lease: pool.adopt_legacy()?, number: None },
            false => {
                // SAFETY: the stream was not destroyed, as each function that takes one requires;
                // nor is it before it is retired, or the runtime is destroyed, which retires it.
                let lease = unsafe { pool.adopt_raw(handle.raw(), ()) };
                let lease = lease.map_err(|error| Failure::from(error).about(handle))?;
                // SAFETY: as above.
                Adopted { lease, number: unsafe { driver::id_of_stream(handle.raw()) } }
            }
        };
        let id = adopted.lease.id();
        self.adopted.insert(handle, Arc::new(adopted));
        Ok(id)
    }

    /// Retires a stream: no later call touches it. A stream that was never used is no error.
    pub(crate) fn retire(&self, pool: &Arc<StreamPool>, handle: Handle) -> Outcome<()> {
        handle.refuse_per_thread()?;
        let _changing = lock(&self.changing);
        let Some(known) = self.known(handle) else { return Ok(()) };
        if known.is_other_stream(handle) {
            // The retirement records an event on the handle, so on the other stream, which does not
            // come after the work of the stream that was destroyed.
            pool.device().synchronize().map_err(|error| Failure::from(error).about(handle))?;
        }
        pool.retire_stream_timeout(&known.lease, PATIENCE)
            .map_err(|error| Failure::from(error).about(handle))?;
        self.adopted.remove(&handle);
        Ok(())
    }

    /// Retires all streams. Returns the first error; the other streams are retired all the same.
    pub(crate) fn retire_all(&self, pool: &Arc<StreamPool>) -> Outcome<()> {
        let handles: Vec<Handle> = self.adopted.iter().map(|adopted| *adopted.key()).collect();
        let mut outcome = Ok(());
        for handle in handles {
            outcome = outcome.and(self.retire(pool, handle));
        }
        outcome
    }

    fn known(&self, handle: Handle) -> Option<Arc<Adopted>> {
        self.adopted.get(&handle).map(|known| Arc::clone(&known))
    }
}

fn checked(known: &Adopted, handle: Handle) -> Outcome<StreamId> {
    if known.is_other_stream(handle) {
        let text = format!(
            "{handle} is another stream than before: the first one was destroyed without \
             `dmr_stream_retire`; call that for this handle now, and before each destruction"
        );
        return Err(Failure::new(Status::StreamMisuse, text));
    }
    Ok(known.lease.id())
}

#[cfg(test)]
mod tests {
    use dmr::dmr_streams::{Device, StreamPoolConfig};
    use dmr_sim::Universe;

    use super::*;

    /// The simulated driver uses no handle again, so the number of the adopted stream is changed
    /// instead.
    #[test]
    fn c4_a_handle_of_another_stream_is_refused_until_it_is_retired() {
        let universe = Universe::new().unwrap();
        let device = Device::open(universe.ordinal(0)).unwrap();
        let stream = device.context().new_stream().unwrap();
        let pool = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
        let streams = Streams::default();
        let handle = Handle::new(stream.cu_stream().cast());
        let first = streams.id(&pool, handle).unwrap();
        assert_eq!(streams.id(&pool, handle).unwrap(), first);
        streams.adopted.alter(&handle, |_, known| {
            let known = Arc::into_inner(known).unwrap();
            assert!(known.number.is_some(), "the driver numbers streams");
            Arc::new(Adopted { number: known.number.map(|number| number + 1), ..known })
        });
        let refused = streams.id(&pool, handle).unwrap_err();
        assert_eq!(refused.status, Status::StreamMisuse);
        assert!(refused.text.contains("dmr_stream_retire"), "{}", refused.text);
        let synchronised = universe.calls().count("cuCtxSynchronize");
        streams.retire(&pool, handle).unwrap();
        assert_eq!(universe.calls().count("cuCtxSynchronize"), synchronised + 1);
        let again = streams.id(&pool, handle).unwrap();
        assert_ne!(again, first);
        streams.retire_all(&pool).unwrap();
        assert!(streams.adopted.is_empty());
    }
}
