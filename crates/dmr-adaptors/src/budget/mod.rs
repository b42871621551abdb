//! One hard limit on device memory, with shares and reservations.
//!
//! A [`Budget`] is an account; a [`BudgetLayer`] makes [`GlobalDeviceBudget`]s that charge it.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `handle`, `registry` | [`Budget`], and the one of each physical GPU |
//! | `reservation` | [`Reservation`], and who waits for one |
//! | `layer`, `resource` | [`BudgetLayer`], [`GlobalDeviceBudget`] |
//! | `charges` | what was charged for each block |
//! | `pages` | the same for pages |
//! | `account`, `shard`, `tags` | one account, and what a thread has in hand of it |
//! | `tree`, `books` | the lock, and the arithmetic under it |
//! | `pending` | blocks that were given back and are still charged |

mod account;
mod books;
mod charges;
mod handle;
mod layer;
#[cfg(all(test, loom))]
mod models;
mod pages;
mod pending;
mod registry;
mod reservation;
mod resource;
mod shard;
mod tags;
mod tree;

pub use handle::Budget;
pub use layer::BudgetLayer;
pub use reservation::Reservation;
pub use resource::GlobalDeviceBudget;
