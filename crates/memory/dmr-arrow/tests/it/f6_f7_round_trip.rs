//! F6, F7: columns of every type come from another library and go to one as they are.

use dmr_arrow::{ArrowColumn, ColumnBuffer, ColumnParts};
use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_external::ForeignBlocks;
use dmr_streams::{DeviceContext, StreamLease};
use dmr_testkit::Rig;
use fastrand::Rng;

use crate::random::{column, normal};
use crate::support::consumer::{assert_same, given, read, release};
use crate::support::{Gpu, Producer, Spec, taken};

/// The number of trees, unless `DMR_ARROW_TREES` says otherwise.
fn trees() -> u64 {
    std::env::var("DMR_ARROW_TREES").ok().and_then(|it| it.parse().ok()).unwrap_or(150)
}

#[test]
fn random_columns_of_another_library_go_to_another_one_as_they_are() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let mut producer = Producer::new(&rig);
    let consumer = rig.device().context().new_stream().unwrap();
    for seed in 0..trees() {
        let mut rng = Rng::with_seed(seed);
        let rows = rng.usize(..12);
        let spec = normal(column(&mut rng, 3, rows));
        producer.sizes_on_host = rng.bool();
        let mut made = producer.make(&spec);
        let (array, schema) = taken(&mut made.0, &mut made.1);
        // SAFETY: the structs are as the specification says.
        let imported = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) };
        let imported = imported.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{spec:?}"));
        assert_same(&imported, &spec, other.id());
        let exported = imported.export(&gpu, other.id()).unwrap();
        drop(imported);
        let (array, schema) = given(exported.array, exported.schema);
        let found = read(&consumer, &array, &schema, &spec, true);
        assert_eq!(found, spec, "seed {seed}");
        release(array, schema);
        producer.releases.wait_for(seed as usize + 1);
    }
    drop((gpu, home, other, producer, consumer));
    rig.assert_clean();
}

#[test]
fn random_columns_of_own_buffers_go_to_another_library_and_back() {
    let rig = Rig::new();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let consumer = rig.device().context().new_stream().unwrap();
    for seed in 0..trees() {
        let mut rng = Rng::with_seed(1_000_000 + seed);
        let rows = rng.usize(..12);
        let spec = normal(column(&mut rng, 3, rows));
        let own = own(&gpu, &home, &Spec { metadata: Vec::new(), ..spec.clone() });
        let exported = own.export(&gpu, other.id()).unwrap();
        let (mut array, mut schema) = given(exported.array, exported.schema);
        let expected = without_metadata(spec);
        assert_eq!(read(&consumer, &array, &schema, &expected, true), expected, "seed {seed}");
        // What comes back has the buffers of before.
        let (back, of) = taken(&mut array, &mut schema);
        // SAFETY: as they were exported.
        let back = unsafe { ArrowColumn::import(&gpu, home.id(), back, of) }.unwrap();
        assert_same(&back, &expected, home.id());
        assert_eq!(
            ForeignBlocks::of(&gpu).resource().usage().total_allocated,
            0,
            "nothing is adopted"
        );
        for (own, back) in own.buffers().iter().zip(back.buffers()) {
            let address = |it: &Option<ColumnBuffer>| it.as_ref().map(ColumnBuffer::device_ptr);
            assert_eq!(address(own), address(back));
        }
    }
    drop((gpu, home, other, consumer));
    rig.assert_clean();
}

fn without_metadata(spec: Spec) -> Spec {
    let below = |it: Box<Spec>| Box::new(without_metadata(*it));
    Spec {
        metadata: Vec::new(),
        children: spec.children.into_iter().map(without_metadata).collect(),
        dictionary: spec.dictionary.map(below),
        ..spec
    }
}

fn own(gpu: &Gpu, stream: &StreamLease, spec: &Spec) -> ArrowColumn {
    let buffer = |it: &Option<Vec<u8>>| {
        let host = it.as_ref().filter(|host| !host.is_empty())?;
        Some(ColumnBuffer::from(DeviceBuffer::from_host(gpu, stream, host).unwrap()))
    };
    let parts = ColumnParts {
        format: spec.format.clone(),
        name: spec.name.clone(),
        flags: spec.flags,
        length: spec.length,
        offset: spec.offset,
        null_count: usize::try_from(spec.null_count).ok(),
        buffers: spec.buffers.iter().map(buffer).collect(),
        children: spec.children.iter().map(|it| own(gpu, stream, it)).collect(),
        dictionary: spec.dictionary.as_deref().map(|it| Box::new(own(gpu, stream, it))),
    };
    ArrowColumn::new(parts).unwrap_or_else(|error| panic!("{error}\n{spec:?}"))
}
