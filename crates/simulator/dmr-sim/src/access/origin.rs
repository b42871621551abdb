//! The operation that makes an access: its number, its name, and the place of its submission.

use std::sync::Arc;

use crate::access::{AccessKind, Declaration, Epoch, GraphNode, Site};
use crate::host::CallStack;

/// A submitted operation, in the history and in reports.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) epoch: Epoch,
    pub(crate) origin: Arc<Origin>,
}

/// An access that an operation makes.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) operation: Operation,
    pub(crate) kind: AccessKind,
}

/// The name of an operation and the place of its submission.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) operation: Arc<str>,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) stack: Option<Arc<CallStack>>,
    /// The node of a graph, and the launch of the graph.
    pub(crate) node: Option<(GraphNode, Epoch)>,
    /// The declaration of the launch that it belongs to.
    pub(crate) declaration: Option<Arc<Declaration>>,
}

impl Origin {
    pub(crate) fn site(&self, epoch: Option<Epoch>) -> Site {
        // The streams on which a graph's nodes run are no streams of the program.
        let epoch = self.node.map_or(epoch, |(_, launch)| Some(launch));
        Site {
            node: self.node.map(|(node, _)| node),
            operation: self.operation.clone(),
            stream: epoch.map(|epoch| epoch.stream),
            op: epoch.map_or(0, |epoch| epoch.seq),
            label: self.label.clone(),
            place: None,
            source: None,
            stack: self.stack.clone(),
        }
    }
}

impl Operation {
    pub(crate) fn site(&self) -> Site {
        self.origin.site(Some(self.epoch))
    }

    /// Returns an access by this operation.
    pub(crate) fn access(&self, kind: AccessKind) -> Access {
        Access { operation: self.clone(), kind }
    }
}

impl Access {
    pub(crate) fn epoch(&self) -> Epoch {
        self.operation.epoch
    }

    pub(crate) fn site(&self) -> Site {
        self.operation.site()
    }
}
