//! Segments of pinned memory that the device still used when the last owner of their stream pool
//! was dropped.

use std::sync::Mutex;

use dmr_core::ResourceResult;
use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_streams::Device;
use dmr_streams::uses::{Patience, RecordedEvent};
use smallvec::SmallVec;

use crate::driver::free_host;

/// Waits for, and frees, pinned memory that was still in use when the last owner of its stream pool
/// was dropped; returns the bytes of its segments. A stream pool that needs another segment frees
/// such memory, too, once the device is done with it. For the end of a process, or of a test that
/// looks for leaks.
///
/// Such memory keeps the CUDA context alive, and nothing else. That of a lost device is forgotten:
/// it cannot be freed before the process ends.
///
/// # Errors
///
/// The first error. What could not be freed is kept: call again.
pub fn reap_orphaned_pinned() -> ResourceResult<u64> {
    ORPHANS.get().reap(Patience::Wait)
}

/// Frees what the device is done with. Does nothing while another thread reaps.
pub(crate) fn try_reap() -> ResourceResult<u64> {
    ORPHANS.get().reap(Patience::Poll)
}

/// Adds a segment, and the events of the uses of its blocks.
pub(crate) fn add(
    address: u64,
    bytes: usize,
    events: SmallVec<[RecordedEvent; 4]>,
    device: &Device,
) {
    let orphan = Orphan { address, bytes, events, device: device.clone() };
    ORPHANS.get().push(orphan);
}

/// Pinned memory of stream pools that were dropped. A forked child has none.
static ORPHANS: PerProcess<Orphans> = PerProcess::new(Orphans::default);

/// A segment whose use table is gone.
struct Orphan {
    address: u64,
    bytes: usize,
    /// The events of its uses that are not known to be done.
    events: SmallVec<[RecordedEvent; 4]>,
    device: Device,
}

#[derive(Default)]
struct Orphans {
    waiting: Mutex<Vec<Orphan>>,
    /// Held while reaping, so that a reap that waits also waits for the memory that another thread
    /// is freeing.
    reaping: Mutex<()>,
}

impl Orphans {
    fn push(&self, orphan: Orphan) {
        lock(&self.waiting).push(orphan);
    }

    fn reap(&self, patience: Patience) -> ResourceResult<u64> {
        let Some(_alone) = patience.lock(&self.reaping) else { return Ok(0) };
        // Not under the lock that dropping takes: this calls the driver, and may wait for it.
        let taken = std::mem::take(&mut *lock(&self.waiting));
        let mut freed = 0;
        let mut outcome = Ok(());
        for mut orphan in taken {
            match orphan.free(patience) {
                Ok(Some(bytes)) => freed += bytes,
                kept => {
                    outcome = outcome.and(kept.map(drop));
                    self.push(orphan);
                }
            }
        }
        outcome.map(|()| freed)
    }
}

impl Orphan {
    /// Frees the memory if its uses are done, and returns its bytes.
    fn free(&mut self, patience: Patience) -> ResourceResult<Option<u64>> {
        match self.is_done(patience) {
            Err(_) if self.device.is_lost() => return Ok(Some(0)),
            Err(error) => return Err(error),
            Ok(false) => return Ok(None),
            Ok(true) => {}
        }
        free_host(&self.device, self.address)?;
        Ok(Some(self.bytes as u64))
    }

    fn is_done(&mut self, patience: Patience) -> ResourceResult<bool> {
        let events = &mut self.events;
        self.device.relaxed(|relaxed| {
            while let Some(event) = events.last() {
                match patience {
                    Patience::Wait => event.synchronize(relaxed)?,
                    Patience::Poll if !event.query(relaxed)? => return Ok(false),
                    Patience::Poll => {}
                }
                events.pop();
            }
            Ok(true)
        })
    }
}
