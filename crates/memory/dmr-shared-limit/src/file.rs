//! The storage that is a file in shared memory: opened with care, locked with `flock`.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dmr_core::process::ClosedInChild;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::error::{Problem, SharedLimitError};
use crate::layout::{Header, MAX_MEMBERS, ProcessId, Text, offset_of};
use crate::member::Identity;
use crate::storage::Storage;
use crate::{SharedLimitConfig, processes};

/// An open account.
#[derive(Debug)]
pub(crate) struct AccountFile {
    path: PathBuf,
    fd: ClosedInChild,
    /// Bytes of the file, when it was locked.
    len: usize,
}

/// Returns the user of this process.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns what this process would write into an account as its first member.
pub(crate) fn identity(config: &SharedLimitConfig) -> Result<Identity, Problem> {
    let process = processes::current()?;
    let header = Header {
        limit: config.limit,
        uuid: config.uuid,
        group: Text::new(&config.group),
        namespaces: processes::namespaces()?,
        set_by: process.pid,
        set_by_name: processes::name(),
    };
    Ok(Identity { header, process })
}

/// Returns an error unless pids and start times of an account can be compared with those seen from
/// here.
pub(crate) fn check_namespaces(header: &Header) -> Result<(), Problem> {
    if header.namespaces == processes::namespaces()? { Ok(()) } else { Err(Problem::Namespace) }
}

impl AccountFile {
    /// Opens the file of an account, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// [`NotInMemory`](Problem::NotInMemory), [`Foreign`](Problem::Foreign),
    /// [`System`](Problem::System).
    pub(crate) fn open(path: &Path) -> Result<Self, SharedLimitError> {
        let located = |problem| SharedLimitError { path: path.to_owned(), problem };
        check_directory(path.parent().unwrap_or(path))?;
        let fd = open_or_create(path).map_err(located)?;
        Self::checked(path, fd).map_err(located)
    }

    /// Opens the file of an account to read it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) fn open_to_read(path: &Path) -> Result<Self, Problem> {
        let fd = open(path, OFlags::RDONLY).map_err(|errno| refused("open", errno))?;
        Self::checked(path, fd)
    }

    fn checked(path: &Path, fd: OwnedFd) -> Result<Self, Problem> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| refused("fstat", errno))?;
        check_owner(&stat, user())?;
        let full = |_| refused("open", Errno::MFILE);
        let fd = ClosedInChild::new(fd).map_err(full)?;
        // The current directory may change.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, fd, len: 0 })
    }

    fn fd(&self) -> Result<BorrowedFd<'_>, Problem> {
        self.fd.get().ok_or(Problem::Forked)
    }

    fn stat(&self) -> Result<Stat, Problem> {
        rustix::fs::fstat(self.fd()?).map_err(|errno| refused("fstat", errno))
    }

    /// Tries to lock the file until `patience` is over.
    fn try_lock(&self, patience: Duration) -> Result<(), Problem> {
        const LONGEST_PAUSE: Duration = Duration::from_millis(1);
        let fd = self.fd()?;
        let start = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            // Also to read: shared locks that overlap would keep members away for as long as there
            // are readers.
            match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(refused("flock", errno)),
            }
            let waited = start.elapsed();
            if waited >= patience {
                return Err(Problem::Busy { waited: patience, holder: self.holder() });
            }
            thread::sleep(pause.min(patience - waited));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the pid of the process that has the lock.
    fn holder(&self) -> Option<u32> {
        let stat = self.stat().ok()?;
        let major = rustix::fs::major(stat.st_dev);
        let minor = rustix::fs::minor(stat.st_dev);
        let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
        // A lock that ends while the system lists them can hide another one.
        const READS: usize = 10;
        (0..READS).find_map(|_| holder(&fs::read_to_string("/proc/locks").ok()?, &file))
    }

    /// Checks the file after it was locked, and stores its size.
    fn check_locked(&mut self) -> Result<(), Problem> {
        let stat = self.stat()?;
        if stat.st_nlink == 0 {
            return Err(Problem::Changed { what: "removed" });
        }
        // Other processes would join the file at the path, and have the whole limit there.
        let found = rustix::fs::lstat(&self.path);
        if !found.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Err(Problem::Changed { what: "moved" });
        }
        self.len = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if self.len > offset_of(MAX_MEMBERS) {
            Err(Problem::Corrupt { what: "too long" })
        } else {
            Ok(())
        }
    }
}

impl Storage for AccountFile {
    fn lock(&mut self, patience: Duration) -> Result<(), Problem> {
        self.try_lock(patience)?;
        self.check_locked().inspect_err(|_| self.unlock())
    }

