//! The backends that a runtime can allocate from.

use std::fmt;
use std::sync::Arc;

#[cfg(any(feature = "direct", feature = "pool"))]
use dmr_core::MemoryObserver;
#[cfg(feature = "direct")]
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::StreamPool;
#[cfg(feature = "direct")]
use dmr_streams::Tracked;

use crate::layers::Handles;
use crate::{RuntimeError, SharedResource};

/// The backend of a runtime: the resource below all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// A memory pool of the driver, with use tracking: one driver call per allocation and per free.
    /// Needs feature `async`.
    Async,
    /// `cuMemAlloc` and `cuMemFree`, one call each per block, so that a memory checker sees each
    /// block with its exact size. It does not track uses: the program orders work on several
    /// streams itself, and a strict launch returns an error. Needs feature `direct`.
    Direct,
    /// [`Direct`](Self::Direct) with use tracking, in [`Tracked`](dmr_streams::Tracked): for
    /// programs of several streams under a memory checker. Needs feature `direct`.
    DirectTracked,
    /// A pool, with use tracking: no driver call for an allocation or a free that finds what it
    /// needs. It maps pages itself where the device has virtual memory, and carves up blocks of the
    /// async backend where it has none; the resource's `Debug` says which. Needs feature `pool`.
    Pool,
}

/// The builder's settings for its backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    #[cfg(feature = "pool")]
    pub(crate) pool: Option<dmr_pool::PoolConfig>,
    #[cfg(feature = "pool")]
    pub(crate) observer: crate::pooled::ObserverChoice,
}

impl Backend {
    /// The environment variable that chooses a backend where the builder does not: exactly its
    /// [`name`](Self::name). An empty value counts as not set.
    pub const VARIABLE: &'static str = "DMR_BACKEND";

