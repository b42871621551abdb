//! The structs of Arrow's C data interface and C device interface, with their release protocol.
//!
//! The layout is that of the specification; a test compares it with the C definitions.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::mem::{self, offset_of};

/// `ARROW_DEVICE_CUDA`: memory of a CUDA device.
pub const ARROW_DEVICE_CUDA: i32 = 2;
/// `ARROW_DEVICE_CUDA_HOST`: page-locked host memory of CUDA.
pub const ARROW_DEVICE_CUDA_HOST: i32 = 3;
/// `ARROW_DEVICE_CUDA_MANAGED`: managed memory of CUDA.
pub const ARROW_DEVICE_CUDA_MANAGED: i32 = 13;

/// `ARROW_FLAG_DICTIONARY_ORDERED`: the order of the dictionary's values has a meaning.
pub const ARROW_FLAG_DICTIONARY_ORDERED: i64 = 1;
/// `ARROW_FLAG_NULLABLE`: the field may have null values.
pub const ARROW_FLAG_NULLABLE: i64 = 2;
/// `ARROW_FLAG_MAP_KEYS_SORTED`: the keys of each map are sorted.
pub const ARROW_FLAG_MAP_KEYS_SORTED: i64 = 4;

/// `struct ArrowSchema`: the type of a column, owned. Dropping it calls its release callback.
#[repr(C)]
pub struct ArrowSchema {
    pub(crate) format: *const c_char,
    pub(crate) name: *const c_char,
    pub(crate) metadata: *const c_char,
    pub(crate) flags: i64,
    pub(crate) n_children: i64,
    pub(crate) children: *mut *mut ArrowSchema,
    pub(crate) dictionary: *mut ArrowSchema,
    pub(crate) release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    pub(crate) private_data: *mut c_void,
}

/// `struct ArrowArray`: the buffers of a column, owned. Dropping it calls its release callback.
#[repr(C)]
pub struct ArrowArray {
    pub(crate) length: i64,
    pub(crate) null_count: i64,
    pub(crate) offset: i64,
    pub(crate) n_buffers: i64,
    pub(crate) n_children: i64,
    pub(crate) buffers: *mut *const c_void,
    pub(crate) children: *mut *mut ArrowArray,
    pub(crate) dictionary: *mut ArrowArray,
    pub(crate) release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    pub(crate) private_data: *mut c_void,
}

/// `struct ArrowDeviceArray`: an array, its device, and the event behind which it can be read;
/// owned. Dropping it calls the array's release callback.
#[repr(C)]
pub struct ArrowDeviceArray {
    pub(crate) array: ArrowArray,
    pub(crate) device_id: i64,
    pub(crate) device_type: i32,
    pub(crate) sync_event: *mut c_void,
    pub(crate) reserved: [i64; 3],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ArrowSchema>() == 72);
    assert!(size_of::<ArrowArray>() == 80);
    assert!(offset_of!(ArrowArray, buffers) == 40);
    assert!(size_of::<ArrowDeviceArray>() == 128);
    assert!(offset_of!(ArrowDeviceArray, device_id) == 80);
    assert!(offset_of!(ArrowDeviceArray, device_type) == 88);
    assert!(offset_of!(ArrowDeviceArray, sync_event) == 96);
    assert!(offset_of!(ArrowDeviceArray, reserved) == 104);
};

/// Implements the protocol for a struct whose release callback is at a path in it.
macro_rules! protocol {
    ($type:ident, $($release:ident).+) => {
        impl $type {
            /// Returns a struct that is marked as released: a place for another one.
            #[must_use]
            pub const fn released() -> Self {
                // SAFETY: all fields are numbers, pointers that may be null, and an optional
                // function.
                unsafe { mem::zeroed() }
            }

            /// Returns whether the struct is marked as released.
            #[must_use]
            pub const fn is_released(&self) -> bool {
                self.$($release).+.is_none()
            }

            /// Moves the struct out of the place at `from`, which is marked as released.
            ///
            /// # Safety
            ///
            /// `from` is valid for reads and writes, and of a struct that keeps the protocol of the
            /// specification: it is released, or its pointers are null or of what the specification
            /// says, which stays as it is until it is released; and its release callback may be
            /// called once, on any thread.
            #[must_use]
            pub unsafe fn take(from: *mut Self) -> Self {
                // SAFETY: the caller's obligation.
                let taken = unsafe { from.read() };
                // SAFETY: as above.
                unsafe { (&raw mut (*from).$($release).+).write(None) };
                taken
            }

            /// Moves the struct to the place at `to`, whose content is overwritten.
            ///
            /// # Safety
            ///
            /// `to` is valid for writes, and released or not initialised.
            pub unsafe fn give(self, to: *mut Self) {
                // SAFETY: the caller's obligation.
                unsafe { to.write(self) };
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("is_released", &self.is_released())
                    .finish_non_exhaustive()
            }
        }
    };
}

protocol!(ArrowSchema, release);
protocol!(ArrowArray, release);
protocol!(ArrowDeviceArray, array.release);

// SAFETY: the obligation of `take`: its callback may be called on any thread. Its memory is read
// through this struct only.
unsafe impl Send for ArrowSchema {}
// SAFETY: as above.
unsafe impl Send for ArrowArray {}
// SAFETY: as above; the event belongs to the array.
unsafe impl Send for ArrowDeviceArray {}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released; the obligation of `take`, and what this crate makes.
            unsafe { release(self) };
        }
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: as for a schema.
            unsafe { release(self) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    macro_rules! layout {
        ($out:ident, $type:ident, $($field:ident),*) => {
            $out.push(format!("{} {}", stringify!($type), size_of::<$type>()));
            $({
                let offset = offset_of!($type, $field);
                $out.push(format!("{}.{} {offset}", stringify!($type), stringify!($field)));
            })*
        };
    }

    fn layouts() -> Vec<String> {
        let mut out = Vec::new();
        layout!(
            out,
            ArrowSchema,
            format,
            name,
            metadata,
            flags,
            n_children,
            children,
            dictionary,
            release,
            private_data
        );
        layout!(
            out,
            ArrowArray,
            length,
            null_count,
            offset,
            n_buffers,
            n_children,
            buffers,
            children,
            dictionary,
            release,
            private_data
        );
        layout!(out, ArrowDeviceArray, array, device_id, device_type, sync_event, reserved);
        out.push(format!("ARROW_FLAG_DICTIONARY_ORDERED {ARROW_FLAG_DICTIONARY_ORDERED}"));
        out.push(format!("ARROW_FLAG_NULLABLE {ARROW_FLAG_NULLABLE}"));
        out.push(format!("ARROW_FLAG_MAP_KEYS_SORTED {ARROW_FLAG_MAP_KEYS_SORTED}"));
        out.push(format!("ARROW_DEVICE_CUDA {ARROW_DEVICE_CUDA}"));
        out.push(format!("ARROW_DEVICE_CUDA_HOST {ARROW_DEVICE_CUDA_HOST}"));
        out.push(format!("ARROW_DEVICE_CUDA_MANAGED {ARROW_DEVICE_CUDA_MANAGED}"));
        out
    }

    /// It needs a C compiler, as Rust's linker does.
    #[test]
    fn f6_the_structs_are_those_that_a_c_compiler_makes_of_the_specification() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("layout");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut compile = Command::new(compiler);
        compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "tests/c/layout.c", "-o"]);
        let compiled = compile.arg(&program).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let printed = Command::new(&program).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), layouts());
    }
}
