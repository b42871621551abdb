//! An access: the operation that makes it, what comes before that, and its bytes.
//!
//! These are the words in which the memory, the kernels and the checks speak to each other, so they
//! lie below all three and use none of them.

pub(crate) mod clock;
pub(crate) mod declaration;
pub(crate) mod kind;
pub(crate) mod origin;
pub(crate) mod range;
pub(crate) mod site;

pub(crate) use clock::{Clock, Epoch};
pub(crate) use declaration::{Allowed, AlterUses, Declaration, DeclaredUse, DisjointRanges};
pub(crate) use kind::AccessKind;
pub(crate) use origin::{Access, Operation, Origin};
pub(crate) use range::{AccessedRanges, AddressRange};
pub(crate) use site::{GraphNode, KernelSite, Site};
