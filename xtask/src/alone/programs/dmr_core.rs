//! `dmr-core` alone: a resource of one's own, and with `conformance` a check of the contract on it.

mod own_resource;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId, StreamPoolId};
use own_resource::Addresses;

fn main() {
    let memory = Addresses::new(StreamPoolId::next().unwrap());
    let block = memory.allocate(1000, StreamId::DEFAULT, AllocTag::new("alone")).unwrap();
    assert_eq!((block.bytes(), memory.usage().live), (1000, 1000));
    memory.deallocate(block).unwrap();
    assert_eq!(memory.bytes_outstanding(), 0);
    #[cfg(feature = "conformance")]
    conforming::check();
}

#[cfg(feature = "conformance")]
mod conforming {
    use dmr_core::conformance::{Harness, run};
    use dmr_core::{DeviceBlock, DeviceMemoryResource, ResourceResult, StreamId, StreamPoolId};

    use super::Addresses;

    pub(crate) fn check() {
        let report = run("zero_bytes_are_refused", || {
            let pool = StreamPoolId::next().unwrap();
            NoWork { pool, memory: Addresses::new(pool) }
        });
        assert!(report.is_ok(), "{report}");
    }

    struct NoWork {
        pool: StreamPoolId,
        memory: Addresses,
    }

    impl Harness for NoWork {
        fn resource(&self) -> &dyn DeviceMemoryResource {
            &self.memory
        }

        fn streams(&self) -> [StreamId; 2] {
            [0, 1].map(|slot| StreamId::from_parts(self.pool, slot, 1).unwrap())
        }

        fn foreign_stream(&self) -> StreamId {
            StreamId::from_parts(StreamPoolId::next().unwrap(), 0, 1).unwrap()
        }

        fn returned_stream(&self) -> StreamId {
            StreamId::from_parts(self.pool, 0, 0).unwrap()
        }

        fn device_bytes(&self) -> u64 {
            1 << 30
        }

        fn fill(&self, _: StreamId, _: &DeviceBlock, _: u8) -> ResourceResult<()> {
            Ok(())
        }

        fn check(&self, _: StreamId, _: &DeviceBlock, _: u8) -> ResourceResult<Option<usize>> {
            Ok(None)
        }

        fn delay(&self, _: StreamId) -> ResourceResult<()> {
            Ok(())
        }

        fn synchronize(&self) -> ResourceResult<()> {
            Ok(())
        }

        fn verdict(&self) -> Result<(), String> {
            Ok(())
        }
    }
}
