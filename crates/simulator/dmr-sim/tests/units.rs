//! The unit tests in the sources: modules that need little else, compiled here again. An executable
//! for those of the library would compile the whole simulator a second time.
#![allow(dead_code, unreachable_pub, reason = "the tests use a part of the modules")]
#![allow(unsafe_code, reason = "the sources call the dynamic linker")]

mod access {
    pub(crate) use crate::clock::{Clock, Epoch};
    pub(crate) use crate::kind::AccessKind;
    pub(crate) use crate::range::AddressRange;
}
mod host {
    pub(crate) use crate::python;
}

#[path = "../src/memory/address.rs"]
mod address;
#[path = "../src/kernel/byte_set.rs"]
mod byte_set;
#[path = "../src/access/clock.rs"]
mod clock;
#[path = "../src/access/declaration.rs"]
mod declaration;
#[path = "../src/process/elf.rs"]
mod elf;
#[path = "../src/access/kind.rs"]
mod kind;
#[path = "../src/host/label.rs"]
mod label;
#[path = "../src/host/python.rs"]
mod python;
#[path = "../src/access/range.rs"]
mod range;
#[path = "../src/memory/store.rs"]
mod store;
#[path = "../src/check/words.rs"]
mod words;
