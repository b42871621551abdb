//! R7: a launch that is dropped unfinished is reported as a warning, and as an error if its
//! uses could not be recorded; so is a recorder with uses that was never launched, as a warning.

#![cfg(feature = "tracing")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::spy::Context;
use dmr_launch::LaunchRecorder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Fields by name.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// Keeps this crate's events.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<(Level, Fields)>>>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("dmr_launch")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push((*event.metadata().level(), fields));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Prepares a launch that uses two blocks, and drops it.
fn drop_unfinished(ctx: &Context) {
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    recorder.read(&ctx.block());
    drop(recorder.prepare(ctx).unwrap());
}

/// Declares two uses, and drops the recorder.
fn drop_unlaunched(ctx: &Context) {
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    recorder.read(&ctx.block());
}

/// One test, because the subscriber is the process's.
#[test]
fn a_launch_that_is_dropped_without_a_commit_is_reported_with_its_stream_and_uses() {
    let _alone = crate::ALONE.lock();
    let events = Events::default();
    tracing::subscriber::set_global_default(events.clone()).unwrap();
    let ctx = Context::tracking();
    drop_unfinished(&ctx);
    ctx.spy.fails_finish.store(true, Ordering::Relaxed);
    drop_unfinished(&ctx);
    drop_unlaunched(&ctx);
    drop(LaunchRecorder::new_strict(ctx.stream()));
    let events = events.0.lock().unwrap();
    let [(warning, recorded), (error, failed), (unlaunched, never)] = &events[..] else {
        panic!("{} events", events.len())
    };
    assert_eq!((*warning, *error), (Level::WARN, Level::ERROR));
    for Fields(fields) in [recorded, failed] {
        let stream = ctx.stream().to_string();
        assert_eq!((fields["stream"].as_str(), fields["uses"].as_str()), (stream.as_str(), "2"));
        assert!(fields["message"].contains("dropped unfinished"), "{fields:?}");
    }
    assert_eq!(*unlaunched, Level::WARN);
    let stream = ctx.stream().to_string();
    assert_eq!((never.0["stream"].as_str(), never.0["uses"].as_str()), (stream.as_str(), "2"));
    assert!(never.0["message"].contains("dropped without a launch"), "{:?}", never.0);
    assert!(failed.0["error"].contains("cuEventRecord"), "{:?}", failed.0);
}
