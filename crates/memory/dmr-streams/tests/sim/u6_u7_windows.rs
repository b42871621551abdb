//! U6, U7, U12: open windows, of two threads and of one.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceError, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn block(resource: &dyn DeviceMemoryResource, stream: dmr_core::StreamId) -> DeviceBlock {
    resource.allocate(256, stream, AllocTag::UNTAGGED).unwrap()
}

#[test]
fn a_conflicting_preparation_is_refused_while_another_thread_is_inside_its_own() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    let id = block.id();
    // The thread stops between opening its window and queueing its wait.
    let hold = rig.universe().hold_nth("cuStreamWaitEvent", 1);
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| resource.prepare_block_use(id, b.id(), Access::Write).unwrap());
        hold.wait_until_held();
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            let refused = resource.prepare_block_use(id, c.id(), access).unwrap_err();
            match refused {
                ResourceError::WindowConflict { holder, requested, generation, .. } => {
                    assert_eq!((holder, requested), (b.id(), c.id()));
                    assert_eq!(generation, id.generation());
                }
                other => panic!("{other}"),
            }
        }
        hold.release();
        resource.finish_uses(inside.join().unwrap()).unwrap();
    });
    let after = resource.prepare_block_use(id, c.id(), Access::Write).unwrap();
    resource.finish_uses(after).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn readers_of_two_streams_do_not_exclude_each_other_and_windows_of_one_stream_nest() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    let prepare = |stream, access| resource.prepare_block_use(block.id(), stream, access);
    let readers = [prepare(a.id(), Access::Read), prepare(b.id(), Access::Read)];
    assert!(prepare(a.id(), Access::Write).is_err(), "the other reader is in its window");
    for reader in readers {
        resource.finish_uses(reader.unwrap()).unwrap();
    }
    let outer = prepare(a.id(), Access::Write).unwrap();
    let inner = prepare(a.id(), Access::ReadWrite).unwrap();
    assert!(prepare(b.id(), Access::Read).is_err());
    resource.finish_uses(outer).unwrap();
    assert!(prepare(b.id(), Access::Read).is_err(), "the inner window is still open");
    resource.finish_uses(inner).unwrap();
    resource.finish_uses(prepare(b.id(), Access::Read).unwrap()).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn all_eight_windows_open_or_none() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let blocks: Vec<_> = (0..8).map(|_| block(&resource, a.id())).collect();
    let uses: Vec<_> = blocks.iter().map(|b| BlockUse::new(b.id(), Access::Write)).collect();
    let fifth = resource.prepare_block_use(blocks[4].id(), a.id(), Access::Read).unwrap();
    rig.universe().reset_calls();
    let refused = resource.prepare_uses(&uses, b.id()).unwrap_err();
    assert!(matches!(refused, ResourceError::WindowConflict { .. }), "{refused}");
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 0);
    for block in &blocks {
        assert_eq!(rig.streams().uses().has_open_window(block.id()), block.id() == blocks[4].id());
    }
    resource.finish_uses(fifth).unwrap();
    let tokens = resource.prepare_uses(&uses, b.id()).unwrap();
    assert_eq!(tokens.len(), 8);
    resource.cancel_uses(tokens).unwrap();
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn a_block_deallocated_inside_a_window_is_freed_after_it() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    let id = block.id();
    let window = resource.prepare_block_use(id, b.id(), Access::Read).unwrap();
    resource.deallocate(block).unwrap();
    assert_eq!(resource.reap_pending().unwrap(), 0, "the window is open");
    assert_eq!((resource.usage().live, resource.usage().retired), (0, 256));
    let stale = resource.prepare_block_use(id, b.id(), Access::Read).unwrap_err();
    assert_eq!(stale, ResourceError::use_after_free(id.generation()));
    resource.finish_uses(window).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn a_forgotten_token_leaks_and_corrupts_nothing() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    #[allow(
        clippy::forget_non_drop,
        reason = "a token without `Drop` is forgotten by dropping it, too"
    )]
    std::mem::forget(resource.prepare_block_use(block.id(), b.id(), Access::Write).unwrap());
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().retired, 256, "leaked, visibly");
    drop((resource, a, b));
    assert_eq!(rig.verdict(), Ok(()));
}

#[test]
fn a_stale_id_is_recognised_whatever_lives_at_its_address() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let a = rig.stream();
    let stale = {
        let block = block(&resource, a.id());
        let id = block.id();
        resource.deallocate(block).unwrap();
        resource.reap_pending().unwrap();
        id
    };
    let next = block(&resource, a.id());
    assert_eq!((next.ptr(), next.id().slot()), (stale.ptr(), stale.slot()), "the same place");
    let refused = resource.prepare_block_use(stale, a.id(), Access::Read).unwrap_err();
    assert_eq!(refused, ResourceError::use_after_free(stale.generation()));
    resource.deallocate(next).unwrap();
    drop((resource, a));
    rig.assert_clean();
}
