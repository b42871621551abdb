//! User objects: objects of the program that graphs keep alive.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use super::graph::graph_of;
use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{HostCall, HostPtr, Session, UserObject};

chapter![
    cuUserObjectCreate,
    cuUserObjectRetain,
    cuUserObjectRelease,
    cuGraphRetainUserObject,
    cuGraphReleaseUserObject,
];

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be set: the destructor runs at some time after
/// the last release.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the references are the program's ones.
const MOVE: c_uint = 1;

/// Refuses a number of references that cannot be added or removed. The first ones can be more (as
/// observed on an H100).
fn valid(count: c_uint) -> Outcome {
    if (1..=i32::MAX as c_uint).contains(&count) { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
}

unsafe extern "C" fn cuUserObjectCreate(
    object: *mut Handle,
    data: *mut c_void,
    destructor: Option<unsafe extern "C" fn(*mut c_void)>,
    count: c_uint,
    flags: c_uint,
) -> Code {
    driver_call("cuUserObjectCreate", Scope::Context, |session| {
        required(object)?;
        if count == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let function = destructor.ok_or(ERROR_INVALID_VALUE)?;
        if flags != NO_DESTRUCTOR_SYNC {
            return Err(ERROR_INVALID_VALUE);
        }
        let destructor = HostCall { function, data: HostPtr(data) };
        let universe = Arc::downgrade(&session.alive);
        session.graphs.last_user_object += 1;
        let number = session.graphs.last_user_object;
        let made = Arc::new(UserObject { destructor, universe });
        session.graphs.user_objects.retain(number, made, count)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(object, session.handle(Kind::UserObject, number)) }
    })
}

impl Session<'_> {
    /// Returns the number of a user object.
    fn user_object(&self, object: Handle) -> Outcome<u32> {
        self.index_of(Kind::UserObject, object).map_err(|_| ERROR_INVALID_VALUE)
    }
}

extern "C" fn cuUserObjectRetain(object: Handle, count: c_uint) -> Code {
    driver_call("cuUserObjectRetain", Scope::ContextOr(object), |session| {
        valid(count)?;
        let number = session.user_object(object)?;
        let known = session.graphs.user_objects.object(number)?;
        session.graphs.user_objects.retain(number, known, count)
    })
}

extern "C" fn cuUserObjectRelease(object: Handle, count: c_uint) -> Code {
    driver_call("cuUserObjectRelease", Scope::ContextOr(object), |session| {
        valid(count)?;
        let number = session.user_object(object)?;
        session.graphs.user_objects.release(number, count)
    })
}

/// A reference of the program must exist, because the object is found by it.
extern "C" fn cuGraphRetainUserObject(
    graph: Handle,
    object: Handle,
    count: c_uint,
    flags: c_uint,
) -> Code {
    driver_call("cuGraphRetainUserObject", Scope::Context, |session| {
        valid(count)?;
        let number = session.user_object(object)?;
        let known = session.graphs.user_objects.object(number)?;
        if flags & !MOVE != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        graph_of(session, graph)?.objects.retain(number, known, count)?;
        if flags == MOVE && session.graphs.user_objects.release(number, count).is_err() {
            graph_of(session, graph)?.objects.release(number, count)?;
            return Err(ERROR_INVALID_VALUE);
        }
        Ok(())
    })
}

extern "C" fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) -> Code {
    driver_call("cuGraphReleaseUserObject", Scope::Context, |session| {
        valid(count)?;
        let number = session.user_object(object)?;
        graph_of(session, graph)?.objects.release(number, count)
    })
}
