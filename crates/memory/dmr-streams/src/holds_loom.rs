//! Models of [`Holds`]: a call against a retirement, in every order of their steps.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::Holds;

/// A stream, which calls use and a retirement destroys.
struct Stream {
    holds: Holds,
    /// Stands for the driver's stream: the model fails if a call and the destruction meet.
    submitted: UnsafeCell<u32>,
}

impl Stream {
    fn new() -> Arc<Self> {
        let holds = Holds::retired();
        holds.reopen();
        Arc::new(Self { holds, submitted: UnsafeCell::new(0) })
    }

    /// Uses the stream. May run at the same time as a record, not as a destruction.
    fn call(&self) -> bool {
        let is_entered = self.holds.enter();
        if is_entered {
            self.submitted.with(|submitted| {
                // SAFETY: loom checks that no thread writes meanwhile.
                let _ = unsafe { *submitted };
            });
            self.holds.leave();
        }
        is_entered
    }

    /// Records, and destroys the stream if it was retired.
    fn retire(&self) -> bool {
        let Ok(closing) = self.holds.begin_closing() else { return false };
        self.submitted.with(|submitted| {
            // SAFETY: as above.
            let _ = unsafe { *submitted };
        });
        let is_closed = closing.close();
        if is_closed {
            self.submitted.with_mut(|submitted| {
                // SAFETY: loom checks that no thread reads meanwhile.
                unsafe { *submitted = u32::MAX };
            });
        }
        is_closed
    }
}

// SAFETY: loom checks each access to the cells.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

#[test]
fn no_call_touches_a_stream_that_is_retired() {
    loom::model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let called = thread::spawn(move || other.call());
        let is_retired = stream.retire();
        let is_entered = called.join().unwrap();
        // One of them has succeeded, and both only if the call came first.
        assert!(is_retired || is_entered);
        assert_eq!(stream.holds.is_retired(), is_retired);
        // A retirement that was refused can be made again.
        assert!(is_retired || stream.retire());
        assert!(!stream.call());
    });
}

#[test]
fn a_stream_is_retired_once() {
    loom::model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let first = thread::spawn(move || other.retire());
        let second = stream.retire();
        assert!(!(first.join().unwrap() && second));
        assert!(stream.holds.is_retired() || stream.retire());
    });
}

/// The event of a retirement stands for all work. A second retirement may begin after the call.
#[test]
fn no_work_is_submitted_between_the_last_record_and_the_end() {
    loom::model(|| {
        let stream = Stream::new();
        let work = Arc::new(AtomicU32::new(0));
        let retire = |stream: Arc<Stream>, work: Arc<AtomicU32>| {
            move || {
                let closing = stream.holds.begin_closing().ok()?;
                let recorded = work.load(Ordering::Relaxed);
                closing.close().then_some(recorded)
            }
        };
        let [first, second] = [(); 2].map(|()| retire(Arc::clone(&stream), Arc::clone(&work)));
        let caller = (Arc::clone(&stream), Arc::clone(&work));
        let called = thread::spawn(move || {
            let (stream, work) = caller;
            if stream.holds.enter() {
                work.fetch_add(1, Ordering::Relaxed);
                stream.holds.leave();
            }
        });
        let theirs = thread::spawn(second);
        let retired = [first(), theirs.join().unwrap()];
        called.join().unwrap();
        assert!(retired.iter().flatten().count() <= 1);
        if let Some(&recorded) = retired.iter().flatten().next() {
            assert_eq!(recorded, work.load(Ordering::Relaxed), "work after the last event");
        }
    });
}

#[test]
fn a_launch_outlives_the_call_that_began_it() {
    loom::model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let launched = thread::spawn(move || {
            if !other.holds.enter() {
                return false;
            }
            other.holds.begin_launch();
            other.holds.begin_launch();
            other.holds.leave();
            true
        });
        let is_retired = stream.retire();
        let is_open = launched.join().unwrap();
        assert_ne!(is_open, is_retired);
        if is_open {
            assert!(!stream.retire());
            stream.holds.end_launch();
            assert!(!stream.retire());
            stream.holds.end_launch();
            assert!(stream.retire());
        }
    });
}

/// A slot whose first stream has the number 1, and the next one 2. A call checks the number before
/// and after it enters, as `StreamPool::entered` does.
#[test]
fn a_call_with_the_number_of_a_retired_stream_does_not_enter_the_next_one() {
    loom::model(|| {
        let stream = Stream::new();
        let number = Arc::new(AtomicU32::new(1));
        let caller = (Arc::clone(&stream), Arc::clone(&number));
        let called = thread::spawn(move || {
            let (stream, number) = caller;
            let is_admitted = || number.load(Ordering::Acquire) == 1;
            if !is_admitted() || !stream.holds.enter() {
                return;
            }
            if is_admitted() {
                stream.submitted.with(|submitted| {
                    // SAFETY: loom checks that no thread writes meanwhile.
                    assert_ne!(unsafe { *submitted }, 2, "submitted to the next stream");
                });
            }
            stream.holds.leave();
        });
        if stream.retire() {
            stream.submitted.with_mut(|submitted| {
                // SAFETY: loom checks that no thread reads meanwhile.
                unsafe { *submitted = 2 };
            });
            number.store(2, Ordering::Release);
            stream.holds.reopen();
        }
        called.join().unwrap();
        assert!(!stream.holds.is_retired());
    });
}
