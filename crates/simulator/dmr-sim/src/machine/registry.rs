//! The universes of this process, by id and by CUDA ordinal.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock, Weak};

use crate::abi::*;
use crate::host::{
    fork,
    sync::{read, write},
};
use crate::machine::{Config, Machine, Shared};

#[derive(Default)]
struct Registry {
    by_id: HashMap<u32, Arc<Shared>>,
    by_ordinal: Vec<Ordinal>,
    last_id: u32,
}

/// The state of a CUDA ordinal.
#[derive(Clone, Default)]
struct Ordinal {
    universe: Option<Arc<Shared>>,
    /// The number of retained primary contexts. They are released by ordinal, also after their
    /// universe has ended: until then no other universe gets the ordinal, because its context would
    /// be released instead.
    retained: u32,
}

impl Ordinal {
    fn is_free(&self) -> bool {
        self.universe.is_none() && self.retained == 0
    }
}

static REGISTRY: RwLock<Option<Registry>> = RwLock::new(None);

thread_local! {
    /// The universe of this thread's last call: most calls are to the same one.
    /// Weak, so that an idle thread does not keep an ended universe's memory.
    static LAST: RefCell<Weak<Shared>> = const { RefCell::new(Weak::new()) };
}

/// Adds a universe, at the lowest free ordinals.
pub(crate) fn register(config: Config) -> Arc<Shared> {
    let mut registry = write(&REGISTRY);
    let registry = registry.get_or_insert_default();
    // Ids are 24 bits in handles; 0 is never used. They repeat after 16 million universes.
    let after = |id: u32| id % 0xff_ffff + 1;
    let mut id = after(registry.last_id);
    while registry.by_id.contains_key(&id) {
        id = after(id);
    }
    registry.last_id = id;
    let free = (0..).filter(|&o| registry.by_ordinal.get(o).is_none_or(Ordinal::is_free));
    let ordinals: Vec<usize> = free.take(config.devices).collect();
    let shared = Arc::new(Shared::new(id, ordinals.clone(), Machine::new(config)));
    registry.by_id.insert(id, shared.clone());
    for ordinal in ordinals {
        if registry.by_ordinal.len() <= ordinal {
            registry.by_ordinal.resize(ordinal + 1, Ordinal::default());
        }
        registry.by_ordinal[ordinal].universe = Some(shared.clone());
    }
    shared
}

/// Ends a universe: its handles and ordinals are refused from now on. An ordinal becomes free when
/// its primary context has been released as often as it was retained.
pub(crate) fn unregister(shared: &Shared) {
    shared.ended.store(true, Ordering::Release);
    if fork::is_forked_child() {
        return; // another thread of the parent may have held the lock
    }
    let mut registry = write(&REGISTRY);
    if let Some(registry) = registry.as_mut() {
        registry.by_id.remove(&shared.id);
        for &ordinal in &shared.ordinals {
            registry.by_ordinal[ordinal].universe = None;
        }
    }
}

/// Returns the universe with this id.
pub(crate) fn universe(id: u32) -> Outcome<Arc<Shared>> {
    if let Ok(Some(shared)) = LAST.try_with(|last| last.borrow().upgrade())
        && shared.id == id
        && !shared.ended.load(Ordering::Acquire)
    {
        return Ok(shared);
    }
    let registry = read(&REGISTRY);
    let found = registry.as_ref().and_then(|registry| registry.by_id.get(&id)).cloned();
    let shared = found.ok_or(ERROR_CONTEXT_IS_DESTROYED)?;
    let _ = LAST.try_with(|last| *last.borrow_mut() = Arc::downgrade(&shared));
    Ok(shared)
}

/// Returns the universe that a `CUdevice` belongs to.
pub(crate) fn universe_of_ordinal(device: CUdevice) -> Outcome<Arc<Shared>> {
    let registry = read(&REGISTRY);
    let ordinal = usize::try_from(device).map_err(|_| ERROR_INVALID_DEVICE)?;
    let found = registry.as_ref().and_then(|r| r.by_ordinal.get(ordinal));
    found.and_then(|found| found.universe.clone()).ok_or(ERROR_INVALID_DEVICE)
}

/// Counts a retained primary context.
pub(crate) fn retained(device: CUdevice) {
    count(device, |retained| retained.saturating_add(1));
}

/// Counts a released primary context, of a universe that may have ended.
pub(crate) fn released(device: CUdevice) {
    count(device, |retained| retained.saturating_sub(1));
}

fn count(device: CUdevice, changed: impl FnOnce(u32) -> u32) {
    let mut registry = write(&REGISTRY);
    let by_ordinal = registry.as_mut().map(|registry| &mut registry.by_ordinal);
    let index = usize::try_from(device).ok();
    if let Some(ordinal) = index.and_then(|index| by_ordinal?.get_mut(index)) {
        ordinal.retained = changed(ordinal.retained);
    }
}

/// Returns the number of ordinals: one more than the highest of a live universe.
pub(crate) fn device_count() -> usize {
    let registry = read(&REGISTRY);
    let highest =
        registry.as_ref().and_then(|r| r.by_ordinal.iter().rposition(|o| o.universe.is_some()));
    highest.map_or(0, |highest| highest + 1)
}
