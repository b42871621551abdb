//! U6: a window is open until its own launch ends, whatever its tokens were used for before.

#![allow(unsafe_code, reason = "tokens of a resource without windows")]

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, ResourceError, UseTokens};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

/// The first windows are leaked, and nothing more.
#[test]
fn tokens_whose_windows_were_forgotten_open_windows_of_a_new_launch() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let adopted = rig.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap();
    let resource = resource(&rig);
    let blocks = [(); 2].map(|()| resource.allocate(64, home.id(), AllocTag::UNTAGGED).unwrap());
    let [first, second] = [0, 1].map(|at| [BlockUse::new(blocks[at].id(), Access::Write)]);
    let uses = rig.streams().uses();
    let mut tokens = uses.prepare(&first, home.id()).unwrap();
    tokens.clear();
    // Launches end on the other stream, with the number of that one and larger ones.
    for _ in 0..4 {
        uses.finish(uses.prepare(&second, adopted.id()).unwrap()).unwrap();
    }
    assert!(tokens.resolve(adopted.id()));
    uses.prepare_in(&second, &mut tokens, || ()).unwrap();
    assert!(uses.has_open_window(blocks[1].id()));
    let refused = uses.prepare(&second, home.id()).unwrap_err();
    assert!(matches!(refused, ResourceError::WindowConflict { .. }), "{refused}");
    rig.streams().retire_stream(&adopted).expect_err("a window is open");
    uses.finish(tokens).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
}

#[test]
fn tokens_of_a_resource_that_numbers_no_launches_open_windows_of_a_numbered_one() {
    let rig = Rig::simulated();
    let [user, other] = [rig.stream(), rig.stream()];
    let resource = resource(&rig);
    let block = resource.allocate(64, user.id(), AllocTag::UNTAGGED).unwrap();
    let write = [BlockUse::new(block.id(), Access::Write)];
    let uses = rig.streams().uses();
    let mut tokens = UseTokens::new(user.id());
    // SAFETY: nothing depends on the token: this resource has no windows.
    unsafe { tokens.push(block.id(), Access::Read, 0) };
    uses.prepare_in(&write, &mut tokens, || ()).unwrap();
    assert!(uses.has_open_window(block.id()));
    let refused = uses.prepare(&write, other.id()).unwrap_err();
    assert!(matches!(refused, ResourceError::WindowConflict { .. }), "{refused}");
    let _ = uses.finish(tokens);
    assert!(!uses.has_open_window(block.id()));
    resource.deallocate(block).unwrap();
}

/// S2: the tokens of a resource whose windows are not in the table count for no stream of another
/// owner.
#[test]
fn tokens_without_a_launch_do_not_hold_or_free_an_adopted_stream() {
    let rig = Rig::simulated();
    let home = rig.stream();
    let adopted = rig.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap();
    let resource = resource(&rig);
    let block = resource.allocate(64, home.id(), AllocTag::UNTAGGED).unwrap();
    let uses = rig.streams().uses();
    let foreign = || {
        let mut tokens = UseTokens::new(adopted.id());
        // SAFETY: nothing depends on the token: this resource has no windows.
        unsafe { tokens.push(block.id(), Access::Read, 0) };
        tokens
    };
    let open = uses.prepare(&[BlockUse::new(block.id(), Access::Write)], adopted.id()).unwrap();
    assert!(uses.finish(foreign()).is_err());
    assert!(uses.finish_without_event(&mut foreign()).is_err());
    assert!(uses.cancel(foreign()).is_err());
    rig.streams().retire_stream(&adopted).expect_err("a launch has not ended");
    uses.finish(open).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    resource.deallocate(block).unwrap();
}
