//! A budget over pages: memory is charged when it is created, whatever addresses lead to it.

use dmr_core::{
    AddressRange, AllocTag, DestroyError, DeviceMemoryResource, PhysicalMemory, ReleaseError,
    ResourceError, ResourceResult, VirtualMemory,
};

use super::BudgetResource;
use super::account::MAX_BYTES;
use super::charges::Item;

/// The pages of the upstream resource. Creating memory is charged and refused as an allocation is;
/// destroying it releases what was charged for it: nothing if it was created upstream. Addresses
/// and mappings take no memory.
///
/// Over a resource without pages, [`virtual_memory`](DeviceMemoryResource::virtual_memory) returns
/// `None`, and every call here that can fail returns
/// [`NoVirtualMemory`](ResourceError::NoVirtualMemory).
impl<R: DeviceMemoryResource + 'static> VirtualMemory for BudgetResource<R> {
    fn granularity(&self) -> u64 {
        self.pages().map_or(1, VirtualMemory::granularity)
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        self.pages()?.reserve(bytes)
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<ReleaseError>> {
        match self.pages() {
            Ok(pages) => pages.release(range),
            Err(error) => Err(ReleaseError::new(error, range)),
        }
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        let pages = self.pages()?;
        let charged = bytes.min(MAX_BYTES);
        let charge = self.charge(charged, tag)?;
        let memory = pages.create(bytes, tag)?;
        charge.keep();
        self.account.record_peak(charged);
        self.add_charge(self.key(Item::Memory(memory.handle())), charged, tag);
        Ok(memory)
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        let pages = match self.pages() {
            Ok(pages) => pages,
            Err(error) => return Err(DestroyError::new(error, memory)),
        };
        let key = self.key(Item::Memory(memory.handle()));
        let tag = memory.tag();
        // First: once the memory is destroyed other memory may have its handle.
        let charged = self.tree.charges.remove(key, u64::MAX);
        let result = pages.destroy(memory);
        match (&result, charged) {
            (_, None) => {}
            (Ok(()), Some(bytes)) => self.tree.release(&self.account, bytes, tag),
            (Err(_), Some(bytes)) => self.add_charge(key, bytes, tag),
        }
        result
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.pages()?.map(memory, address)
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.pages()?.unmap(memory, address)
    }
}

impl<R: DeviceMemoryResource + 'static> BudgetResource<R> {
    fn pages(&self) -> ResourceResult<&dyn VirtualMemory> {
        let device_ordinal = self.upstream().device_ordinal();
        let missing = || ResourceError::no_virtual_memory(device_ordinal);
        self.upstream().virtual_memory().ok_or_else(missing)
    }
}
