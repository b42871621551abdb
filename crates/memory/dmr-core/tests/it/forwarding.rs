//! References, boxes and `Arc`s of a resource forward every method, once, with its arguments and
//! its result.

use std::sync::{Arc, Mutex};

use dmr_core::{
    AddressRange, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, BlockUse, DeallocateError,
    DestroyError, DeviceBlock, DeviceMemoryResource, DriverAllocation, Generation, PeerAccess,
    PhysicalMemory, ReleaseError, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
    UseTokens, UseTracking, VirtualMemory,
};

/// One call, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    Allocate(usize, StreamId, AllocTag),
    Deallocate(BlockId),
    GiveAway(BlockId),
    TryGrow(BlockId, usize),
    IsRetired(BlockId),
    DeviceOrdinal,
    StreamPool,
    BytesOutstanding,
    Usage,
    TryReap,
    ReapPending,
    TrimTo(u64),
    AllowAccess(usize),
    UseTracking,
    VirtualMemory,
}

/// A resource that records every call and returns values that no default body returns.
#[derive(Clone, Debug)]
struct Spy {
    calls: Arc<Mutex<Vec<Call>>>,
    pool: StreamPoolId,
}

impl Spy {
    fn new() -> Self {
        let pool = StreamPoolId::next().unwrap();
        Self { calls: Arc::default(), pool }
    }

    fn called(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    /// Returns the recorded calls, and clears them.
    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

fn stream(pool: StreamPoolId) -> StreamId {
    StreamId::from_parts(pool, 5, 6).unwrap()
}

fn block(alloc_stream: StreamId) -> DeviceBlock {
    let parts = BlockParts {
        ptr: 0x100,
        bytes: 10,
        reserved_bytes: 256,
        alignment: 256,
        device_ordinal: 3,
        alloc_stream,
        tag: AllocTag::new("spied"),
        generation: Generation::next(),
        slot: BlockSlot::new(4),
        state: BlockState::Live,
        part_depth: 0,
    };
    // SAFETY: no work uses these addresses, which have no memory.
    #[allow(unsafe_code, reason = "making blocks is what a resource does")]
    unsafe {
        DeviceBlock::from_parts(parts)
    }
}

fn refusal(call: &'static str) -> ResourceError {
    ResourceError::driver(call, 1, "CUDA_ERROR_INVALID_VALUE", 3)
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for Spy {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.called(Call::Allocate(bytes, stream, tag));
        Ok(block(stream))
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.called(Call::Deallocate(block.id()));
        Err(DeallocateError::new(refusal("deallocate"), block))
    }
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        self.called(Call::GiveAway(block.id()));
        Err(DeallocateError::new(refusal("give_away"), block))
    }
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.called(Call::TryGrow(block.id(), bytes));
        // SAFETY: no work uses these addresses, which have no memory.
        #[allow(unsafe_code, reason = "growing blocks is what a resource does")]
        unsafe {
            block.set_sizes(bytes, bytes);
        }
        Ok(true)
    }
    fn is_retired(&self, block: BlockId) -> bool {
        self.called(Call::IsRetired(block));
        true
    }
    fn device_ordinal(&self) -> usize {
        self.called(Call::DeviceOrdinal);
        3
    }
    fn stream_pool(&self) -> StreamPoolId {
        self.called(Call::StreamPool);
        self.pool
    }
    fn bytes_outstanding(&self) -> u64 {
        self.called(Call::BytesOutstanding);
        44
    }
    fn usage(&self) -> Usage {
        self.called(Call::Usage);
        let mut usage = Usage::default();
        usage.live = 55;
        usage
    }
    fn try_reap(&self) -> ResourceResult<u64> {
        self.called(Call::TryReap);
        Ok(66)
    }
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.called(Call::ReapPending);
        Ok(77)
    }
    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.called(Call::TrimTo(keep_bytes));
        Ok(78)
    }
    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        self.called(Call::AllowAccess(device_ordinal));
        Ok(PeerAccess::ByContext)
    }
    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.called(Call::UseTracking);
        Some(self)
    }
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.called(Call::VirtualMemory);
        Some(self)
    }
}

/// Use tracking whose calls all fail, each with an error of its own.
impl UseTracking for Spy {
    fn prepare(&self, _: &[BlockUse], _: &mut UseTokens) -> ResourceResult<()> {
        Err(refusal("prepare"))
    }
    fn finish(&self, _: &mut UseTokens) -> ResourceResult<()> {
        Err(refusal("finish"))
    }
    fn cancel(&self, _: &mut UseTokens) -> ResourceResult<()> {
        Err(refusal("cancel"))
    }
}

