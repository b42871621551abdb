//! [`SharedLimit`]: a member of an account, for the threads of this process.
//!
//! `flock` belongs to the open file, so it excludes other processes and not other threads of this
//! one: the gate does that. A release returns nothing and must not get lost, even while another
//! process has the file. So it is added to a counter first, and whichever thread has the member
//! next writes it; if the file stays locked, a thread is started for that.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dmr_core::process::LeakedInChild;
use dmr_core::sync::{ignore_poison, lock};

use crate::AccountUsage;
use crate::config::SharedLimitConfig;
use crate::error::{ChargeError, Problem, SharedLimitError};
use crate::file::{self, AccountFile};
use crate::member::{Largest, Member, Refused};
use crate::table::Table;

/// A member of an account: what this process has charged to the limit of a GPU.
///
/// A process can have several members; each has a record and charges of its own. A member that is
/// dropped leaves the account, unless bytes are still charged: those stay charged until the process
/// ends.
///
/// In a forked child of the process that joined, which has no GPU memory, nothing is charged or
/// released, and calls that can fail return [`Problem::Forked`].
pub struct SharedLimit {
    config: SharedLimitConfig,
    path: PathBuf,
    gate: LeakedInChild<Arc<Gate>>,
}

/// The member and its file, for one thread at a time.
struct Gate {
    /// `None` while a thread has it.
    session: Mutex<Option<Session>>,
    returned: Condvar,
    /// Bytes by which the next thread with the session changes what is charged.
    change: AtomicI64,
    /// Set while a thread retries a change that the file does not have yet.
    is_retried: AtomicBool,
}

struct Session {
    file: AccountFile,
    member: Member,
}

/// The time for which a change waits that cannot be refused.
const PATIENCE_OF_CHANGE: Duration = Duration::from_millis(50);
/// The time for which the thread that retries a change waits for the file, and then until it tries
/// again.
const PATIENCE_OF_RETRY: Duration = Duration::from_millis(5);
const PAUSE_OF_RETRY: Duration = Duration::from_millis(50);

impl SharedLimit {
    /// Joins the account of a GPU. The first living member sets the limit.
    ///
    /// # Errors
    ///
    /// [`Problem`] has them all, and what to do; the most frequent is
    /// [`LimitDiffers`](Problem::LimitDiffers). Nothing is charged then.
    pub fn join(config: &SharedLimitConfig) -> Result<Self, SharedLimitError> {
        let path = config.path(file::user())?;
        let located = |problem| SharedLimitError { path: path.clone(), problem };
        let identity = file::identity(config).map_err(located)?;
        let start = Instant::now();
        let session = loop {
            let mut file = AccountFile::open(&path)?;
            match Member::join(&mut file, identity, config.patience) {
                Ok(member) => break Session { file, member },
                // The last member left after the file was opened: the path leads to another file,
                // or to none.
                Err(Problem::Changed { .. }) if start.elapsed() < config.patience => {}
                Err(problem) => return Err(located(problem)),
            }
        };
        let session = Mutex::new(Some(session));
        let gate = Arc::new(Gate {
            session,
            returned: Condvar::new(),
            change: AtomicI64::new(0),
            is_retried: AtomicBool::new(false),
        });
        Ok(Self { config: config.clone(), path, gate: LeakedInChild::new(gate) })
    }

