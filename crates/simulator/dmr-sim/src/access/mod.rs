//! An access: the operation that makes it, what comes before that, and its bytes.

pub(crate) mod byte_set;
pub(crate) mod clock;
pub(crate) mod recording;
