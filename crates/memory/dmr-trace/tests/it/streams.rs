//! The streams of the trace are kept apart as long as there are streams.

use std::collections::HashSet;

use dmr_core::{ResourceError, ResourceResult, StreamId};
use dmr_trace::{Replay, ReplayError, ReplayOptions, ReplayStreams};

use crate::support::{Fake, reader};

fn trace_on(streams: u64) -> String {
    let rows = (0..streams).map(|n| format!("allocate,{n},16,{}\n", n * 1000));
    String::from("action,ptr,bytes,stream\n") + &rows.collect::<String>()
}

#[test]
fn more_streams_in_the_trace_than_there_are_get_folded_and_reported() {
    let fake = Fake::new();
    let summary = fake.replay(&trace_on(5), ReplayOptions::new()).unwrap();
    let used: Vec<_> = fake.calls().iter().map(|call| call.1.slot()).collect();
    assert_eq!(used, [0, 1, 0, 1, 0]);
    assert_eq!((summary.streams, summary.trace_streams, summary.folded_streams), (2, 5, 3));
    assert!(summary.to_string().contains("2 streams (for 5 of the trace)"), "{summary}");
}

#[test]
fn only_as_many_streams_are_opened_as_the_trace_has() {
    struct Counting(Vec<StreamId>, usize);
    impl ReplayStreams for Counting {
        fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>> {
            assert_eq!(nth, self.1, "each is asked for once, in order");
            self.1 += 1;
            Ok(self.0.get(nth).copied())
        }
    }
    let fake = Fake::new();
    let mut streams = Counting(fake.streams(8), 0);
    Replay::new(&fake).run(reader(&trace_on(3)), &mut streams, &mut ()).unwrap();
    assert_eq!(streams.1, 3);
}

#[test]
fn one_number_on_two_devices_is_two_streams() {
    let fake = Fake::new();
    let trace = "action,ptr,bytes,stream,device\nallocate,1,16,0,0\nallocate,1,16,0,1\n";
    let summary = fake.replay(trace, ReplayOptions::new()).unwrap();
    let used: HashSet<_> = fake.calls().iter().map(|call| call.1).collect();
    assert_eq!((used.len(), summary.trace_devices, summary.left_over.count), (2, 2, 2));
}

#[test]
fn a_stream_that_cannot_be_opened_ends_the_replay_at_that_line() {
    struct Refusing;
    impl ReplayStreams for Refusing {
        fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>> {
            if nth == 0 { Ok(Some(StreamId::DEFAULT)) } else { Err(ResourceError::zero_size()) }
        }
    }
    let fake = Fake::new();
    let error = Replay::new(&fake).run(reader(&trace_on(2)), &mut Refusing, &mut ()).unwrap_err();
    assert!(matches!(error, ReplayError::Stream { line: 3, .. }), "{error}");
    assert_eq!(dmr_core::DeviceMemoryResource::bytes_outstanding(&fake), 0);
}
