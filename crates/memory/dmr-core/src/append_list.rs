//! A list that grows behind a shared reference, and from which nothing is removed.

use std::sync::OnceLock;

/// Values in the order in which they were added. None is removed or moved, so a reference to one
/// lives as long as the list. A reader takes no lock.
#[derive(Debug)]
pub struct AppendList<T> {
    first: OnceLock<Box<Node<T>>>,
}

#[derive(Debug)]
struct Node<T> {
    value: T,
    next: OnceLock<Box<Node<T>>>,
}

impl<T> Default for AppendList<T> {
    fn default() -> Self {
        Self { first: OnceLock::new() }
    }
}

impl<T> AppendList<T> {
    /// Adds a value at the end, unless the list has one that `is_same` accepts. Returns the one
    /// that the list has.
    pub fn push_unless(&self, value: T, is_same: impl Fn(&T) -> bool) -> &T {
        let mut added = Some(Box::new(Node { value, next: OnceLock::new() }));
        let mut at = &self.first;
        loop {
            if let Some(new) = added.take() {
                added = at.set(new).err();
            }
            // It is set by now, by this thread or another one.
            match at.get() {
                Some(node) if added.is_none() || is_same(&node.value) => return &node.value,
                Some(node) => at = &node.next,
                None => {}
            }
        }
    }

    /// Returns the values, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let mut at = &self.first;
        std::iter::from_fn(move || {
            let node = at.get()?;
            at = &node.next;
            Some(&node.value)
        })
    }
}

impl<T> Drop for AppendList<T> {
    /// Without recursion: the list may be of any length.
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut node) = next {
            next = node.next.take();
        }
    }
}
