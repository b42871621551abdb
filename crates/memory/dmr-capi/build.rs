//! Gives the library a name that programs are linked with, and keeps it loaded: its threads, and
//! what it does at the end of the process, run after a `dlclose`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdmr_capi.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
