//! R7: a launch that is dropped without a commit is reported as a warning, and as an error if its
//! uses could not be recorded.

#![cfg(feature = "tracing")]

mod spy;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use dmr_launch::LaunchRecorder;
use spy::Context;
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

/// Preflights a launch that uses two blocks, and drops it. Returns the events of that.
fn dropped(ctx: &Context) -> Vec<(Level, Fields)> {
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&ctx.block());
    recorder.read(&ctx.block());
    let launch = recorder.preflight(ctx).unwrap();
    let events = Events::default();
    tracing::subscriber::with_default(events.clone(), || drop(launch));
    std::mem::take(&mut *events.0.lock().unwrap())
}

#[test]
fn a_launch_that_is_dropped_without_a_commit_is_a_warning_with_its_stream_and_uses() {
    let ctx = Context::tracking();
    let events = dropped(&ctx);
    let [(level, Fields(fields))] = &events[..] else { panic!("{} events", events.len()) };
    assert_eq!(*level, Level::WARN);
    assert_eq!((&fields["stream"], &fields["uses"]), (&ctx.stream().to_string(), &"2".into()));
    assert!(fields["message"].contains("dropped without a commit"), "{fields:?}");
}

#[test]
fn uses_that_could_not_be_recorded_are_an_error_with_the_reason() {
    let ctx = Context::tracking();
    ctx.spy.fails_finish.store(true, Ordering::Relaxed);
    let events = dropped(&ctx);
    let [(level, Fields(fields))] = &events[..] else { panic!("{} events", events.len()) };
    assert_eq!(*level, Level::ERROR);
    assert!(fields["error"].contains("cuEventRecord"), "{fields:?}");
}
