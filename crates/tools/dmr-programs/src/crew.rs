//! Threads that execute lines of programs. They live as long as the crew, and programs reuse them.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use dmr_core::sync::lock;

use crate::failure::Failure;

type Work = Box<dyn FnOnce() + Send>;

/// The threads.
#[derive(Debug)]
pub struct Crew {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    work: Sender<Work>,
    /// Its file in /proc.
    stat: Option<PathBuf>,
}

/// The outcome of a line, once the line is done.
#[derive(Debug)]
pub(crate) struct Job(Mutex<Option<Result<(), Failure>>>);

impl Job {
    /// Returns the outcome of a line that is done.
    pub(crate) fn take(&self) -> Result<(), Failure> {
        let outcome = lock(&self.0).take();
        outcome.unwrap_or(Ok(()))
    }
}

impl Crew {
    /// Starts this many threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { members: (0..threads).map(|_| Member::start()).collect() }
    }

    /// Executes `line` on a thread. `line` reports its outcome through its argument when it is
    /// done.
    pub(crate) fn start(
        &self,
        thread: usize,
        line: impl FnOnce(&dyn Fn(Result<(), Failure>)) + Send + 'static,
    ) -> Arc<Job> {
        let job = Arc::new(Job(Mutex::new(None)));
        let result = Arc::clone(&job);
        let work = move || {
            line(&|outcome| {
                *lock(&result.0) = Some(outcome);
            });
        };
        let member = &self.members[thread % self.members.len()];
        // A thread ends only with the crew.
        let _ = member.work.send(Box::new(work));
        job
    }

    /// Returns whether the thread sleeps in the kernel.
    pub(crate) fn is_asleep(&self, thread: usize) -> bool {
        let member = &self.members[thread % self.members.len()];
        let Some(stat) = member.stat.as_ref().and_then(|path| fs::read_to_string(path).ok()) else {
            return false;
        };
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        state == Some('S')
    }
}

impl Member {
    fn start() -> Self {
        let (work, queue) = channel::<Work>();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let _ = tell.send(fs::read_link("/proc/thread-self").ok());
            queue.into_iter().for_each(|work| work());
        });
        let link = told.recv().ok().flatten();
        Self { work, stat: link.map(|link| PathBuf::from("/proc").join(link).join("stat")) }
    }
}
