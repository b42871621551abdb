//! The two places of an operation: where the program has submitted it, and where in a kernel an
//! access is.

use std::fmt;
use std::sync::Arc;

use crate::host::CallStack;

/// One side of a finding: an operation and where it was submitted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Site {
    /// The operation: "memset", "copy", "kernel saxpy", "allocate", "free".
    pub operation: Arc<str>,
    /// The stream it was submitted to (0 is the first that the universe created, legacy streams
    /// included); `None` for calls that name no stream.
    pub stream: Option<u32>,
    /// Its number on that stream, from 1; 0 for calls that name no stream.
    pub op: u64,
    /// The node, if the operation is a node of a graph; stream and number are those of the launch
    /// of the graph.
    pub node: Option<GraphNode>,
    /// The thread's [`label`](crate::label()) at submission.
    pub label: Option<Arc<str>>,
    /// The place in the kernel, of an access that a kernel body has named one for
    /// ([`KernelMemory::at`](crate::KernelMemory::at)). Only the later operation of a finding has
    /// one, and the store of a value that nothing has written.
    pub place: Option<KernelSite>,
    /// The file and line of the source of that place, if PTX has them.
    pub source: Option<Arc<str>>,
    pub(crate) stack: Option<Arc<CallStack>>,
}

impl Site {
    /// The source line that submitted it: known with
    /// [`capture_call_sites`](crate::UniverseBuilder::capture_call_sites).
    #[must_use]
    pub fn call_site(&self) -> Option<String> {
        self.call_stack().into_iter().next()
    }

    /// The source lines of the program on the way to the operation, the innermost first: all of
    /// them with [`capture_call_stacks`](crate::UniverseBuilder::capture_call_stacks), otherwise at
    /// most one.
    #[must_use]
    pub fn call_stack(&self) -> Vec<String> {
        self.stack.as_ref().map_or_else(Vec::new, |stack| stack.call_sites())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        match (self.stream, self.node) {
            (Some(stream), None) => write!(f, " (operation {} of stream {stream})", self.op)?,
            (Some(stream), Some(node)) => {
                let number = node.number;
                let op = self.op;
                write!(
                    f,
                    " (node {number} of the graph that is operation {op} of stream {stream}"
                )?;
                if let Some(captured) = node.captured_on {
                    write!(f, ", captured on stream {captured}")?;
                }
                f.write_str(")")?;
            }
            (None, _) => f.write_str(" (on no stream)")?,
        }
        if let Some(place) = &self.place {
            write!(f, ", {place}")?;
        }
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        if let Some(label) = &self.label {
            write!(f, ", {label}")?;
        }
        let mut places = self.call_stack().into_iter();
        if let Some(innermost) = places.next() {
            write!(f, ", at {innermost}")?;
        }
        for outer in places {
            write!(f, "\n    called at {outer}")?;
        }
        Ok(())
    }
}

/// A node of a graph that was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GraphNode {
    /// Its number among the nodes of the graph, from 1, in the order in which they were made or
    /// captured.
    pub number: u32,
    /// The stream that captured it, numbered as in [`Site::stream`]; `None` if it was made by a
    /// call.
    pub captured_on: Option<u32>,
}

/// A place in a kernel, as the body of a kernel names it: a thread and a line of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelSite {
    pub(crate) block: u64,
    pub(crate) thread: u32,
    pub(crate) line: u32,
}

impl KernelSite {
    /// Makes a place: the linear index of the block in its grid and of the thread in its block, and
    /// a line.
    #[must_use]
    pub const fn new(block: u64, thread: u32, line: u32) -> Self {
        Self { block, thread, line }
    }

    /// Returns the linear index of the block in its grid.
    #[must_use]
    pub const fn block(&self) -> u64 {
        self.block
    }

    /// Returns the linear index of the thread in its block.
    #[must_use]
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns the line of the kernel's source.
    #[must_use]
    pub const fn line(&self) -> u32 {
        self.line
    }
}

impl fmt::Display for KernelSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, thread, line } = self;
        write!(f, "line {line}, block {block}, thread {thread}")
    }
}
