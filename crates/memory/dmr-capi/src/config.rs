//! The configuration of a runtime.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;

use dmr::dmr_pool::PoolConfig;
use dmr::dmr_streams::{Device, StreamPool, StreamPoolConfig};
use dmr::{Backend, DeviceRuntime, DeviceRuntimeBuilder};

use crate::status::{Failure, Outcome, Status};
use crate::versioned::Versioned;

/// The version of `dmr_config`.
pub const DMR_CONFIG_VERSION: u32 = 1;

/// A backend: the one that the environment variable `DMR_BACKEND` names, otherwise the pool.
pub const DMR_BACKEND_DEFAULT: u32 = 0;
/// A backend: a pool, which makes no driver call where it finds what it needs.
pub const DMR_BACKEND_POOL: u32 = 1;
/// A backend: a memory pool of the driver, one driver call for each allocation and free.
pub const DMR_BACKEND_ASYNC: u32 = 2;
/// A backend: `cuMemAlloc` and `cuMemFree`, for memory checkers. It records no uses, so
/// `dmr_record_use` and `dmr_wait_for_uses` return `DMR_STATUS_UNSUPPORTED`.
pub const DMR_BACKEND_DIRECT: u32 = 3;
/// A backend: `cuMemAlloc` and `cuMemFree`, with recorded uses.
pub const DMR_BACKEND_DIRECT_TRACKED: u32 = 4;

/// A value of `page_bytes`: the pool maps no pages, and carves up blocks of the driver's pool.
pub const DMR_PAGES_NONE: u64 = u64::MAX;

/// The number of streams of a program that a runtime has room for, unless the configuration says
/// otherwise.
pub const DMR_STREAMS_DEFAULT: u32 = 128;

/// The configuration of a runtime. `dmr_config_init` sets the defaults; change what you need.
/// Strings are read during `dmr_runtime_create` only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `sizeof(dmr_config)`, in the program.
    pub size: u32,
    /// `DMR_CONFIG_VERSION`.
    pub version: u32,
    /// The CUDA ordinal of the device. Its primary context is used.
    pub device: u32,
    /// One of `DMR_BACKEND_...`.
    pub backend: u32,
    /// Not 0: the pool reserves less memory, and takes more time.
    pub compact: u32,
    /// Not 0: counts what is allocated, for `dmr_runtime_statistics`.
    pub statistics: u32,
    /// The most streams that can be in use at a time: from the first call with the stream until it
    /// is retired. 0: `DMR_STREAMS_DEFAULT`.
    pub max_streams: u32,
    /// Not 0: buffers of `dmr_spillable_create` are moved to pinned host memory when an allocation
    /// finds too little memory.
    pub spill: u32,
    /// The bytes of the pool's pages, rounded up by the pool. 0: its default; `DMR_PAGES_NONE`: no
    /// pages.
    pub page_bytes: u64,
    /// The most bytes that this process takes from the device, never exceeded, for all runtimes of
    /// the device together. 0: no limit.
    pub budget_bytes: u64,
    /// The most bytes that all processes of the user take from the device together, never exceeded.
    /// Each of them must ask for the same limit. Excludes `budget_bytes`. 0: no limit.
    pub shared_budget_bytes: u64,
    /// The group of processes that share `shared_budget_bytes`: 1 to 64 ASCII letters, digits, `.`,
    /// `_` and `-`. Null: those that name no group.
    pub shared_budget_group: *const c_char,
    /// The file to which every allocation and free is logged as CSV, gzip if the name ends in
    /// `.gz`; an existing one is overwritten. Null: no log.
    pub log_path: *const c_char,
}

// SAFETY: as declared; without padding, because the 32-bit fields are eight.
unsafe impl Versioned for Config {
    const NAME: &'static str = "dmr_config";
    const VERSION: u32 = DMR_CONFIG_VERSION;
    const FIRST_SIZE: usize = 72;
}

const _: () = assert!(size_of::<Config>() == 72);

/// The settings of a configuration whose pointers were read.
struct Texts<'a> {
    group: Option<&'a str>,
    log: Option<&'a OsStr>,
}

