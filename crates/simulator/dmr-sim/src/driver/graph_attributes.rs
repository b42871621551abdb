//! Graph management: the attributes of kernel nodes.

use std::ffi::c_int;

use super::launch::{LaunchAttributes, Shape, check};
use super::{Scope, chapter, driver_call, put, required};
use crate::abi::*;
use crate::machine::{NodeWork, Session};

chapter![
    cuGraphKernelNodeGetAttribute,
    cuGraphKernelNodeSetAttribute,
    cuGraphKernelNodeCopyAttributes,
];

/// The words of a `CUkernelNodeAttrValue`.
type Value = [u32; 16];

/// Returns the attributes of a kernel node.
fn attributes(session: &mut Session<'_>, node: Handle) -> Outcome<LaunchAttributes> {
    let index = session.node_index(node)?;
    match &session.graphs.node(index)?.work {
        work @ NodeWork::Kernel { .. } => Ok(LaunchAttributes::of(work)),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

/// Replaces the attributes of a kernel node, if its kernel can be launched with them.
fn replace(session: &mut Session<'_>, node: Handle, attributes: LaunchAttributes) -> Outcome {
    let index = session.node_index(node)?;
    let NodeWork::Kernel { function, args } = session.graphs.node(index)?.work.clone() else {
        return Err(ERROR_INVALID_VALUE);
    };
    let grid = args.grid();
    let block = args.block();
    let shared_bytes = args.shared_bytes();
    check(session, function, Shape { grid, block, shared_bytes, attributes })?;
    let LaunchAttributes { is_cooperative, cluster } = attributes;
    let args = args.with_cluster(cluster).with_cooperation(is_cooperative);
    session.graphs.node(index)?.work = NodeWork::Kernel { function, args };
    Ok(())
}

/// Writes the value of an attribute; zeros for one without an effect here.
unsafe extern "C" fn cuGraphKernelNodeGetAttribute(
    node: Handle,
    attribute: c_int,
    value: *mut Value,
) -> Code {
    driver_call("cuGraphKernelNodeGetAttribute", Scope::Context, |session| {
        let known = attributes(session, node)?.get(attribute)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, known) }
    })
}

unsafe extern "C" fn cuGraphKernelNodeSetAttribute(
    node: Handle,
    attribute: c_int,
    value: *const Value,
) -> Code {
    driver_call("cuGraphKernelNodeSetAttribute", Scope::Context, |session| {
        required(value.cast_mut())?;
        let mut set = attributes(session, node)?;
        // SAFETY: not null, so valid by the driver's contract.
        set.set(attribute, &unsafe { value.read_unaligned() })?;
        replace(session, node, set)
    })
}

extern "C" fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) -> Code {
    driver_call("cuGraphKernelNodeCopyAttributes", Scope::Context, |session| {
        let copied = attributes(session, from)?;
        replace(session, to, copied)
    })
}
