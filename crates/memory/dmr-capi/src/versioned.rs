//! Structs that programs pass by address, and that grow in later versions of the library.
//!
//! Each begins with its size, as the program that passes it was compiled, and its version. A later
//! library may have a longer struct, an older one a shorter one. Reading fills what is missing with
//! zeros, and refuses what it does not have unless that is zero. Writing stops at the size of the
//! program's struct.

use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use crate::status::{Failure, Outcome, Status};

/// The longest struct that is accepted: a size above it is no size.
const LONGEST: usize = 4096;

/// The first two fields of a struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    size: u32,
    version: u32,
}

/// A struct that begins with its size and its version.
///
/// # Safety
///
/// It is `repr(C)` without padding, its first two fields are a `u32` with its size and one with its
/// version, and all zeros are a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// The name in C.
    const NAME: &'static str;
    /// The version of the meaning of its fields.
    const VERSION: u32;
    /// The size of the first release.
    const FIRST_SIZE: usize;

    /// Returns the value whose bytes are zero, but for the size and the version.
    fn zeroed(size: u32) -> Self {
        let mut value = MaybeUninit::<Self>::zeroed();
        // SAFETY: the struct begins with these two fields.
        unsafe { value.as_mut_ptr().cast::<Head>().write(Head { size, version: Self::VERSION }) };
        // SAFETY: all zeros are a value of it, and so are any two numbers in the first fields.
        unsafe { value.assume_init() }
    }
}

/// Returns the struct that a program has passed.
///
/// # Safety
///
/// `from` is null, or of a struct of as many bytes as its first field says.
pub(crate) unsafe fn read<T: Versioned>(from: *const T, argument: &str) -> Outcome<T> {
    // SAFETY: the caller's obligation.
    let size = unsafe { size_of_program(from, argument) }?;
    let own = size_of::<T>();
    let bytes = from.cast::<u8>();
    for at in own..size {
        // SAFETY: within the struct of the program.
        if unsafe { bytes.add(at).read() } != 0 {
            let text = format!(
                "`{}` has a setting at byte {at} that this library does not have: load a newer \
                 one, or leave that setting zero",
                T::NAME
            );
            return Err(Failure::new(Status::InvalidArgument, text));
        }
    }
    let mut value = T::zeroed(size as u32);
    // SAFETY: both have that many bytes; every pattern of the program's bytes is one of plain
    // numbers and pointers.
    unsafe { ptr::copy_nonoverlapping(bytes, (&raw mut value).cast(), size.min(own)) };
    Ok(value)
}

/// Writes a struct into that of a program, whose size and version stay.
///
/// # Safety
///
/// `to` is null, or of a struct of as many bytes as its first field says.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: T, argument: &str) -> Outcome<()> {
    // SAFETY: the caller's obligation.
    let size = unsafe { size_of_program(to.cast_const(), argument) }?;
    // SAFETY: as above.
    unsafe { write_element(to.cast(), size, value) };
    Ok(())
}

/// Writes a struct of this size, with its size and version.
///
/// # Safety
///
/// `to` has `size` bytes, at least those of the head.
pub(crate) unsafe fn write_element<T: Versioned>(to: *mut u8, size: usize, value: T) {
    let own = size_of::<T>();
    let head = Head { size: size as u32, version: T::VERSION };
    // SAFETY: the caller's obligation: all of it is within the `size` bytes.
    unsafe {
        ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to, size.min(own));
        ptr::write_bytes(to.add(size.min(own)), 0, size - size.min(own));
        to.cast::<Head>().write_unaligned(head);
    }
}

/// Errors unless a program's struct can have this size.
pub(crate) fn check_size<T: Versioned>(size: usize) -> Outcome<()> {
    if (T::FIRST_SIZE..=LONGEST).contains(&size) {
        return Ok(());
    }
    let text = format!(
        "{size} is no size of `{}`, which has {} bytes here: pass `sizeof` of the struct",
        T::NAME,
        size_of::<T>()
    );
    Err(Failure::new(Status::InvalidArgument, text))
}

/// Returns the size of a program's struct, which its first field has.
///
/// # Safety
///
/// `at` is null, or of a struct of at least the bytes of the head.
unsafe fn size_of_program<T: Versioned>(at: *const T, argument: &str) -> Outcome<usize> {
    const { assert!(offset_of!(Head, version) == 4) };
    if at.is_null() {
        return Err(Failure::null(argument));
    }
    // SAFETY: the caller's obligation; the struct begins with these two fields.
    let Head { size, version } = unsafe { at.cast::<Head>().read_unaligned() };
    check_size::<T>(size as usize)?;
    if version != T::VERSION {
        let text = format!(
            "version {version} of `{}` is unknown, this library has version {}: set it as the \
             header says, and compile with the header of this library",
            T::NAME,
            T::VERSION
        );
        return Err(Failure::new(Status::InvalidArgument, text));
    }
    Ok(size as usize)
}
