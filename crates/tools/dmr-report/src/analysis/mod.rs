//! Questions about a model: the peak, the holes, the waits, and the places of blocks.

pub mod budgets;
pub mod holes;
pub mod layout;
pub mod peak;
pub mod stranded;
pub mod waits;
