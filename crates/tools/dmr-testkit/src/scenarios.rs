//! Small programs on several streams, one for each kind of dependency. A program is correct with
//! all waits of the use table, and has a race without any one of them.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTrackingExt,
};
use dmr_streams::{PatternOps, StreamLease};

use crate::Rig;

const BYTES: usize = 4096;

/// A resource that tracks uses, and three streams, on which scenarios are run.
pub struct Stage {
    ops: Arc<PatternOps>,
    resource: Arc<dyn DeviceMemoryResource>,
    leases: [StreamLease; 3],
}

/// A program on a [`Stage`].
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The dependency that it has.
    pub name: &'static str,
    /// Runs it. It has deallocated all of its blocks when it returns, also after an error.
    pub play: fn(&Stage) -> ResourceResult<()>,
}

/// All scenarios, one for each kind of dependency.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "a read after a write", play: read_after_write },
    Scenario { name: "a write after a read", play: write_after_read },
    Scenario { name: "a write after two readers", play: write_after_two_readers },
    Scenario { name: "a write after a write", play: write_after_write },
    Scenario { name: "a free after another stream's read", play: free_after_read },
    Scenario { name: "a free after the home stream's own work", play: free_after_home_work },
    Scenario { name: "fresh memory used first on another stream", play: fresh_memory },
    Scenario { name: "memory that another stream has freed", play: takeover },
    Scenario { name: "a launch that uses two blocks of two streams", play: two_producers },
    Scenario { name: "an order that holds through a third stream", play: through_a_third },
    Scenario { name: "work that is recorded after it was submitted", play: recorded_late },
];

impl Stage {
    /// Leases the streams and loads the kernels, so that a scenario makes only its own
    /// driver calls.
    pub fn new(rig: &Rig, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        let ops = Arc::clone(rig.ops());
        let leases = [rig.stream(), rig.stream(), rig.stream()];
        let stage = Self { ops, resource, leases };
        let [a, ..] = stage.streams();
        let block = stage.allocate(a).expect("a block");
        stage.write(a, &block, 1).expect("a fill");
        stage.read(a, &block, 1).expect("a check");
        stage.free(block).expect("a free");
        assert_eq!(stage.wait_and_check(), Ok(()));
        stage
    }

    /// Returns the resource.
    pub fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    /// Returns the three streams.
    pub fn streams(&self) -> [StreamId; 3] {
        [0, 1, 2].map(|index| self.leases[index].id())
    }

    /// Waits for all work, reaps, and asserts that no check has found a wrong byte.
    pub fn wait_and_check(&self) -> ResourceResult<()> {
        for stream in self.streams() {
            self.ops.synchronize(stream)?;
        }
        self.resource.reap_pending()?;
        let wrong = self.ops.collect()?;
        assert!(wrong.is_empty(), "wrong bytes: {wrong:?}");
        Ok(())
    }

    fn allocate(&self, stream: StreamId) -> ResourceResult<DeviceBlock> {
        self.resource.allocate(BYTES, stream, AllocTag::new("scenario"))
    }

    /// Deallocates a block; a failed call returns the block, which is deallocated again.
    fn free(&self, block: DeviceBlock) -> ResourceResult<()> {
        let mut refused = match self.resource.deallocate(block) {
            Ok(_) => return Ok(()),
            Err(refused) => refused,
        };
        for _ in 0..3 {
            let error = refused.error.clone();
            match self.resource.deallocate(refused.block) {
                Ok(_) => return Err(error),
                Err(again) => refused = again,
            }
        }
        Err(refused.error)
    }

