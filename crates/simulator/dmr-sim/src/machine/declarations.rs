//! The declarations of launches in force.
//!
//! A declaration is in force for the thread that has made it, until it ends: for the work of the
//! whole thread, or for that on one stream. Work keeps the declaration that was in force when it
//! was submitted.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use crate::access::{AlterUses, Declaration, DeclaredUse, Origin};

/// The declarations in force.
#[derive(Default)]
pub(crate) struct Declarations {
    last_id: u64,
    /// Called with the uses of each launch.
    pub(crate) alter: Option<AlterUses>,
    of_threads: HashMap<ThreadId, Vec<Scope>>,
}

struct Scope {
    id: u64,
    /// The stream whose work it is for; `None` for all of the thread's.
    stream: Option<u32>,
    /// `None` if the work may access anything.
    declaration: Option<Arc<Declaration>>,
}

impl Declarations {
    /// Returns the latest declaration in force for what this thread submits to `stream`.
    fn latest(&self, stream: u32) -> Option<&Scope> {
        if self.of_threads.is_empty() {
            return None;
        }
        let scopes = self.of_threads.get(&thread::current().id())?;
        scopes.iter().rev().find(|scope| scope.stream.is_none_or(|only| only == stream))
    }

    /// Returns the id of the latest declaration of this thread; 0 if none is in force.
    pub(crate) fn id(&self) -> u64 {
        if self.of_threads.is_empty() {
            return 0;
        }
        let scopes = self.of_threads.get(&thread::current().id());
        scopes.and_then(|scopes| scopes.last()).map_or(0, |scope| scope.id)
    }

    /// Begins a declaration for the calling thread: for its work on `stream`, together with what
    /// was in force there, or for all its work. Without `uses` the work may access anything.
    /// Returns its id, and the declaration.
    pub(crate) fn begin(
        &mut self,
        stream: Option<u32>,
        mut uses: Option<Vec<DeclaredUse>>,
    ) -> (u64, Option<Arc<Declaration>>) {
        if let (Some(alter), Some(uses)) = (&mut self.alter, &mut uses) {
            alter(uses);
        }
        self.last_id += 1;
        let id = self.last_id;
        let own = uses.map(|uses| Declaration { uses, ..Declaration::default() });
        let outer = stream.and_then(|stream| self.latest(stream));
        let declaration = match (own, outer) {
            (None, _) | (_, Some(Scope { declaration: None, .. })) => None,
            (Some(mut own), outer) => {
                own.ids.push(id);
                if let Some(outer) = outer.and_then(|scope| scope.declaration.as_ref()) {
                    own.ids.extend_from_slice(&outer.ids);
                    own.uses.extend_from_slice(&outer.uses);
                }
                Some(Arc::new(own))
            }
        };
        let scopes = self.of_threads.entry(thread::current().id()).or_default();
        scopes.push(Scope { id, stream, declaration: declaration.clone() });
        (id, declaration)
    }

    /// Ends a declaration, of any thread.
    pub(crate) fn end(&mut self, id: u64) {
        self.of_threads.retain(|_, scopes| {
            scopes.retain(|scope| scope.id != id);
            !scopes.is_empty()
        });
    }

    /// Returns the description of work that this thread submits to `stream`, with the declaration
    /// in force.
    pub(crate) fn of_work(&self, stream: u32, origin: Arc<Origin>) -> Arc<Origin> {
        match self.latest(stream) {
            Some(Scope { declaration: Some(declaration), .. }) => {
                Arc::new(Origin { declaration: Some(declaration.clone()), ..(*origin).clone() })
            }
            _ => origin,
        }
    }
}
