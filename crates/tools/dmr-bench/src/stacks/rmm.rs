//! RMM's resources, through the library of dmr-rmm that `DMR_RMM_LIBRARY` names; with the sizes of
//! RMM's own programs in `peers`.

use std::sync::{Arc, OnceLock};

use dmr_rmm::{Rmm, RmmConfig, RmmKind, RmmResource};
use dmr_streams::{StreamPool, Tracked};

use super::{Stack, layers};
use crate::BenchError;

/// Names the library, which `shim/build.sh` of dmr-rmm builds.
const VARIABLE: &str = "DMR_RMM_LIBRARY";

/// The names of the stacks: of a pool that has half of the free memory from the start, and of one
/// that grows.
pub const RMM: [(&str, RmmKind); 6] = [
    ("rmm-pool", RmmKind::Pool),
    ("rmm-pool0", RmmKind::Pool),
    ("rmm-arena", RmmKind::Arena),
    ("rmm-binning", RmmKind::Binning),
    ("rmm-cuda-async", RmmKind::CudaAsync),
    ("rmm-cuda", RmmKind::Cuda),
];

/// Makes the stack of this name; `None` if it is none of RMM's.
pub(super) fn make(
    name: &str,
    streams: &Arc<StreamPool>,
    layer: Option<&str>,
) -> Option<Result<Stack, BenchError>> {
    let &(name, kind) = RMM.iter().find(|(known, _)| *known == name)?;
    Some(make_of(name, kind, streams, layer))
}

fn make_of(
    name: &str,
    kind: RmmKind,
    streams: &Arc<StreamPool>,
    layer: Option<&str>,
) -> Result<Stack, BenchError> {
    let mut config = RmmConfig::new(kind);
    if matches!(name, "rmm-pool" | "rmm-binning") {
        let (free, _) = streams.device().memory_info()?;
        config = config.with_initial_bytes(free / 2 / 256 * 256);
    }
    let resource = RmmResource::new(library()?, Arc::clone(streams), config)?;
    let stack = layers::wrap(Tracked::new(resource, Arc::clone(streams))?, layer)?;
    Ok(Stack { is_slow: kind == RmmKind::Cuda, ..stack })
}

fn library() -> Result<&'static Rmm, BenchError> {
    static LIBRARY: OnceLock<Result<Rmm, String>> = OnceLock::new();
    let load = || {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let missing =
            || format!("set {VARIABLE} to libdmr_rmm.so, which shim/build.sh of dmr-rmm builds");
        let path = path.ok_or_else(missing)?;
        // SAFETY: the library of dmr-rmm.
        unsafe { Rmm::load(path) }.map_err(|error| error.to_string())
    };
    LIBRARY.get_or_init(load).as_ref().map_err(|error| BenchError(error.clone()))
}
