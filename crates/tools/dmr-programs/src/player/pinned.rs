//! Steps about pinned memory: allocate, copy to and from the device, read and write on the host,
//! drop.

use std::sync::Arc;

use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult};
use dmr_pinned::PinnedPool;
use dmr_streams::{DeviceContext, StreamLease, StreamPool};

use super::state::{Facts, Footprint, Pinned, slot_of};
use super::{Played, Player};
use crate::conflicts::Conflict;
use crate::failure::{Failure, FailureKind};

/// The stack of a program and its streams, as buffers need them.
struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// An operation of a buffer, with the error of the resource.
fn of_resource<T>(outcome: Result<T, BufferError>) -> Result<T, ResourceError> {
    outcome.map_err(|error| match error {
        BufferError::Resource(error) => error,
        other => unreachable!("equal lengths, and no prepared launch: {other}"),
    })
}

impl Player {
    /// Allocates pinned memory and its counterpart.
    pub(super) fn pin(&self, at: usize, name: u32, bytes: usize, stream: usize) -> Played {
        let state = self.state();
        let is_taken = state.pinned.contains_key(&name);
        let Some(lease) = state.lease(stream).filter(|_| !is_taken) else { return Ok(()) };
        drop(state);
        let stream = Some(slot_of(&lease));
        self.touches(at, Footprint { stream, ..Footprint::default() });
        let context = Context {
            resource: Arc::clone(&self.built.resource),
            streams: Arc::clone(self.rig.streams()),
        };
        let words = bytes / 4;
        let device = self.library(at, || {
            let tag = AllocTag::new("counterpart");
            of_resource(DeviceBuffer::<u32>::uninit_tagged(&context, lease.id(), words, tag))
        })?;
        let device = match device {
            Ok(device) => device,
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. }) => {
                return Ok(());
            }
            Err(error) => return self.expect_or_retired(at, "allocate", &lease, &error),
        };
        let mut facts = Facts {
            ptr: device.block().map_or(0, |block| block.ptr()),
            bytes: device.size_in_bytes() as u64,
            ..Facts::default()
        };
        self.report_allocated(&mut facts);
        let zeroed = || of_resource(PinnedBuffer::<u32>::zeroed(&context, lease.id(), words));
        let host = self.library(at, zeroed);
        match host {
            Ok(Ok(host)) => {
                let pinned = Pinned { host, device, on_host: Some(0), on_device: None, facts };
                self.state().pinned.insert(name, pinned);
                Ok(())
            }
            Ok(Err(error)) => {
                self.report_freed(&mut facts);
                self.library(at, || {
                    drop(device);
                    ResourceResult::Ok(())
                })?
                .unwrap_or_default();
                self.expect_or_retired(at, "allocate_pinned", &lease, &error)
            }
            Err(failure) => Err(failure),
        }
    }

    pub(super) fn fill_counterpart(&self, at: usize, name: u32, stream: usize) -> Played {
        let pattern = self.state().random.next_u64() as u32;
        self.with_pinned(at, name, stream, |pinned, lease| {
            pinned.on_device = None;
            of_resource(pinned.device.fill(pattern, lease.id()))?;
            pinned.on_device = Some(pattern);
            Ok(())
        })
    }

    pub(super) fn copy_to_host(&self, at: usize, name: u32, stream: usize) -> Played {
        self.with_pinned(at, name, stream, |pinned, lease| {
            // Memory that was never written is not copied.
            let Some(pattern) = pinned.on_device else { return Ok(()) };
            pinned.on_host = None;
            of_resource(pinned.host.copy_from_device(&pinned.device, lease.id()))?;
            pinned.on_host = Some(pattern);
            self.count(Conflict::PinnedCopied);
            Ok(())
        })
    }

    pub(super) fn copy_to_device(&self, at: usize, name: u32, stream: usize) -> Played {
        self.with_pinned(at, name, stream, |pinned, lease| {
            let pattern = pinned.on_host;
            pinned.on_device = None;
            of_resource(pinned.host.copy_to_device(&mut pinned.device, lease.id()))?;
            pinned.on_device = pattern;
            self.count(Conflict::PinnedCopied);
            Ok(())
        })
    }

    /// Works with pinned memory on a stream. No other thread can use the memory meanwhile, as the
    /// borrow checker would enforce.
    fn with_pinned(
        &self,
        at: usize,
        name: u32,
        stream: usize,
        work: impl FnOnce(&mut Pinned, &StreamLease) -> ResourceResult<()>,
    ) -> Played {
        let mut state = self.state();
        let Some(lease) = state.lease(stream) else { return Ok(()) };
        if state.captures.contains_key(&slot_of(&lease)) {
            return Ok(());
        }
        let Some(mut pinned) = state.pinned.remove(&name) else { return Ok(()) };
        drop(state);
        let stream = Some(slot_of(&lease));
        self.touches(at, Footprint { stream, ..Footprint::default() });
        let worked = self.library(at, || work(&mut pinned, &lease));
        let is_retired = self.is_retired_in_use(&lease);
        self.state().pinned.insert(name, pinned);
        match worked? {
            Ok(()) if is_retired => {
                let text = "a copy on it was in progress";
                Err(Failure::new(FailureKind::RetiredInUse, at, text))
            }
            Ok(()) => Ok(()),
            Err(error) => self.expect_or_retired(at, "a pinned buffer", &lease, &error),
        }
    }

    /// Reads on the host, and checks for the bytes of the last copy.
    pub(super) fn host_reads(&self, at: usize, name: u32) -> Played {
        let Some(mut pinned) = self.state().pinned.remove(&name) else { return Ok(()) };
        self.touches(at, Footprint::default());
        let wanted = pinned.on_host;
        let read = self.library(at, || {
            let words = of_resource(pinned.host.as_slice())?;
            let is_wrong = |word: &&u32| wanted.is_some_and(|wanted| wanted != **word);
            Ok(words.iter().find(is_wrong).copied())
        });
        self.state().pinned.insert(name, pinned);
        match read? {
            Ok(None) => {
                self.count(Conflict::PinnedRead);
                Ok(())
            }
            Ok(Some(found)) => {
                let text = format!("{found:#x} instead of {wanted:x?}");
                Err(Failure::new(FailureKind::WrongWord, at, text))
            }
            Err(error) => self.expect_injected(at, "as_slice", &error),
        }
    }

    pub(super) fn host_writes(&self, at: usize, name: u32) -> Played {
        let mut state = self.state();
        let Some(mut pinned) = state.pinned.remove(&name) else { return Ok(()) };
        let pattern = state.random.next_u64() as u32;
        drop(state);
        self.touches(at, Footprint::default());
        let written = self.library(at, || {
            let words = of_resource(pinned.host.as_mut_slice())?;
            words.fill(pattern);
            pinned.on_host = Some(pattern);
            Ok(())
        });
        self.state().pinned.insert(name, pinned);
        written?.or_else(|error| self.expect_injected(at, "as_mut_slice", &error))
    }

    /// Drops pinned memory and its counterpart, which may still be in use.
    pub(super) fn unpin(&self, at: usize, name: u32) -> Played {
        let mut state = self.state();
        let home = state.pinned.get(&name).and_then(|pinned| pinned.device.block());
        let home = home.map(|block| block.alloc_stream().slot());
        // The free would be refused, and a destructor returns no error.
        if home.is_some_and(|slot| state.captures.contains_key(&slot)) {
            return Ok(());
        }
        let Some(Pinned { host, device, mut facts, .. }) = state.pinned.remove(&name) else {
            return Ok(());
        };
        drop(state);
        self.touches(at, Footprint { stream: home, ..Footprint::default() });
        self.report_freed(&mut facts);
        self.count(Conflict::PinnedRetired);
        let dropped = self.library(at, || {
            drop(host);
            drop(device);
            ResourceResult::Ok(())
        })?;
        dropped.map_err(|error| self.unexpected(at, "drop", &error))
    }

    pub(super) fn reap_pinned(&self, at: usize) -> Played {
        let reaped = self.library(at, || PinnedPool::of(self.rig.streams()).try_reap())?;
        reaped.map(drop).or_else(|error| self.expect_injected(at, "try_reap_pinned", &error))
    }
}
