//! The smallest executor: it runs one future on the calling thread, which sleeps meanwhile.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A future that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs a future on the calling thread until it is ready, and returns its output.
///
/// # Panics
///
/// If the future is not ready after 30 s.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let mut context = Context::from_waker(&waker);
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let left = LIMIT.saturating_sub(start.elapsed());
        assert!(!left.is_zero(), "the future hangs");
        thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that counts its calls.
#[derive(Debug, Default)]
pub struct CountedWakes(AtomicUsize);

impl CountedWakes {
    /// Returns the number of calls so far.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Polls a future once with this waker.
    pub fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(self));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }
}

impl Wake for CountedWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
