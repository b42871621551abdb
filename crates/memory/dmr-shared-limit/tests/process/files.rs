//! Files that are no accounts, or not ours, and what happens to accounts that other programs
//! change.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "makes a FIFO, forks, and limits the size of files")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use crate::common::{GIB, config, directory, file_of, join};
use dmr_shared_limit::{ChargeError, Largest, Problem, SharedLimit, SharedLimitConfig, accounts};
use tempfile::TempDir;

/// Bytes of the header and of a record.
const HEADER: u64 = 256;
const RECORD: usize = 128;

/// A directory with an account of this process, in which nothing is charged.
fn left() -> TempDir {
    let directory = directory();
    std::mem::forget(join(directory.path(), GIB));
    directory
}

/// Returns why the account of a directory cannot be joined.
fn refusal(directory: &Path) -> Problem {
    SharedLimit::join(&config(directory, GIB)).expect_err("joined").problem
}

fn says(directory: &Path, text: &str) -> bool {
    refusal(directory).to_string().starts_with(text)
}

fn foreign(directory: &Path) -> String {
    match refusal(directory) {
        Problem::Foreign { what, .. } => what,
        other => panic!("{other:?}"),
    }
}

fn write_at(directory: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(file_of(directory)).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn an_account_is_a_file_that_only_the_user_can_read_and_write() {
    let directory = left();
    let metadata = fs::metadata(file_of(directory.path())).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    assert_eq!(metadata.len(), HEADER + RECORD as u64);
}

#[test]
fn a_file_to_which_others_have_access_is_refused() {
    let directory = left();
    for mode in [0o604, 0o640, 0o620, 0o610, 0o601] {
        fs::set_permissions(file_of(directory.path()), Permissions::from_mode(mode)).unwrap();
        assert!(foreign(directory.path()).contains(&format!("mode {mode:o}")));
    }
    fs::set_permissions(file_of(directory.path()), Permissions::from_mode(0o600)).unwrap();
    join(directory.path(), GIB);
}

#[test]
fn a_symbolic_link_a_second_name_a_fifo_and_a_directory_are_refused() {
    let directory = left();
    let file = file_of(directory.path());
    let other = directory.path().join("other");
    fs::hard_link(&file, &other).unwrap();
    assert_eq!(foreign(directory.path()), "the file has a second name");
    fs::remove_file(&file).unwrap();
    symlink(&other, &file).unwrap();
    assert_eq!(foreign(directory.path()), "the file is a symbolic link");
    fs::remove_file(&file).unwrap();
    let name = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_eq!(foreign(directory.path()), "not a regular file");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(foreign(directory.path()), "not a regular file");
}

#[test]
fn a_file_of_another_program_is_refused_and_stays_as_it_is() {
    let directory = left();
    let file = file_of(directory.path());
    fs::write(&file, [b'x'; 256]).unwrap();
    assert_eq!(foreign(directory.path()), "the file is no account of this library");
    assert_eq!(fs::read(&file).unwrap(), [b'x'; 256]);
}

#[test]
fn an_account_of_another_version_is_refused() {
    let directory = left();
    write_at(directory.path(), 8, &1_u32.to_le_bytes());
    let problem = refusal(directory.path());
    assert!(matches!(problem, Problem::Version { found: 1, expected: 2, .. }), "{problem:?}");
    assert!(problem.to_string().contains("use one version in all processes"), "{problem}");
}

#[test]
fn a_changed_byte_and_a_size_that_no_account_has_are_damage() {
    let changed = "the account is damaged (a checksum does not match)";
    let truncated = "the account is damaged (truncated)";
    let directory = directory();
    let member = join(directory.path(), GIB);
    member.charge(1, Largest::default()).unwrap();
    let file = file_of(directory.path());
    let bytes = fs::read(&file).unwrap();
    for offset in [20, HEADER - 1, HEADER, HEADER + 24, HEADER + 127] {
        write_at(directory.path(), offset, &[bytes[offset as usize] ^ 1]);
        assert!(says(directory.path(), changed), "offset {offset}");
        fs::write(&file, &bytes).unwrap();
    }
    for len in [1, HEADER - 1, HEADER + 1, HEADER + 127] {
        fs::write(&file, &bytes[..len as usize]).unwrap();
        assert!(says(directory.path(), truncated), "{len} bytes");
    }
    File::create(&file).unwrap().set_len(1 << 40).unwrap();
    assert!(says(directory.path(), "the account is damaged (too long)"));
    let listed = accounts(Some(directory.path())).unwrap();
    assert!(matches!(listed[0].as_ref().unwrap_err().problem, Problem::Corrupt { .. }));
    fs::write(&file, &bytes).unwrap();
    join(directory.path(), GIB);
}

#[test]
fn an_account_that_is_removed_or_truncated_in_use_is_an_error_and_loses_nothing() {
    let directory = directory();
    let member = join(directory.path(), GIB);
    member.charge(GIB, Largest::default()).unwrap();
    let file = file_of(directory.path());
    let kept = directory.path().join("kept");
    let bytes = fs::read(&file).unwrap();
    let problem = || match member.charge(0, Largest::default()) {
        Err(ChargeError::Account(error)) => error.problem.to_string(),
        other => panic!("{other:?}"),
    };
    for len in [0, HEADER as usize] {
        fs::write(&file, &bytes[..len]).unwrap();
        assert!(problem().starts_with("the account was changed by another program"), "{len} bytes");
        member.release(GIB / 4, Largest::default());
    }
    fs::write(&file, &bytes).unwrap();
    member.charge(GIB / 2, Largest::default()).unwrap();
    assert_eq!(member.usage().unwrap().used(), GIB);
    member.charge(1, Largest::default()).unwrap_err();
    fs::rename(&file, &kept).unwrap();
    fs::remove_file(&kept).unwrap();
    assert!(problem().starts_with("the account was removed by another program"));
    member.release(GIB, Largest::default());
    assert!(problem().starts_with("the account was removed by another program"));
}

#[test]
fn an_account_that_is_moved_in_use_is_an_error_and_not_a_second_account() {
    let directory = directory();
    let one = join(directory.path(), GIB);
    one.charge(GIB / 2, Largest::default()).unwrap();
    let file = file_of(directory.path());
    let moved = directory.path().join("moved");
    let is_refused = || match one.charge(GIB / 2, Largest::default()) {
        Err(ChargeError::Account(error)) => {
            error.problem.to_string().starts_with("the account was moved")
        }
        other => panic!("{other:?}"),
    };
    fs::rename(&file, &moved).unwrap();
    assert!(is_refused());
    let two = join(directory.path(), GIB);
    two.charge(GIB, Largest::default()).unwrap();
    assert!(is_refused());
    drop(two);
    fs::rename(&moved, &file).unwrap();
    one.charge(GIB / 2, Largest::default()).unwrap();
}

#[test]
fn all_that_can_be_charged_can_be_released_and_a_larger_limit_is_refused() {
    const MOST: u64 = i64::MAX as u64;
    let directory = directory();
    for limit in [MOST + 1, u64::MAX] {
        let problem = SharedLimit::join(&config(directory.path(), limit)).unwrap_err().problem;
        assert!(matches!(problem, Problem::InvalidLimit { .. }), "{problem}");
        assert!(problem.to_string().contains(&format!("{limit} bytes is too large")), "{problem}");
    }
    let limit = join(directory.path(), MOST);
    limit.charge(MOST, Largest::default()).unwrap();
    limit.charge(1, Largest::default()).unwrap_err();
    limit.release(MOST, Largest::default());
    assert_eq!(limit.usage().unwrap().used(), 0);
}

#[test]
fn readers_of_accounts_are_one_at_a_time_so_that_they_do_not_keep_members_away() {
    let directory = left();
    let reader = File::open(file_of(directory.path())).unwrap();
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::flock(reader.as_raw_fd(), libc::LOCK_SH) }, 0);
    let listed = accounts(Some(directory.path())).unwrap().remove(0);
    assert!(matches!(listed.unwrap_err().problem, Problem::Busy { .. }));
    drop(reader);
    accounts(Some(directory.path())).unwrap().remove(0).unwrap();
}