/// Virtual memory with pages of 44 bytes, whose calls all fail.
impl VirtualMemory for Spy {
    fn granularity(&self) -> u64 {
        44
    }
    fn reserve(&self, _: u64) -> ResourceResult<AddressRange> {
        Err(refusal("reserve"))
    }
    fn release(&self, range: AddressRange) -> Result<(), Box<ReleaseError>> {
        Err(ReleaseError::new(refusal("release"), range))
    }
    fn create(&self, _: u64, _: AllocTag) -> ResourceResult<PhysicalMemory> {
        Err(refusal("create"))
    }
    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        Err(DestroyError::new(refusal("destroy"), memory))
    }
    fn map(&self, _: &PhysicalMemory, _: u64) -> ResourceResult<()> {
        Err(refusal("map"))
    }
    fn unmap(&self, _: &PhysicalMemory, _: u64) -> ResourceResult<()> {
        Err(refusal("unmap"))
    }
}

/// Calls every method of `pointer`, which points to `spy`.
fn assert_forwards(spy: &Spy, pointer: impl DeviceMemoryResource) {
    let on = stream(spy.pool);
    let tag = AllocTag::new("tag");

    let mut block = pointer.allocate(123, on, tag).unwrap();
    assert_eq!(spy.calls(), [Call::Allocate(123, on, tag)]);
    assert_eq!(block.tag(), AllocTag::new("spied"));

    let allocated = block.id();
    assert_eq!(pointer.try_grow(&mut block, 200), Ok(true));
    assert_eq!(spy.calls(), [Call::TryGrow(allocated, 200)]);
    assert_eq!(block.bytes(), 200);
    let refused = pointer.give_away(block).unwrap_err();
    assert_eq!(spy.calls(), [Call::GiveAway(allocated)]);
    assert_eq!((refused.error, refused.block.id()), (refusal("give_away"), allocated));
    let refused = pointer.deallocate(refused.block).unwrap_err();
    assert_eq!(spy.calls(), [Call::Deallocate(allocated)]);
    assert!(pointer.is_retired(allocated));
    assert_eq!(spy.calls(), [Call::IsRetired(allocated)]);
    assert_eq!((refused.error, refused.block.id()), (refusal("deallocate"), allocated));

    assert_eq!(pointer.device_ordinal(), 3);
    assert_eq!(pointer.stream_pool(), spy.pool);
    assert_eq!(pointer.bytes_outstanding(), 44);
    assert_eq!(pointer.usage().live, 55);
    assert_eq!(pointer.try_reap(), Ok(66));
    assert_eq!(pointer.reap_pending(), Ok(77));
    assert_eq!(pointer.trim_to(99), Ok(78));
    assert_eq!(pointer.allow_access(4), Ok(PeerAccess::ByContext));
    let asked = [
        Call::DeviceOrdinal,
        Call::StreamPool,
        Call::BytesOutstanding,
        Call::Usage,
        Call::TryReap,
        Call::ReapPending,
        Call::TrimTo(99),
        Call::AllowAccess(4),
    ];
    assert_eq!(spy.calls(), asked);

    let prepared =
        pointer.use_tracking().map(|tracking| tracking.prepare(&[], &mut UseTokens::new(on)));
    assert_eq!(prepared, Some(Err(refusal("prepare"))));
    assert_eq!(spy.calls(), [Call::UseTracking]);

    let pages = pointer.virtual_memory().map(VirtualMemory::granularity);
    assert_eq!((pages, spy.calls()), (Some(44), vec![Call::VirtualMemory]));
}

#[test]
fn a_reference_forwards_every_method() {
    let spy = Spy::new();
    assert_forwards(&spy, &spy);
    assert_forwards(&spy, &spy as &dyn DeviceMemoryResource);
}

#[test]
fn a_box_forwards_every_method() {
    let spy = Spy::new();
    assert_forwards(&spy, Box::new(spy.clone()));
    assert_forwards(&spy, Box::new(spy.clone()) as Box<dyn DeviceMemoryResource>);
}

#[test]
fn an_arc_forwards_every_method() {
    let spy = Spy::new();
    assert_forwards(&spy, Arc::new(spy.clone()));
    assert_forwards(&spy, Arc::new(spy.clone()) as Arc<dyn DeviceMemoryResource>);
}

#[test]
fn pointers_nest() {
    let spy = Spy::new();
    let nested: Arc<dyn DeviceMemoryResource> = Arc::new(Box::new(spy.clone()));
    assert_forwards(&spy, &nested);
}
