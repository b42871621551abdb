//! The library with RMM, loaded.

use std::error::Error;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use crate::raw::{Functions, INTERFACE};

/// The library `libdmr_rmm.so`, with RMM. Cheap to clone; never unloaded.
#[derive(Clone)]
pub struct Rmm {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    functions: Functions,
    /// RMM has values that are dropped at the ends of threads and of the process.
    _library: ManuallyDrop<Library>,
}

/// The error of a library that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RmmError {
    /// The library, or one that it needs, cannot be loaded.
    #[non_exhaustive]
    #[error(
        "cannot load {path}: {reason}; build it with `shim/build.sh` of dmr-rmm, and keep it beside the libraries \
         that are copied there"
    )]
    NotLoaded {
        /// The library.
        path: String,
        /// The reason that the dynamic linker reports.
        reason: String,
    },

    /// The library was built for another version of this crate.
    #[non_exhaustive]
    #[error(
        "{path} was built for another version of dmr-rmm (interface {found}, not {needed}): build it again with \
         `shim/build.sh`"
    )]
    OtherInterface {
        /// The library.
        path: String,
        /// The number of its interface.
        found: u32,
        /// The number that this crate needs.
        needed: u32,
    },
}

/// The version of RMM whose headers the library was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct RmmVersion {
    /// 26 of 26.10.0.
    pub major: u32,
    /// 10 of 26.10.0.
    pub minor: u32,
    /// 0 of 26.10.0.
    pub patch: u32,
}

impl Rmm {
    /// Loads the library from this path.
    ///
    /// # Errors
    ///
    /// See [`RmmError`].
    ///
    /// # Safety
    ///
    /// The file is what `shim/build.sh` of this crate has built, and the libraries of RMM and of
    /// CUDA that the dynamic linker finds for it are those that it was built with, or compatible
    /// ones.
    pub unsafe fn load(path: impl AsRef<Path>) -> Result<Self, RmmError> {
        let path = path.as_ref();
        let not_loaded = |error: libloading::Error| RmmError::NotLoaded {
            path: path.display().to_string(),
            // The dynamic linker's own words are in the source.
            reason: error.source().map_or_else(|| error.to_string(), ToString::to_string),
        };
        // SAFETY: the caller's obligation.
        let library = ManuallyDrop::new(unsafe { Library::new(path) }.map_err(not_loaded)?);
        // SAFETY: the library is that of this crate, and is never unloaded.
        let functions = unsafe { Functions::of(&library) }.map_err(not_loaded)?;
        let found = functions.interface();
        if found != INTERFACE {
            let path = path.display().to_string();
            return Err(RmmError::OtherInterface { path, found, needed: INTERFACE });
        }
        let path = path.to_owned();
        Ok(Self { inner: Arc::new(Inner { path, functions, _library: library }) })
    }

    /// Returns the path that it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the version of RMM.
    #[must_use]
    pub fn version(&self) -> RmmVersion {
        let number = self.inner.functions.version();
        RmmVersion { major: number / 10_000, minor: number / 100 % 100, patch: number % 100 }
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.inner.functions
    }
}

/// `26.10.0`.
impl fmt::Display for RmmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl fmt::Debug for Rmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rmm({} from {})", self.version(), self.path().display())
    }
}