#[test]
fn a_limit_on_the_size_of_files_refuses_a_member_and_damages_nothing() {
    // A new record, and one that a member has left.
    for has_free_record in [false, true] {
        let directory = directory();
        let limit = join(directory.path(), GIB);
        if has_free_record {
            drop(join(directory.path(), GIB));
        }
        let before = fs::read(file_of(directory.path())).unwrap();
        assert_eq!(join_with_files_of(directory.path(), HEADER + RECORD as u64 * 3 / 2), 0);
        assert_eq!(fs::read(file_of(directory.path())).unwrap(), before);
        limit.charge(GIB, Largest::default()).unwrap();
    }
}

/// Joins in a forked child whose files have at most `bytes`. Returns its status: 0 if that is
/// refused.
fn join_with_files_of(directory: &Path, bytes: u64) -> i32 {
    // SAFETY: the child joins and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let most = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: sets a limit of this process, and ends it without the parent's handlers, or when
        // a call waits.
        unsafe {
            libc::alarm(10);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most);
            let joined = SharedLimit::join(&config(directory, GIB));
            let is_refused = joined.is_err_and(|error| {
                matches!(error.problem, Problem::System { call: "pwrite", .. })
            });
            libc::_exit(i32::from(!is_refused));
        }
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn the_257th_member_is_refused() {
    let directory = directory();
    let member = join(directory.path(), GIB);
    let record = fs::read(file_of(directory.path())).unwrap()[HEADER as usize..].to_vec();
    // Of this process, which lives.
    write_at(directory.path(), HEADER, &record.repeat(256));
    assert!(says(directory.path(), "all 256 records are in use by living processes"));
    member.charge(GIB, Largest::default()).unwrap();
    write_at(directory.path(), HEADER + 100 * RECORD as u64, &[0; RECORD]);
    join(directory.path(), GIB).charge(1, Largest::default()).unwrap_err();
}

#[test]
fn an_account_is_in_memory_and_its_group_has_a_name() {
    let join = |config: SharedLimitConfig| SharedLimit::join(&config).expect_err("joined");
    let error = join(config(Path::new("/proc"), GIB));
    assert_eq!(error.problem, Problem::NotInMemory);
    let directory = directory();
    let error = join(config(&directory.path().join("none"), GIB));
    assert!(matches!(error.problem, Problem::System { call: "statfs", .. }), "{error}");
    for group in ["", "a/b", "a b", "ä", "a\0", &"x".repeat(65)] {
        let error = join(config(directory.path(), GIB).with_group(group));
        assert!(
            matches!(&error.problem, Problem::InvalidGroup { group: named, .. } if named == group)
        );
    }
    SharedLimit::join(&config(directory.path(), GIB).with_group("A-z_0.9")).unwrap();
    assert!(accounts(Some(Path::new("/nowhere"))).is_err());
}