    fn unlock(&mut self) {
        if let Some(fd) = self.fd.get() {
            // Fails only for what is no descriptor.
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
    }

    fn read(&mut self) -> Result<Vec<u8>, Problem> {
        let fd = self.fd()?;
        let mut bytes = vec![0; self.len];
        match rustix::io::pread(fd, &mut bytes, 0) {
            Ok(read) if read == bytes.len() => Ok(bytes),
            Ok(_) => Err(Problem::Changed { what: "truncated" }),
            Err(errno) => Err(refused("pread", errno)),
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Problem> {
        // A limit of the process is all that could cut a write short: half a record is damage for
        // all members.
        let most = rustix::process::getrlimit(Resource::Fsize).current;
        if most.is_some_and(|most| (offset + bytes.len()) as u64 > most) {
            return Err(refused("pwrite", Errno::FBIG));
        }
        match rustix::io::pwrite(self.fd()?, bytes, offset as u64) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(refused("pwrite", Errno::NOSPC)),
            Err(errno) => Err(refused("pwrite", errno)),
        }
    }

    fn remove(&mut self) -> Result<(), Problem> {
        // Checked again, for what another program did since the file was locked.
        self.check_locked()?;
        rustix::fs::unlink(&self.path).map_err(|errno| refused("unlink", errno))
    }

    fn is_alive(&mut self, process: &ProcessId) -> bool {
        processes::is_alive(process)
    }
}

fn open(path: &Path, access: OFlags) -> Result<OwnedFd, Errno> {
    // NONBLOCK: opening a FIFO does not wait.
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

fn open_or_create(path: &Path) -> Result<OwnedFd, Problem> {
    let error = |errno| match errno {
        Errno::LOOP => foreign("the file is a symbolic link"),
        errno => owner_problem(path).unwrap_or_else(|| refused("open", errno)),
    };
    loop {
        match open(path, OFlags::RDWR) {
            Err(Errno::NOENT) => {}
            opened => return opened.map_err(error),
        }
        // A file that another process creates now is opened by the next round.
        match open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Err(Errno::EXIST) => {}
            created => return created.map_err(error),
        }
    }
}

/// Returns why a file that cannot be opened is not one of ours.
fn owner_problem(path: &Path) -> Option<Problem> {
    check_owner(&rustix::fs::lstat(path).ok()?, user()).err()
}

/// Errors unless the directory is on a `tmpfs`.
fn check_directory(directory: &Path) -> Result<(), SharedLimitError> {
    const TMPFS: i64 = 0x0102_1994;
    let problem = match rustix::fs::statfs(directory) {
        #[allow(clippy::unnecessary_cast, reason = "another type on other architectures")]
        Ok(stat) if stat.f_type as i64 == TMPFS => return Ok(()),
        Ok(_) => Problem::NotInMemory,
        Err(errno) => refused("statfs", errno),
    };
    Err(SharedLimitError { path: directory.to_owned(), problem })
}

/// Errors unless the file is an ordinary one that only this user can read and write.
fn check_owner(stat: &Stat, user: u32) -> Result<(), Problem> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(foreign("not a regular file"));
    }
    if stat.st_uid != user {
        return Err(foreign(&format!(
            "the file belongs to user {}, this is user {user}",
            stat.st_uid
        )));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(foreign(&format!(
            "other users have access to the file (mode {:03o})",
            stat.st_mode & 0o777
        )));
    }
    if stat.st_nlink > 1 {
        return Err(foreign("the file has a second name"));
    }
    Ok(())
}

fn foreign(what: &str) -> Problem {
    Problem::Foreign { what: what.to_owned() }
}

fn refused(call: &'static str, errno: Errno) -> Problem {
    Problem::System { call, problem: errno.to_string() }
}

/// Finds the pid in `/proc/locks` that has locked a file:
/// `1: FLOCK  ADVISORY  WRITE 123 00:1a:77 0 EOF`.
fn holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file);
        if is_it { fields.get(4)?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_user_is_refused() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let stat = rustix::fs::stat(file.path()).unwrap();
        assert_eq!(check_owner(&stat, user()), Ok(()));
        let found = check_owner(&stat, user() + 1).unwrap_err().to_string();
        assert!(
            found.starts_with(&format!("the file belongs to user {}, this is user", user())),
            "{found}"
        );
        assert!(found.contains("DMR_SHARED_LIMIT_DIR"), "{found}");
    }

    #[test]
    fn the_holder_of_a_lock_is_found_by_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:1a:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 6 00:1a:78 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 7 00:1a:77 0 EOF\n";
        assert_eq!(holder(locks, "00:1a:77"), Some(7));
        assert_eq!(holder(locks, "00:1a:79"), None);
        assert_eq!(holder("", "00:1a:77"), None);
    }
}
