//! Values that crates above this one keep for a stream pool, such as its pinned memory.
//!
//! Such a value is one for each pool, lives as long as the pool, and is ended while the pool can
//! still be used. Only the pool itself can promise that; it need not know what the value is.

use std::any::Any;

use dmr_core::append_list::AppendList;

use crate::StreamPool;

/// A value that a crate keeps for each [`StreamPool`], which owns it:
/// [`StreamPool::attachment`].
pub trait Attachment: Any + Send + Sync {
    /// Makes the value for a pool that has none of this type. May be called twice at a time; one of
    /// the values is dropped then.
    fn attach(streams: &StreamPool) -> Self
    where
        Self: Sized;

    /// Ends the value when the last owner of the pool is dropped, also on a lost device and in a
    /// forked child, where another thread may have held a lock. Afterwards the value is dropped,
    /// but not in a forked child.
    fn end(&self, streams: &StreamPool);
}

/// The attachments of a pool: of each type one at most.
#[derive(Default)]
pub(crate) struct Attachments(AppendList<Box<dyn Attachment>>);

impl StreamPool {
    /// Returns the attachment of this type, which is made when it is first needed. Takes no lock
    /// once there is one. Not to be called for the first time in a forked child.
    pub fn attachment<A: Attachment>(&self) -> &A {
        let Attachments(list) = self.attachments();
        loop {
            if let Some(found) = list.iter().find_map(|it| of_type(&**it)) {
                return found;
            }
            list.push_unless(Box::new(A::attach(self)), |it| of_type::<A>(&**it).is_some());
        }
    }

    /// Ends all attachments, when the last owner of the pool is dropped.
    pub(crate) fn end_attachments(&self) {
        self.attachments().0.iter().for_each(|attachment| attachment.end(self));
    }
}

fn of_type<A: Attachment>(attachment: &dyn Attachment) -> Option<&A> {
    (attachment as &dyn Any).downcast_ref()
}
