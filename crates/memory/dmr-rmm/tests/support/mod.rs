//! The library of the tests, and small resources on it.

use std::sync::{Arc, OnceLock};

use dmr_rmm::{Rmm, RmmConfig, RmmKind, RmmResource};
use dmr_streams::{StreamPool, Tracked};

/// Names the library: `cargo xtask rmm` builds it, and sets this.
const VARIABLE: &str = "DMR_RMM_LIBRARY";

/// Returns the library, loaded once.
pub(crate) fn rmm() -> &'static Rmm {
    static RMM: OnceLock<Rmm> = OnceLock::new();
    RMM.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let path = path.expect("DMR_RMM_LIBRARY names libdmr_rmm.so, as `cargo xtask rmm` sets it");
        // SAFETY: the library of this crate.
        unsafe { Rmm::load(path) }.expect("the library is loaded")
    })
}

/// Returns settings for a device of a few MiB.
pub(crate) fn small(kind: RmmKind) -> RmmConfig {
    let config = RmmConfig::new(kind);
    match kind {
        // By default an arena has half of what is free.
        RmmKind::Arena => config.with_initial_bytes(6 << 20),
        // Bins of 1 and 2 KiB take their memory 1 MiB at a time.
        RmmKind::Binning => config.with_bins(10, 11),
        _ => config,
    }
}

/// Makes a resource.
pub(crate) fn resource(streams: &Arc<StreamPool>, config: RmmConfig) -> RmmResource {
    RmmResource::new(rmm(), Arc::clone(streams), config).expect("a resource")
}

/// Makes a resource that tracks uses.
pub(crate) fn tracked(streams: &Arc<StreamPool>, config: RmmConfig) -> Tracked<RmmResource> {
    Tracked::new(resource(streams, config), Arc::clone(streams)).expect("the pool's own resource")
}
