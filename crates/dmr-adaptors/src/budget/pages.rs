//! A budget over pages: memory is charged when it is created, whatever addresses lead to it.

use dmr_core::{
    AddressRange, AllocTag, DeviceMemoryResource, PhysicalMemory, RefusedMemory, RefusedRange,
    ResourceError, ResourceResult, VirtualMemory,
};

use super::GlobalDeviceBudget;
use super::resource::Charge;

/// The pages of the resource inside. Creating memory is charged as an allocation is, and refused
/// in the same way; destroying it gives the bytes back. Addresses and mappings take no memory.
///
/// What was created before the budget was put there is not charged, and must not be destroyed
/// through it. Where the resource inside has no pages every call is refused:
/// [`virtual_memory`](DeviceMemoryResource::virtual_memory) answers `None` then.
impl<R: DeviceMemoryResource + 'static> VirtualMemory for GlobalDeviceBudget<R> {
    fn granularity(&self) -> u64 {
        self.pages().map_or(1, VirtualMemory::granularity)
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        self.pages()?.reserve(bytes)
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<RefusedRange>> {
        match self.pages() {
            Ok(pages) => pages.release(range),
            Err(error) => Err(RefusedRange::new(error, range)),
        }
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        let pages = self.pages()?;
        let shard = self.budget.account.shard();
        self.charge(shard, bytes)?;
        let charge = Charge { budget: &self.budget, shard, bytes };
        let memory = pages.create(bytes, tag)?;
        charge.keep(tag);
        Ok(memory)
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<RefusedMemory>> {
        let pages = match self.pages() {
            Ok(pages) => pages,
            Err(error) => return Err(RefusedMemory::new(error, memory)),
        };
        let (bytes, tag) = (memory.bytes(), memory.tag());
        pages.destroy(memory)?;
        let account = &self.budget.account;
        let shard = account.shard();
        account.tree.uncount(account.id, shard, tag, bytes);
        account.tree.release(account.id, shard, bytes);
        Ok(())
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.pages()?.map(memory, address)
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.pages()?.unmap(memory, address)
    }
}

impl<R: DeviceMemoryResource + 'static> GlobalDeviceBudget<R> {
    fn pages(&self) -> ResourceResult<&dyn VirtualMemory> {
        const NOT_SUPPORTED: i32 = 801;
        self.get_ref().virtual_memory().ok_or_else(|| {
            let device = self.get_ref().device_ordinal();
            ResourceError::driver(
                "virtual_memory",
                NOT_SUPPORTED,
                "CUDA_ERROR_NOT_SUPPORTED",
                device,
            )
        })
    }
}
