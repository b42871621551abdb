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
