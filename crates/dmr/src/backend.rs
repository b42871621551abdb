//! Which backend a runtime allocates from.

use std::fmt;
use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_streams::StreamPool;

use crate::RuntimeError;

/// Where a runtime's memory comes from, below everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// `cuMemAlloc` and `cuMemFree`, one call each per block: what a memory checker sees byte by
    /// byte. Needs feature `direct`.
    Direct,
}

impl Backend {
    /// The environment variable that chooses a backend where the builder does not: its
    /// [`name`](Self::name).
    pub const VARIABLE: &'static str = "DMR_BACKEND";

    /// The backends that this program has, the default one first.
    #[must_use]
    pub const fn available() -> &'static [Self] {
        &[
            #[cfg(feature = "direct")]
            Self::Direct,
        ]
    }

    /// As `DMR_BACKEND` names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
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
            let found = available.iter().find(|known| known.name().eq_ignore_ascii_case(name));
            found.copied().ok_or_else(|| unknown(name))
        };
        match (builder, environment.map(str::trim).filter(|name| !name.is_empty())) {
            _ if available.is_empty() => Err(RuntimeError::NoBackend),
            (Some(backend), _) => named(backend.name()),
            (None, Some(name)) => named(name),
            (None, None) => available.first().copied().ok_or(RuntimeError::NoBackend),
        }
    }

    /// A resource of this backend.
    pub(crate) fn build(
        self,
        streams: &Arc<StreamPool>,
    ) -> Result<Arc<dyn DeviceMemoryResource>, RuntimeError> {
        match self {
            #[cfg(feature = "direct")]
            Self::Direct => {
                Ok(Arc::new(dmr_cuda_direct::DirectCudaResource::new(Arc::clone(streams))))
            }
            #[cfg(not(feature = "direct"))]
            Self::Direct => {
                let _ = streams;
                Err(RuntimeError::NoBackend)
            }
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(all(test, feature = "direct"))]
mod tests {
    use super::*;

    #[test]
    fn the_builder_outranks_the_environment_and_that_the_default() {
        let direct = Ok(Backend::Direct);
        assert_eq!(Backend::choose(Some(Backend::Direct), Some("no-such")), direct);
        assert_eq!(Backend::choose(None, Some(" Direct ")), direct);
        assert_eq!(Backend::choose(None, Some("")), Ok(Backend::available()[0]));
        assert_eq!(Backend::choose(None, None), Ok(Backend::available()[0]));
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

#[cfg(all(test, not(feature = "direct")))]
mod tests_without_a_backend {
    use super::*;

    #[test]
    fn without_any_backend_the_error_asks_for_a_resource() {
        let error = Backend::choose(None, Some("direct")).unwrap_err();
        assert_eq!(error, RuntimeError::NoBackend);
        assert!(error.to_string().contains("with_resource"));
    }
}
