//! Permissions: the blocks that a thread's launches may access.

use std::cell::Cell;
use std::ptr;

use dmr_core::BlockUse;

use crate::abi::Handle;
use crate::tool::{Tool, tool};

thread_local! {
    /// The permissions object that is bound to this thread.
    static BOUND: Cell<Handle> = const { Cell::new(ptr::null_mut()) };
}

/// Runs `work`, during which the attached tool checks the kernels that this thread launches on the
/// stream of its first launch: they may access memory as `uses` declares.
///
/// A block that `uses` declares as read must only be read. One that is declared as written may be
/// read as well, because a kernel may read back what it has written. Every other block that an
/// [observer](crate::memory_observer) has announced must not be accessed. A use counts for the
/// whole block: there are no permissions for parts. Memory that was not announced is not checked
/// (globals and constants of a module, local memory, allocations of other libraries), and neither
/// are copies and memory sets.
///
/// The restriction ends when `work` returns or panics. A nested call replaces it until that call
/// returns. Without a tool this only calls `work`.
pub fn restricted<T>(uses: &[BlockUse], work: impl FnOnce() -> T) -> T {
    let Some(tool) = tool() else { return work() };
    let permissions = {
        let regions = tool.regions();
        tool.create_permissions(&regions.assigned(uses))
    };
    let _bound = Binding::new(tool, permissions);
    work()
}

/// Runs `work` without the restriction of an enclosing [`restricted`] call: for launches whose uses
/// are not all declared.
pub fn unrestricted<T>(work: impl FnOnce() -> T) -> T {
    let Some(tool) = tool() else { return work() };
    let _bound = Binding::new(tool, ptr::null_mut());
    work()
}

/// Binds a permissions object to this thread until it is dropped; null for none.
struct Binding {
    tool: &'static Tool,
    permissions: Handle,
    outer: Handle,
}

impl Binding {
    fn new(tool: &'static Tool, permissions: Handle) -> Self {
        let outer = BOUND.replace(permissions);
        let binding = Self { tool, permissions, outer };
        if !permissions.is_null() {
            tool.bind(permissions);
        } else if !outer.is_null() {
            tool.unbind();
        }
        binding
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        BOUND.set(self.outer);
        if !self.tool.is_attached() {
            return;
        }
        if !self.permissions.is_null() {
            self.tool.unbind();
            self.tool.destroy_permissions(self.permissions);
        }
        if !self.outer.is_null() {
            self.tool.bind(self.outer);
        }
    }
}