    /// Returns the backends that are compiled into this program, the default first.
    #[must_use]
    pub const fn available() -> &'static [Self] {
        &[
            #[cfg(feature = "pool")]
            Self::Pool,
            #[cfg(feature = "async")]
            Self::Async,
            #[cfg(feature = "direct")]
            Self::Direct,
            #[cfg(feature = "direct")]
            Self::DirectTracked,
        ]
    }

    /// Returns its name, as `DMR_BACKEND` has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Direct => "direct",
            Self::DirectTracked => "direct-tracked",
            Self::Pool => "pool",
        }
    }

    /// Returns whether its resource tracks uses.
    #[must_use]
    pub const fn tracks_uses(self) -> bool {
        match self {
            Self::Async | Self::DirectTracked | Self::Pool => true,
            Self::Direct => false,
        }
    }

    /// The builder's choice, else the environment's, else the default.
    pub(crate) fn choose(
        builder: Option<Self>,
        environment: Option<&str>,
    ) -> Result<Self, RuntimeError> {
        let available = Self::available();
        let unknown =
            |name: &str| RuntimeError::UnknownBackend { name: name.to_owned(), available };
        let named = |name: &str| {
            let found = available.iter().find(|known| known.name() == name);
            found.copied().ok_or_else(|| unknown(name))
        };
        match (builder, environment.filter(|name| !name.is_empty())) {
            _ if available.is_empty() => Err(RuntimeError::NoBackend),
            (Some(backend), _) => named(backend.name()),
            (None, Some(name)) => named(name),
            (None, None) => available.first().copied().ok_or(RuntimeError::NoBackend),
        }
    }

    /// Makes the resource that takes this backend's memory from the driver.
    #[allow(unused_variables, reason = "what is used depends on the features")]
    pub(crate) fn base(
        self,
        streams: &Arc<StreamPool>,
        settings: &Settings,
    ) -> Result<SharedResource, RuntimeError> {
        let streams = Arc::clone(streams);
        match self {
            #[cfg(feature = "pool")]
            Self::Pool => crate::pooled::upstream(streams, settings),
            #[cfg(feature = "async")]
            Self::Async => async_resource(streams),
            #[cfg(feature = "direct")]
            Self::Direct => Ok(Arc::new(announced_direct_resource(streams))),
            #[cfg(feature = "direct")]
            Self::DirectTracked => {
                let direct = announced_direct_resource(Arc::clone(&streams));
                Ok(Arc::new(Tracked::new(direct, streams)?))
            }
            // `choose` returns only backends that are compiled in.
            #[allow(unreachable_patterns, reason = "with all features there is none left")]
            _ => {
                drop(streams);
                Err(RuntimeError::NoBackend)
            }
        }
    }

    /// Puts the pool over its [`base`](Self::base); returns the base of every other backend as it
    /// is.
    pub(crate) fn over(
        self,
        base: SharedResource,
        streams: &Arc<StreamPool>,
        settings: &Settings,
        handles: &mut Handles,
    ) -> Result<SharedResource, RuntimeError> {
        match self {
            #[cfg(feature = "pool")]
            Self::Pool => {
                let pool = Arc::new(crate::pooled::over(base, streams, settings, handles)?);
                handles.pool = Some(Arc::clone(&pool));
                let heap: Arc<dyn dmr_recorder::HeapSource> = pool.clone();
                dmr_recorder::register_heap(Arc::downgrade(&heap));
                Ok(pool)
            }
            _ => {
                let _ = (streams, settings, handles);
                Ok(base)
            }
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(feature = "async")]
pub(crate) fn async_resource(streams: Arc<StreamPool>) -> Result<SharedResource, RuntimeError> {
    let config = dmr_cuda_async::AsyncConfig::new();
    Ok(Arc::new(dmr_cuda_async::AsyncCudaResource::new(streams, config)?))
}

/// Makes the direct backend, with an observer that announces its blocks to an attached tool.
#[cfg(feature = "direct")]
fn announced_direct_resource(streams: Arc<StreamPool>) -> DirectCudaResource {
    let observer = attached_tool(&streams);
    let direct = DirectCudaResource::new(streams);
    match observer {
        Some(observer) => direct.with_observer(observer),
        None => direct,
    }
}

/// Returns an observer that announces blocks to the attached tool; `None` without one, and on the
/// simulated driver, which has an observer of its own and whose memory such a tool cannot check.
#[cfg(any(feature = "direct", feature = "pool"))]
pub(crate) fn attached_tool(streams: &StreamPool) -> Option<Arc<dyn MemoryObserver>> {
    #[cfg(feature = "nvtx")]
    if streams.device().memory_observer().is_none() {
        return dmr_nvtx::memory_observer();
    }
    let _ = streams;
    None
}

#[cfg(all(test, feature = "direct"))]
mod tests {
    use super::*;

    #[test]
    fn the_builder_outranks_the_environment_and_that_the_default() {
        let direct = Ok(Backend::Direct);
        assert_eq!(Backend::choose(Some(Backend::Direct), Some("no-such")), direct);
        assert_eq!(Backend::choose(None, Some("direct")), direct);
        assert_eq!(Backend::choose(None, Some("")), Ok(Backend::available()[0]));
        assert_eq!(Backend::choose(None, None), Ok(Backend::available()[0]));
    }

    #[test]
    fn the_default_is_the_pool_else_the_async_backend_else_the_direct_one() {
        let default = match (cfg!(feature = "pool"), cfg!(feature = "async")) {
            (true, _) => Backend::Pool,
            (false, true) => Backend::Async,
            (false, false) => Backend::Direct,
        };
        assert_eq!(Backend::choose(None, None), Ok(default));
    }

    #[test]
    fn a_backend_that_is_not_there_is_an_error_that_lists_what_is() {
        let error = Backend::choose(None, Some("no-such")).unwrap_err().to_string();
        assert!(error.starts_with("no backend \"no-such\" in this program; it has "), "{error}");
        for backend in Backend::available() {
            assert!(error.contains(backend.name()), "{error}");
        }
    }
}

#[cfg(all(test, not(feature = "direct"), not(feature = "async")))]
mod tests_without_a_backend {
    use super::*;

    #[test]
    fn without_any_backend_the_error_asks_for_a_resource() {
        let error = Backend::choose(None, Some("direct")).unwrap_err();
        assert_eq!(error, RuntimeError::NoBackend);
        assert!(error.to_string().contains("with_resource"));
    }
}