    fn write(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()> {
        self.launch(stream, &[BlockUse::new(block.id(), Access::Write)], || {
            self.fill_unrecorded(stream, block, byte)
        })
    }

    fn read(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()> {
        self.launch(stream, &[BlockUse::new(block.id(), Access::Read)], || {
            self.check_unrecorded(stream, block, byte)
        })
    }

    /// Prepares uses, submits work and finishes the uses. Work that failed may have been submitted
    /// in part.
    fn launch(
        &self,
        stream: StreamId,
        uses: &[BlockUse],
        submit: impl FnOnce() -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        let tokens = self.resource.prepare_uses(uses, stream)?;
        let submitted = submit();
        let finished = self.resource.finish_uses(tokens);
        submitted.and(finished)
    }

    fn fill_unrecorded(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<()> {
        self.ops.fill_pattern(block, 0..BYTES, u32::from_le_bytes([byte; 4]), stream)
    }

    fn check_unrecorded(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<()> {
        let pattern = u32::from_le_bytes([byte; 4]);
        self.ops.check_pattern(block, 0..BYTES, pattern, stream, u64::from(byte))
    }

    /// Allocates a block on `home`, calls `run` with it, and deallocates it, also after an error.
    fn with_block(
        &self,
        home: StreamId,
        run: impl FnOnce(&DeviceBlock) -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        let block = self.allocate(home)?;
        let result = run(&block);
        result.and(self.free(block))
    }
}

fn read_after_write(stage: &Stage) -> ResourceResult<()> {
    let [a, b, _] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.read(b, block, 1)
    })
}

fn write_after_read(stage: &Stage) -> ResourceResult<()> {
    let [a, b, _] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.read(b, block, 1)?;
        stage.write(a, block, 2)?;
        stage.read(a, block, 2)
    })
}

fn write_after_two_readers(stage: &Stage) -> ResourceResult<()> {
    let [a, b, c] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.read(b, block, 1)?;
        stage.read(c, block, 1)?;
        stage.write(a, block, 2)
    })
}

fn write_after_write(stage: &Stage) -> ResourceResult<()> {
    let [a, b, _] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.write(b, block, 2)?;
        stage.read(a, block, 2)
    })
}

fn free_after_read(stage: &Stage) -> ResourceResult<()> {
    let [a, b, c] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.read(b, block, 1)?;
        stage.read(c, block, 1)
    })
}

fn free_after_home_work(stage: &Stage) -> ResourceResult<()> {
    let [a, b, _] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.read(b, block, 1)?;
        // On its home stream work needs no recording.
        stage.check_unrecorded(a, block, 1)
    })
}

fn fresh_memory(stage: &Stage) -> ResourceResult<()> {
    let [a, b, _] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(b, block, 1)?;
        stage.read(b, block, 1)
    })
}

fn takeover(stage: &Stage) -> ResourceResult<()> {
    let [a, b, c] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(a, block, 1)?;
        stage.read(b, block, 1)
    })?;
    stage.with_block(c, |block| {
        stage.fill_unrecorded(c, block, 2)?;
        stage.check_unrecorded(c, block, 2)
    })
}

fn two_producers(stage: &Stage) -> ResourceResult<()> {
    let [a, b, c] = stage.streams();
    stage.with_block(a, |x| {
        stage.with_block(b, |y| {
            stage.write(a, x, 1)?;
            stage.write(b, y, 2)?;
            let uses = [x, y].map(|block| BlockUse::new(block.id(), Access::Read));
            stage.launch(c, &uses, || {
                stage.check_unrecorded(c, x, 1)?;
                stage.check_unrecorded(c, y, 2)
            })
        })
    })
}

fn through_a_third(stage: &Stage) -> ResourceResult<()> {
    let [a, b, c] = stage.streams();
    stage.with_block(a, |x| {
        stage.with_block(b, |y| {
            stage.write(a, x, 1)?;
            let uses = [BlockUse::new(x.id(), Access::Read), BlockUse::new(y.id(), Access::Write)];
            stage.launch(b, &uses, || {
                stage.check_unrecorded(b, x, 1)?;
                stage.fill_unrecorded(b, y, 2)
            })?;
            stage.read(c, y, 2)?;
            // `c` has waited for `b`, which had waited for `a`.
            stage.read(c, x, 1)
        })
    })
}

fn recorded_late(stage: &Stage) -> ResourceResult<()> {
    let [a, b, c] = stage.streams();
    stage.with_block(a, |block| {
        stage.write(b, block, 1)?;
        stage.check_unrecorded(b, block, 1)?;
        // The work is in flight: if it cannot be recorded, it must be waited for.
        stage.resource.record_block_use(block, b).or_else(|error: ResourceError| {
            stage.ops.synchronize(b)?;
            Err(error)
        })?;
        stage.write(c, block, 2)
    })
}
