//! Measures what the length of a wait costs: of a loop in which two streams use a block in turn,
//! while nothing is recorded, while waits are recorded, and while one in N of them is measured.
//!
//! `cargo run --release -p dmr-streams --example timed_waits`

#![allow(clippy::print_stdout, reason = "prints figures")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use dmr_core::{
    Access, AllocTag, BlockId, BlockUse, DeviceMemoryResource, StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_recorder::{RecorderConfig, start, stop};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

/// Uses of each stream in a round: few enough for the queues of the driver.
const USES: u32 = 200;
const ROUNDS: u32 = 50;

fn main() {
    let rig = Rig::new();
    println!("{}", rig.device());
    let streams = rig.streams();
    let direct = DirectCudaResource::new(Arc::clone(streams));
    let resource = Tracked::new(direct, Arc::clone(streams)).expect("tracked blocks");
    let [writer, reader] = [rig.stream(), rig.stream()];
    let block = resource.allocate(1 << 20, writer.id(), AllocTag::UNTAGGED).expect("a block");
    let one_in = |n| Some(RecorderConfig::new().time_waits(NonZeroU32::new(n).expect("not 0")));
    let settings = [
        ("off", None),
        ("recorded", Some(RecorderConfig::new())),
        ("one in 1,000 measured", one_in(1_000)),
        ("one in 100 measured", one_in(100)),
        ("one in 10 measured", one_in(10)),
        ("each measured, if there is room", one_in(1)),
    ];
    println!("{:<32} {:>10} {:>16}", "", "us a wait", "with the device");
    for _ in 0..3 {
        for (name, config) in &settings {
            if let Some(config) = config.clone() {
                start(config).expect("the recorder");
            }
            let figures = measure(&rig, &resource, block.id(), [writer.id(), reader.id()]);
            println!("{name:<32} {:>10.3} {:>16.3}", figures.host, figures.all);
            stop();
        }
    }
    resource.deallocate(block).expect("the free");
}

/// Microseconds of a use that waits for the other stream: medians of all rounds.
struct Figures {
    /// Until it is queued.
    host: f64,
    /// Until the device has done it.
    all: f64,
}

fn measure(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    block: BlockId,
    streams: [StreamId; 2],
) -> Figures {
    let mut host = Vec::new();
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..USES {
            for stream in streams {
                let uses = [BlockUse::new(block, Access::Write)];
                let tokens = resource.prepare_uses(&uses, stream).expect("the wait");
                resource.finish_uses(tokens).expect("the event");
            }
        }
        let each = |began: Instant| began.elapsed().as_secs_f64() * 1e6 / f64::from(2 * USES);
        host.push(each(began));
        rig.device().synchronize().expect("the work");
        all.push(each(began));
    }
    let median = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Figures { host: median(host), all: median(all) }
}