    /// Returns the limit, in bytes.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.config.limit
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.config.group
    }

    /// Charges `bytes`. `largest` is what others see of this process when they are refused.
    ///
    /// # Errors
    ///
    /// [`OverLimit`](ChargeError::OverLimit) if the bytes do not fit beside what all living
    /// processes have charged; [`Account`](ChargeError::Account) if the account cannot be used, and
    /// after the [lock timeout](SharedLimitConfig::with_lock_timeout). Nothing is charged then.
    pub fn charge(&self, bytes: u64, largest: Largest<'_>) -> Result<(), ChargeError> {
        self.charge_within(bytes, largest, self.config.patience)
    }

    /// Charges `bytes` as [`charge`](Self::charge) does, and waits for the lock of the account no
    /// longer than `patience`, nor than the lock timeout.
    ///
    /// # Errors
    ///
    /// As [`charge`](Self::charge).
    pub fn charge_within(
        &self,
        bytes: u64,
        largest: Largest<'_>,
        patience: Duration,
    ) -> Result<(), ChargeError> {
        let patience = patience.min(self.config.patience);
        self.with_session(patience, |Session { file, member }, left| {
            member.charge(file, bytes, largest, left).map_err(|refused| match refused {
                Refused::OverLimit(refusal) => ChargeError::OverLimit(refusal),
                Refused::Problem(problem) => self.error(problem).into(),
            })
        })?
    }

    /// Releases `bytes` that were charged. `largest` is what others see of this process from now
    /// on.
    ///
    /// If the account cannot be locked within 50 ms, the bytes stay charged until it can: a thread
    /// of this process, which ends then, tries every 50 ms, and so does each call of this member.
    pub fn release(&self, bytes: u64, largest: Largest<'_>) {
        self.change(0_i64.saturating_sub_unsigned(bytes), largest);
    }

    /// Charges `bytes` that are in use already, even if that exceeds the limit; then nothing more
    /// is charged until it fits. If the account cannot be locked within 50 ms, they are charged
    /// later, as [`release`](Self::release) has it.
    pub fn charge_existing(&self, bytes: u64, largest: Largest<'_>) {
        self.change(0_i64.saturating_add_unsigned(bytes), largest);
    }

    fn change(&self, bytes: i64, largest: Largest<'_>) {
        let Some(gate) = self.gate.current() else { return };
        // First, so that it is not lost.
        gate.change.fetch_add(bytes, Ordering::Relaxed);
        gate.update(self.patience_of_change(), |member| member.set_largest(largest));
    }

    fn patience_of_change(&self) -> Duration {
        self.config.patience.min(PATIENCE_OF_CHANGE)
    }

    /// Returns what each living process has charged.
    ///
    /// # Errors
    ///
    /// Those of an account that cannot be read.
    pub fn usage(&self) -> Result<AccountUsage, SharedLimitError> {
        self.usage_within(self.config.patience)
    }

    /// Returns the same as [`usage`](Self::usage), and waits for the lock of the account no longer
    /// than `patience`, nor than the lock timeout.
    ///
    /// # Errors
    ///
    /// As [`usage`](Self::usage).
    pub fn usage_within(&self, patience: Duration) -> Result<AccountUsage, SharedLimitError> {
        let patience = patience.min(self.config.patience);
        let processes = self
            .with_session(patience, |Session { file, .. }, left| {
                let mut table = Table::lock(file, left)?;
                table.ignore_dead();
                Ok(table.holders())
            })?
            .map_err(|problem: Problem| self.error(problem))?;
        let SharedLimitConfig { uuid, limit, group, .. } = self.config.clone();
        Ok(AccountUsage { uuid, limit, group, processes })
    }

    /// Calls [`Gate::with_session`], unless in a forked child.
    fn with_session<T>(
        &self,
        patience: Duration,
        call: impl FnOnce(&mut Session, Duration) -> T,
    ) -> Result<T, SharedLimitError> {
        let gate = self.gate.current().ok_or(Problem::Forked);
        gate.and_then(|gate| gate.with_session(patience, call))
            .map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: Problem) -> SharedLimitError {
        SharedLimitError { path: self.path.clone(), problem }
    }
}

impl Gate {
    /// Waits until no other thread uses the member, and does so; `call` gets what is left of the
    /// time to wait.
    fn with_session<T>(
        &self,
        patience: Duration,
        call: impl FnOnce(&mut Session, Duration) -> T,
    ) -> Result<T, Problem> {
        let start = Instant::now();
        let Self { session, returned, change, .. } = self;
        let is_taken = |session: &mut Option<Session>| session.is_none();
        let (mut guard, _) =
            ignore_poison(returned.wait_timeout_while(lock(session), patience, is_taken));
        let Some(mut taken) = guard.take() else {
            let holder = Some(std::process::id());
            return Err(Problem::Busy { waited: patience, holder });
        };
        // The lock is not held while the file is waited for.
        drop(guard);
        taken.member.change(change.swap(0, Ordering::Relaxed));
        let result = call(&mut taken, patience.saturating_sub(start.elapsed()));
        *lock(session) = Some(taken);
        returned.notify_one();
        Ok(result)
    }

    /// Changes the member, and writes it to the file. If the account is busy, a thread retries
    /// that.
    fn update(self: &Arc<Self>, patience: Duration, change: impl FnOnce(&mut Member)) {
        let written = self.with_session(patience, |Session { file, member }, left| {
            change(member);
            let written = member.write_changes(file, left);
            if is_busy(&written) {
                self.start_retries();
            }
        });
        if written.is_err() {
            self.start_retries();
        }
    }

    /// Starts the thread that retries, unless there is one.
    fn start_retries(self: &Arc<Self>) {
        // AcqRel: `retry` clears it and reads the change then.
        if self.is_retried.swap(true, Ordering::AcqRel) {
            return;
        }
        let gate = Arc::clone(self);
        let retry = move || while gate.retry() {};
        if thread::Builder::new().name("dmr-shared-limit".to_owned()).spawn(retry).is_err() {
            // The next call of the member does it.
            self.is_retried.store(false, Ordering::Release);
        }
    }

