//! One hard limit on device memory, with shares and reservations.
//!
//! A [`Budget`] is an account; a [`BudgetLayer`] makes [`BudgetResource`]s that charge it.
//!
//! | module | content |
//! | --- | --- |
//! | `handle` | [`Budget`], and the one of each physical GPU |
//! | `reservation` | [`Reservation`], and the queue for one |
//! | `layer`, `resource`, `pages` | [`BudgetLayer`]; [`BudgetResource`], over blocks and over pages |
//! | `account`, `tree` | the arithmetic of one account, and of an account with all above it |
//! | `charges`, `retired` | the charge of each live block; the blocks that are charged until upstream frees them |
//! | `holders` | which tags hold how much, and the error that says so |
//! | `outer`, `shared` | a limit around the root of a tree; the one that processes share |
//!
//! # How it works
//!
//! A budget is a tree of accounts: what is charged to one is charged to all above it. An account
//! counts its *room*, which is the limit less what is charged. Threads charge the root on leases of
//! its room, in cells that few of them share; a refusal, and every number that is read, calls all
//! leases in first. A charge of another account changes several rooms, and takes the lock of the
//! tree to change them together.
//!
//! Bytes are charged before the upstream resource is called, and released after it has freed them:
//! at no instant does it have more than is charged. A block that it has only retired waits in a
//! queue, which is polled, and stays charged until then.

mod account;
mod charges;
mod handle;
mod holders;
mod layer;
#[cfg(all(test, loom))]
mod models;
mod outer;
mod pages;
mod reservation;
mod resource;
mod retired;
#[cfg(feature = "shared")]
mod shared;
mod tree;

pub use handle::Budget;
pub use layer::BudgetLayer;
pub use reservation::Reservation;
pub use resource::BudgetResource;