impl Config {
    /// Returns the builder of the runtime.
    ///
    /// # Safety
    ///
    /// The pointers are null or of strings that end with a NUL.
    pub(crate) unsafe fn build(&self) -> Outcome<DeviceRuntime> {
        // SAFETY: the caller's obligation.
        let texts = unsafe { self.texts() }?;
        let pool = self.stream_pool()?;
        let builder = DeviceRuntime::builder(self.device as usize).with_streams(pool);
        let builder = self.with_memory(builder)?;
        let mut builder = self.with_limits(builder, texts.group)?;
        if let Some(path) = texts.log {
            builder = builder.log_csv(path);
        }
        if self.statistics != 0 {
            builder = builder.statistics();
        }
        if self.spill != 0 {
            builder = builder.spill();
        }
        Ok(builder.build()?)
    }

    /// Makes the streams: one of the runtime's own, one for the copies of spilled buffers, and room
    /// for those of the program.
    fn stream_pool(&self) -> Outcome<Arc<StreamPool>> {
        const OWN: usize = 2;
        let most = StreamPoolConfig::MAX_STREAMS - OWN;
        let streams = match self.max_streams {
            0 => DMR_STREAMS_DEFAULT,
            streams => streams,
        } as usize;
        if streams > most {
            let text = format!("`max_streams` is {streams}: a runtime has room for {most} at most");
            return Err(invalid(text));
        }
        let config = StreamPoolConfig::new().with_max_streams(OWN).with_max_adopted(streams);
        Ok(StreamPool::new(Device::open(self.device as usize)?, config)?)
    }

    fn with_memory(&self, builder: DeviceRuntimeBuilder) -> Outcome<DeviceRuntimeBuilder> {
        let backend = match self.backend {
            DMR_BACKEND_DEFAULT => None,
            DMR_BACKEND_POOL => Some(Backend::Pool),
            DMR_BACKEND_ASYNC => Some(Backend::Async),
            DMR_BACKEND_DIRECT => Some(Backend::Direct),
            DMR_BACKEND_DIRECT_TRACKED => Some(Backend::DirectTracked),
            other => {
                return Err(invalid(format!("backend {other} is none of `DMR_BACKEND_...`")));
            }
        };
        let mut builder = match backend {
            Some(backend) => builder.backend(backend),
            None => builder,
        };
        if self.compact != 0 || self.page_bytes != 0 {
            let pool = match self.compact {
                0 => PoolConfig::fast(),
                _ => PoolConfig::compact(),
            };
            builder = builder.pool_config(match self.page_bytes {
                0 => pool,
                DMR_PAGES_NONE => pool.with_page_size(0),
                bytes => pool.with_page_size(bytes),
            });
        }
        Ok(builder)
    }

    fn with_limits(
        &self,
        builder: DeviceRuntimeBuilder,
        group: Option<&str>,
    ) -> Outcome<DeviceRuntimeBuilder> {
        match (self.budget_bytes, self.shared_budget_bytes, group) {
            (0, 0, None) => Ok(builder),
            (bytes, 0, None) => Ok(builder.budget(bytes)),
            (0, 0, Some(_)) | (_, 0, Some(_)) => Err(invalid(
                "`shared_budget_group` is set, and `shared_budget_bytes` is 0: set both, or none",
            )),
            (0, bytes, None) => Ok(builder.shared_budget(bytes)),
            (0, bytes, Some(group)) => Ok(builder.shared_budget_of(group, bytes)),
            (_, _, _) => Err(invalid(
                "`budget_bytes` and `shared_budget_bytes` exclude each other: set one of them to 0",
            )),
        }
    }

    /// # Safety
    ///
    /// As for [`build`](Self::build).
    unsafe fn texts(&self) -> Outcome<Texts<'_>> {
        // SAFETY: the caller's obligation.
        let group = unsafe { text(self.shared_budget_group) };
        let group = group.map(|text| {
            text.to_str().map_err(|_| invalid("`shared_budget_group` is no UTF-8 text"))
        });
        // SAFETY: as above.
        let log = unsafe { text(self.log_path) }.map(|text| OsStr::from_bytes(text.to_bytes()));
        Ok(Texts { group: group.transpose()?, log })
    }
}

/// Returns the default configuration, for a program's struct of this size.
pub(crate) fn default_config(size: u32) -> Config {
    let default = Config::zeroed(size);
    Config { shared_budget_group: ptr::null(), log_path: ptr::null(), ..default }
}

/// # Safety
///
/// `pointer` is null or of a string that ends with a NUL and stays as it is.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's obligation.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Status::InvalidArgument, text)
}
