//! A tool to which a pool's blocks are announced gets exactly the blocks, and a launch is
//! restricted to its declared uses, however it ends.

#![allow(unsafe_code, reason = "attaches a tool")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::LaunchRecorder;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{DeviceContext, StreamLease, StreamPool, Tracked};
use dmr_testkit::Rig;
use dmr_testkit::fake_tool::{self, Call, NOTHING, READ, READ_WRITE, Session};

/// A context whose blocks are announced to the fake tool.
struct Stage {
    resource: Arc<dyn DeviceMemoryResource>,
    stream: StreamLease,
    rig: Rig,
    tool: Session,
}

impl DeviceContext for Stage {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        self.rig.streams()
    }
}

#[derive(Clone, Copy, Debug)]
enum Stack {
    Pool,
    Direct,
}

const STACKS: [Stack; 2] = [Stack::Pool, Stack::Direct];

impl Stage {
    fn new(stack: Stack) -> Self {
        let tool = fake_tool::session();
        // SAFETY: the initializer of a tool.
        assert!(unsafe { dmr_nvtx::attach(fake_tool::initialize) });
        let observer = dmr_nvtx::memory_observer().expect("a tool");
        let rig = Rig::new();
        let streams = rig.streams();
        let direct = DirectCudaResource::new(Arc::clone(streams));
        let resource: Arc<dyn DeviceMemoryResource> = match stack {
            Stack::Pool => {
                let config = PoolConfig::fast().with_growth(1 << 20);
                let pool = PoolResource::new(direct, Arc::clone(streams), config).unwrap();
                Arc::new(pool.with_observer(observer))
            }
            Stack::Direct => {
                let direct = direct.with_observer(observer);
                Arc::new(Tracked::new(direct, Arc::clone(streams)).unwrap())
            }
        };
        let stream = rig.stream();
        Self { resource, stream, rig, tool }
    }

    fn allocate(&self, bytes: usize) -> DeviceBlock {
        self.resource.allocate(bytes, self.stream.id(), AllocTag::new("block")).unwrap()
    }

    /// Deallocates blocks, and reaps them.
    fn free(&self, blocks: impl IntoIterator<Item = DeviceBlock>) {
        for block in blocks {
            self.resource.deallocate(block).unwrap();
        }
        self.rig.streams().synchronize(self.stream.id()).unwrap();
        self.resource.reap_pending().unwrap();
    }

    /// Makes a recorder of a launch that reads `from` and writes `to`.
    fn recorder(&self, from: &DeviceBlock, to: &mut DeviceBlock) -> LaunchRecorder {
        let mut recorder = LaunchRecorder::new_strict(&self.stream);
        recorder.read(from);
        recorder.write(to);
        recorder
    }

    /// Returns the permissions since the last call: the assigned flags by address, and
    /// whether they were bound and unbound after that.
    fn take_permissions(&self) -> Vec<(Vec<(u64, u32)>, bool)> {
        let calls = self.tool.take_calls();
        let assigned = calls.iter().enumerate().filter_map(|(at, call)| match call {
            Call::Assign { permissions, regions } => Some((at, *permissions, regions.clone())),
            _ => None,
        });
        assigned
            .map(|(at, object, regions)| {
                let ends = [Call::Bind(object), Call::Unbind, Call::Destroy(object)];
                (regions, calls[at + 1..].iter().filter(|it| ends.contains(it)).eq(&ends))
            })
            .collect()
    }

    fn end(self) {
        let Self { resource, stream, rig, tool } = self;
        drop((stream, resource));
        assert_eq!(tool.wrong(), [""; 0]);
        assert_eq!((tool.regions(), tool.heaps(), tool.permissions()), (vec![], 0, (0, 0)));
        rig.assert_clean();
    }
}