    /// Tries once to write the member to the file. Returns whether to try again.
    fn retry(&self) -> bool {
        thread::sleep(PAUSE_OF_RETRY);
        let is_done = self.with_session(PATIENCE_OF_RETRY, |Session { file, member }, left| {
            let is_done = !is_busy(&member.write_changes(file, left));
            if is_done {
                // With the session: a change that finds the account busy from now on starts another
                // thread.
                self.is_retried.swap(false, Ordering::AcqRel);
            }
            is_done
        });
        // A change that has not got the session meanwhile has left it to this thread.
        let is_left = || self.change.load(Ordering::Relaxed) != 0;
        is_done != Ok(true) || is_left() && !self.is_retried.swap(true, Ordering::AcqRel)
    }
}

fn is_busy(result: &Result<(), Problem>) -> bool {
    matches!(result, Err(Problem::Busy { .. }))
}

impl Drop for SharedLimit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.current() {
            // A record that is not emptied is empty when the process has ended.
            gate.update(self.config.patience, Member::leave);
        }
    }
}

impl fmt::Debug for SharedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedLimitConfig { limit, group, .. } = &self.config;
        f.debug_struct("SharedLimit")
            .field("limit", limit)
            .field("group", group)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use dmr_core::error::ProcessHolder;

    use crate::layout::{Header, Namespaces, ProcessId};
    use crate::member::Identity;

    const LIMIT: u64 = 1000;

    struct Account {
        config: SharedLimitConfig,
        header: Header,
        process: ProcessId,
        _directory: tempfile::TempDir,
    }

    /// Returns an account that no process has joined, and this process.
    fn account() -> Account {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = SharedLimitConfig::new([1; 16], LIMIT).with_directory(directory.path());
        let Identity { header, process } = file::identity(&config).unwrap();
        Account { config, header, process, _directory: directory }
    }

    /// Joins as if this process were another one, and charges everything.
    fn charge_all(account: &Account, header: Header, process: ProcessId) {
        let mut file = AccountFile::open(&account.config.path(file::user()).unwrap()).unwrap();
        let patience = Duration::ZERO;
        let mut member = Member::join(&mut file, Identity { header, process }, patience).unwrap();
        member.charge(&mut file, header.limit, Largest::default(), patience).unwrap();
    }

    #[test]
    fn the_bytes_of_an_ended_process_are_released_although_its_pid_has_another_process() {
        let account = account();
        let former = ProcessId { start: account.process.start - 1, ..account.process };
        let header = Header { limit: LIMIT * 2, ..account.header };
        charge_all(&account, header, former);
        // The limit of the ended process is not in force any more.
        let limit = SharedLimit::join(&account.config).unwrap();
        assert_eq!(limit.usage().unwrap().used(), 0);
        limit.charge(LIMIT, Largest::default()).unwrap();
        assert_eq!(limit.usage().unwrap().used(), LIMIT);
    }

    #[test]
    fn a_process_that_ends_while_others_are_members_is_swept_when_a_charge_does_not_fit() {
        let account = account();
        let limit = SharedLimit::join(&account.config).unwrap();
        let former = ProcessId { start: account.process.start - 1, ..account.process };
        charge_all(&account, account.header, former);
        assert_eq!(
            limit.usage().unwrap().processes,
            [ProcessHolder {
                pid: account.process.pid,
                name: String::from(account.header.set_by_name).into(),
                ..ProcessHolder::default()
            }]
        );
        limit.charge(LIMIT, Largest::default()).unwrap();
    }

    #[test]
    fn an_account_of_another_namespace_is_refused_and_left_alone() {
        let own = account().header.namespaces;
        let others =
            [Namespaces { pid: own.pid + 1, ..own }, Namespaces { time: own.time + 1, ..own }];
        for namespaces in others {
            let account = account();
            // No process that is seen from here.
            let process = ProcessId { start: 1, ..account.process };
            charge_all(&account, Header { namespaces, ..account.header }, process);
            let path = account.config.path(file::user()).unwrap();
            let before = std::fs::read(&path).unwrap();
            let error = SharedLimit::join(&account.config).unwrap_err();
            assert_eq!(error.problem, Problem::Namespace);
            assert!(error.to_string().contains("--pid=host"), "{error}");
            let listed = crate::accounts(path.parent()).unwrap();
            assert_eq!(
                listed,
                [Err(SharedLimitError { path: path.clone(), problem: Problem::Namespace })]
            );
            assert_eq!(std::fs::read(path).unwrap(), before);
        }
    }

    #[test]
    fn an_account_under_the_name_of_another_gpu_is_damage() {
        let account = account();
        charge_all(&account, Header { uuid: [2; 16], ..account.header }, account.process);
        let problem = SharedLimit::join(&account.config).unwrap_err().problem;
        assert_eq!(problem, Problem::Corrupt { what: "of another GPU or group" });
    }
}
