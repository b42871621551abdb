//! Query ids: which query of the program a thread allocates for.

pub use dmr_recorder::query::{QueryScope, current_query, with_query};
