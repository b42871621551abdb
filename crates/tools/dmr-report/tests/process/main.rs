//! The tests of the crate with the flight recorder: there is one in a process.

use std::sync::Arc;

use dmr::dmr_core::{Access, BlockUse};
use dmr::dmr_recorder::{RecorderConfig, write_recording_to};
use dmr::prelude::*;
use dmr_report::Model;
use dmr_report::analysis::stranded::Stranded;
use dmr_testkit::Rig;

const TAG: AllocTag = AllocTag::new("stranded");

/// Reads what has been recorded so far.
fn recorded(folder: &tempfile::TempDir) -> Model {
    let path = folder.path().join("now.rec");
    write_recording_to(std::fs::File::create(&path).unwrap()).unwrap();
    dmr_report::open(path).unwrap()
}

/// Compares what is stranded with what the runtime reports. A chunk may be larger than its block,
/// which a recording does not say: the rest of it counts as stranded.
fn compare(gpu: &DeviceRuntime, folder: &tempfile::TempDir, live: &[DeviceBlock]) {
    let report = gpu.report().unwrap();
    let reported: u64 = report.stranded.iter().map(|part| part.bytes).sum();
    let in_use: u64 = report.by_stream.iter().map(|of| of.in_use).sum();
    let needed: u64 = live.iter().map(|block| block.bytes().next_multiple_of(256) as u64).sum();
    let model = recorded(folder);
    let stranded = Stranded::of(&model).unwrap();
    let found = stranded.at(&model, model.events.len() as u32 - 1);
    assert_eq!(found, reported + (in_use - needed), "{report:?}");
}

#[test]
fn what_is_stranded_in_a_recording_is_what_the_runtime_reports() {
    let folder = tempfile::tempdir().unwrap();
    for page_size in [2 << 20, 0] {
        let rig = Rig::new();
        let config = PoolConfig::fast().with_page_size(page_size);
        let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Pool);
        let builder = builder.with_streams(Arc::clone(rig.streams())).pool_config(config);
        let recorder = RecorderConfig::new();
        let gpu = builder.flight_recorder(recorder).without_observer().build().unwrap();
        let streams = [(); 2].map(|()| gpu.streams().acquire().unwrap());
        let mut random = fastrand::Rng::with_seed(page_size + 7);
        let mut live = Vec::new();
        for step in 0..400 {
            let stream = &streams[random.usize(..2)];
            let shift = random.u64(..14);
            let bytes = (1 + random.u64(..1500)) << shift.min(12);
            if live.len() < 40 && random.u64(..3) > 0 {
                live.push(gpu.resource().allocate(bytes as usize, stream.id(), TAG).unwrap());
            } else if let Some(block) = live.pop() {
                if random.u64(..4) == 0 {
                    // Another stream still uses it when it is freed.
                    rig.delay(stream);
                    let uses = [BlockUse::new(block.id(), Access::Read)];
                    let open = gpu.resource().prepare_uses(&uses, stream.id()).unwrap();
                    gpu.resource().finish_uses(open).unwrap();
                }
                gpu.resource().deallocate(block).unwrap();
            }
            if step % 8 == 7 {
                compare(&gpu, &folder, &live);
            }
        }
        for block in live {
            gpu.resource().deallocate(block).unwrap();
        }
        gpu.resource().reap_pending().unwrap();
        drop((streams, gpu));
        dmr::dmr_recorder::stop();
        rig.assert_clean();
    }
}
