//! The C functions of `shim/shim.cpp`, and a resource that they have made.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{NonNull, null_mut};

use dmr_streams::Device;
use libloading::Library;

use crate::{Rmm, RmmConfig, RmmKind};

/// The number of the interface, raised with every change of the functions.
pub(crate) const INTERFACE: u32 = 1;

/// Bytes of the text of an error.
const TEXT: usize = 256;

/// A number that was not set.
const UNSET: u64 = u64::MAX;

/// A resource of the shim.
#[repr(C)]
pub(crate) struct Opaque {
    _private: [u8; 0],
}

/// `Config` of the shim.
#[repr(C)]
pub(crate) struct Config {
    kind: u32,
    smallest_bin: u8,
    largest_bin: u8,
    unused: u16,
    initial: u64,
    maximum: u64,
    release_threshold: u64,
}

const _: () = assert!(size_of::<Config>() == 32);

impl From<&RmmConfig> for Config {
    fn from(config: &RmmConfig) -> Self {
        Self {
            kind: match config.kind {
                RmmKind::Cuda => 0,
                RmmKind::CudaAsync => 1,
                RmmKind::Pool => 2,
                RmmKind::Arena => 3,
                RmmKind::Binning => 4,
            },
            smallest_bin: config.bins.0,
            largest_bin: config.bins.1,
            unused: 0,
            initial: config.initial_bytes.unwrap_or(UNSET),
            maximum: config.maximum_bytes.unwrap_or(UNSET),
            release_threshold: config.release_threshold.unwrap_or(UNSET),
        }
    }
}

/// An exception of RMM.
#[derive(Debug)]
pub(crate) struct Thrown {
    pub(crate) is_out_of_memory: bool,
    pub(crate) message: Box<str>,
}

/// The code of `rmm::out_of_memory`.
const OUT_OF_MEMORY: i32 = 1;

macro_rules! functions {
    ($($field:ident $name:literal ($($argument:ty),*) -> $returned:ty;)*) => {
        /// The functions, by their names.
        pub(crate) struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $returned,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// The library is that of this crate, and is never unloaded.
            pub(crate) unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the functions of these names have these types.
                unsafe { Ok(Self { $($field: *library.get($name)?,)* }) }
            }
        }
    };
}

functions! {
    interface b"dmr_rmm_interface\0" () -> u32;
    version b"dmr_rmm_version\0" () -> u32;
    create b"dmr_rmm_create\0" (*const Config, *mut *mut Opaque, *mut c_char) -> i32;
    destroy b"dmr_rmm_destroy\0" (*mut Opaque, *mut c_char) -> i32;
    allocate b"dmr_rmm_allocate\0"
        (*mut Opaque, usize, *mut c_void, *mut *mut c_void, *mut c_char) -> i32;
    deallocate b"dmr_rmm_deallocate\0"
        (*mut Opaque, *mut c_void, usize, *mut c_void, *mut c_char) -> i32;
    reserved b"dmr_rmm_reserved\0" (*mut Opaque, *mut u64, *mut c_char) -> i32;
}

impl Functions {
    pub(crate) fn interface(&self) -> u32 {
        // SAFETY: returns a number.
        unsafe { (self.interface)() }
    }

    pub(crate) fn version(&self) -> u32 {
        // SAFETY: returns a number.
        unsafe { (self.version)() }
    }
}

/// Makes a call with room for a text.
fn caught(call: impl FnOnce(*mut c_char) -> i32) -> Result<(), Thrown> {
    let mut text: [c_char; TEXT] = [0; TEXT];
    let code = call(text.as_mut_ptr());
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim has written a text that ends in the array.
    let message = unsafe { CStr::from_ptr(text.as_ptr()) };
    let message = message.to_string_lossy().into_owned().into_boxed_str();
    Err(Thrown { is_out_of_memory: code == OUT_OF_MEMORY, message })
}

/// A resource of RMM. Each method must be called with the device's context current.
///
/// Dropping it frees what RMM has taken from the device, unless that is lost, or this is a forked
/// child.
pub(crate) struct RawResource {
    rmm: Rmm,
    device: Device,
    at: NonNull<Opaque>,
}

// SAFETY: RMM's resources may be used from any thread, by any number at once.
unsafe impl Send for RawResource {}
// SAFETY: as above.
unsafe impl Sync for RawResource {}

impl RawResource {
    /// Makes a resource on the device of the current context.
    pub(crate) fn new(rmm: &Rmm, device: &Device, config: &RmmConfig) -> Result<Self, Thrown> {
        let config = Config::from(config);
        let mut made = null_mut();
        // SAFETY: the shim reads the settings, and writes an address and a text.
        caught(|text| unsafe { (rmm.functions().create)(&config, &mut made, text) })?;
        let empty = || Thrown { is_out_of_memory: false, message: "no resource was made".into() };
        let at = NonNull::new(made).ok_or_else(empty)?;
        Ok(Self { rmm: rmm.clone(), device: device.clone(), at })
    }

    /// Allocates for work that is submitted to the stream from now on.
    pub(crate) fn allocate(&self, bytes: usize, stream: *mut c_void) -> Result<u64, Thrown> {
        let mut ptr = null_mut();
        let allocate = self.rmm.functions().allocate;
        // SAFETY: the resource is alive, and so is the stream, which the caller has entered.
        caught(|text| unsafe { allocate(self.at.as_ptr(), bytes, stream, &mut ptr, text) })?;
        Ok(ptr as u64)
    }

    /// Deallocates behind the work on the stream so far.
    ///
    /// # Safety
    ///
    /// The memory is from `allocate` with as many bytes, and is not deallocated; all work that uses
    /// it is done, or the stream's next work comes after it.
    pub(crate) unsafe fn deallocate(
        &self,
        ptr: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), Thrown> {
        let deallocate = self.rmm.functions().deallocate;
        let ptr = ptr as *mut c_void;
        // SAFETY: the resource and the stream are alive; the rest is the caller's obligation.
        caught(|text| unsafe { deallocate(self.at.as_ptr(), ptr, bytes, stream, text) })
    }

    /// Returns the bytes that the resource has taken from the device.
    pub(crate) fn reserved(&self) -> Result<u64, Thrown> {
        let mut bytes = 0;
        let reserved = self.rmm.functions().reserved;
        // SAFETY: the resource is alive; the shim writes a number and a text.
        caught(|text| unsafe { reserved(self.at.as_ptr(), &mut bytes, text) })?;
        Ok(bytes)
    }
}

impl Drop for RawResource {
    fn drop(&mut self) {
        let destroy = self.rmm.functions().destroy;
        let at = self.at.as_ptr();
        let _ = self.device.relaxed(|_| {
            // SAFETY: made by `create`, and destroyed once. Its blocks keep it, and RMM waits for
            // the work of those that were deallocated. Its destructors throw nothing.
            let _ = caught(|text| unsafe { destroy(at, text) });
            Ok(())
        });
    }
}
