//! An access: the operation that makes it, what comes before that, and its bytes.

pub(crate) mod clock;
pub(crate) mod declaration;
pub(crate) mod kind;
pub(crate) mod origin;
pub(crate) mod range;
pub(crate) mod site;
