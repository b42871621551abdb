//! On the simulated driver an attached tool changes nothing: that driver has an observer of its
//! own, and a tool for NVIDIA's driver does not have its memory.

#![allow(unsafe_code, reason = "attaches a tool")]

use std::sync::Arc;

use dmr::prelude::*;
use dmr_testkit::{Rig, fake_tool};

#[test]
fn simulated_memory_is_not_announced_and_the_stacks_do_not_change() {
    let tool = fake_tool::session();
    // SAFETY: the initializer of a tool.
    assert!(unsafe { dmr_nvtx::attach(fake_tool::initialize) });
    let rig = Rig::simulated();
    for backend in [Backend::Pool, Backend::Direct, Backend::DirectTracked] {
        let builder = DeviceRuntime::builder(rig.ordinal());
        let builder = builder.with_streams(Arc::clone(rig.streams())).backend(backend);
        let runtime = builder.build().unwrap();
        let stream = runtime.streams().acquire().unwrap();
        let memory = runtime.resource();
        let block = memory.allocate(1000, stream.id(), AllocTag::new("block")).unwrap();
        memory.deallocate(block).unwrap();
        memory.reap_pending().unwrap();
        let stack = format!("{memory:?}");
        assert!(backend != Backend::Pool || stack.starts_with("Pool(pages"), "{stack}");
        drop(runtime);
        assert_eq!(tool.take_calls(), [], "{stack}");
    }
    rig.assert_clean();
}