#[test]
fn the_regions_of_a_pool_are_its_blocks_with_the_requested_bytes() {
    let stage = Stage::new(Stack::Pool);
    let mut blocks = Vec::new();
    for round in 0..200_usize {
        blocks.push(stage.allocate(1 + round * 97 % 5000));
        if round % 3 == 2 {
            stage.free([blocks.swap_remove(round % blocks.len())]);
        }
        let expected: BTreeSet<_> =
            blocks.iter().map(|block| (block.ptr(), block.bytes() as u64)).collect();
        assert!(stage.tool.regions().into_iter().eq(expected), "round {round}");
    }
    stage.free(blocks);
    assert_eq!(stage.tool.regions(), []);
    stage.end();
}

/// Only the names of the direct backend's blocks are announced: the tool detects the allocations
/// itself.
#[test]
fn blocks_of_the_direct_backend_are_named_and_not_registered() {
    let stage = Stage::new(Stack::Direct);
    let block = stage.allocate(1000);
    let name = Call::Name { ptr: block.ptr(), name: "block".into() };
    assert_eq!(stage.tool.take_calls(), [name]);
    stage.free([block]);
    assert_eq!(stage.tool.take_calls(), []);
    stage.end();
}

#[test]
fn a_launch_is_restricted_to_its_uses_while_it_enqueues() {
    for stack in STACKS {
        let stage = Stage::new(stack);
        let from = stage.allocate(100);
        let mut to = stage.allocate(100);
        let other = stage.allocate(100);
        let gone = stage.allocate(100);
        stage.free([gone]);
        let expected: BTreeSet<_> =
            [(from.ptr(), READ), (to.ptr(), READ_WRITE), (other.ptr(), NOTHING)].into();
        let recorder = stage.recorder(&from, &mut to);
        stage.tool.take_calls();
        let bound = recorder.launch(&stage, |_| Ok::<_, ()>(stage.tool.permissions())).unwrap();
        assert_eq!(bound, (1, 1), "{stack:?}");
        let assigned = stage.take_permissions();
        let [(regions, true)] = &assigned[..] else { panic!("{stack:?}: {assigned:?}") };
        assert_eq!(regions.iter().copied().collect::<BTreeSet<_>>(), expected, "{stack:?}");
        stage.free([from, to, other]);
        stage.end();
    }
}

#[test]
fn a_launch_that_fails_or_panics_leaves_nothing_bound() {
    for stack in STACKS {
        let stage = Stage::new(stack);
        let from = stage.allocate(100);
        let mut to = stage.allocate(100);
        let recorder = stage.recorder(&from, &mut to);
        assert!(recorder.launch(&stage, |_| Err::<(), _>("planned")).is_err());
        assert_eq!(stage.tool.permissions(), (0, 0), "{stack:?}");
        let recorder = stage.recorder(&from, &mut to);
        let launch = || recorder.launch(&stage, |_| -> Result<(), ()> { panic!("planned") });
        assert!(catch_unwind(AssertUnwindSafe(launch)).is_err());
        assert_eq!(stage.tool.permissions(), (0, 0), "{stack:?}");
        let assigned = stage.take_permissions();
        assert_eq!(assigned.len(), 2, "{stack:?}");
        stage.free([from, to]);
        stage.end();
    }
}

/// A permissive launch may use memory that is not recorded.
#[test]
fn a_permissive_launch_is_not_restricted_even_inside_of_a_strict_one() {
    let stage = Stage::new(Stack::Pool);
    let from = stage.allocate(100);
    let mut to = stage.allocate(100);
    let recorder = stage.recorder(&from, &mut to);
    let launched = recorder.launch(&stage, |_| {
        let inner = LaunchRecorder::new_permissive(&stage.stream);
        let bound = inner.launch(&stage, |_| Ok::<_, ()>(stage.tool.permissions().0));
        bound.map(|inner| (inner, stage.tool.permissions().0))
    });
    assert_eq!(launched.unwrap(), (0, 1));
    stage.free([from, to]);
    stage.end();
}
