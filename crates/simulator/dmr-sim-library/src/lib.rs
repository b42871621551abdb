//! The simulated driver as a shared library: `libcuda.so.1`.
//!
//! Each exported function jumps to the address that [`dmr_sim::driver_functions`] has for it. The
//! addresses are written when the library is loaded, before a program can call it. The names are a
//! list (`functions.rs`): asking the simulator for them would build it twice.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(
    unsafe_code,
    reason = "exported functions, and a function that runs when the library is loaded"
)]

mod functions;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The dynamic linker calls it when it has loaded the library.
// SAFETY: the section holds pointers to functions of this type.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    // A panic may not leave a function that C calls.
    let result = std::panic::catch_unwind(|| {
        for (name, address) in dmr_sim::driver_functions() {
            if let Ok(index) = NAMES.binary_search(&name) {
                ADDRESSES[index].store(address, Ordering::Relaxed);
            }
        }
        dmr_sim::boot_library()
    });
    let message = match result {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the simulated driver panicked".to_owned(),
    };
    let _ = writeln!(std::io::stderr(), "dmr-sim: {message}");
}

macro_rules! export {
    ($($name:ident)*) => {
        /// The places of the functions in the list.
        #[allow(non_camel_case_types, reason = "the driver's names")]
        enum Place {
            $($name),*
        }

        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The address of each function, in the order of the list.
        static ADDRESSES: [AtomicUsize; NAMES.len()] =
            [const { AtomicUsize::new(0) }; NAMES.len()];

        $(
            // SAFETY: the program calls the function of this name and type; it has its arguments
            // where they were passed, because the jump changes neither them nor the stack.
            #[allow(non_snake_case, reason = "the driver's name")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "jmp qword ptr [rip + {addresses} + {offset}]",
                    addresses = sym ADDRESSES,
                    offset = const 8 * Place::$name as usize,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "adrp x16, {addresses} + {offset}",
                    "ldr x16, [x16, :lo12:{addresses} + {offset}]",
                    "br x16",
                    addresses = sym ADDRESSES,
                    offset = const 8 * Place::$name as usize,
                );
            }
        )*
    };
}

functions::functions!(export);
