//! The limits that processes share, for `dmr info`: which process holds how much on each GPU.

use std::fmt::Write;
use std::io;
use std::time::{Duration, Instant};

use dmr::dmr_shared_limit::{AccountUsage, accounts};
use dmr_core::error::ProcessHolder;
use dmr_core::size::human_bytes;
use serde_json::{Value, json};

use crate::Output;
use crate::exit::Failure;

/// The time between two looks at the accounts.
const PAUSE: Duration = Duration::from_millis(250);

/// Writes all accounts, and again each time one has changed. Returns when nothing reads the output
/// any more.
///
/// # Errors
///
/// The output cannot be written.
pub(crate) fn watch(mut out: impl io::Write) -> Result<Output, Failure> {
    let begin = Instant::now();
    let mut shown = None;
    loop {
        let mut text = String::new();
        SharedLimits::read().write_rest(&[], &mut text);
        if text.is_empty() {
            text.push_str("no limit is shared\n");
        }
        if shown.as_ref() != Some(&text) {
            let time = format!("after {:.1} s\n", begin.elapsed().as_secs_f32());
            let written = out.write_all((time + &text).as_bytes()).and_then(|()| out.flush());
            match written {
                Ok(()) => shown = Some(text),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Ok(Output { text: String::new(), complaint: String::new() });
                }
                Err(error) => return Err(Failure::unusable(format!("standard output: {error}"))),
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// The shared limits of this user.
#[derive(Debug, Default)]
pub(crate) struct SharedLimits {
    accounts: Vec<AccountUsage>,
    /// Accounts that cannot be read, and why.
    pub(crate) problems: Vec<String>,
}

impl SharedLimits {
    /// Reads all accounts, and changes none.
    pub(crate) fn read() -> Self {
        let mut limits = Self::default();
        let all = accounts(None).unwrap_or_else(|error| vec![Err(error)]);
        for account in all {
            match account {
                Ok(account) => limits.accounts.push(account),
                Err(error) => limits.problems.push(error.to_string()),
            }
        }
        limits
    }

    /// Returns the accounts of a GPU, or of all GPUs but these.
    fn of(&self, belongs: impl Fn(&[u8; 16]) -> bool) -> impl Iterator<Item = &AccountUsage> {
        self.accounts.iter().filter(move |account| belongs(&account.uuid))
    }

    /// Adds lines about the accounts of a GPU.
    pub(crate) fn write_device(&self, uuid: [u8; 16], text: &mut String) {
        self.of(|of| *of == uuid).for_each(|account| write_account(account, text));
    }

    /// Adds lines about the accounts of GPUs that are not listed, and about those that cannot be
    /// read.
    pub(crate) fn write_rest(&self, listed: &[[u8; 16]], text: &mut String) {
        for account in self.of(|uuid| !listed.contains(uuid)) {
            let _ = writeln!(text, "another device {}", uuid_text(account.uuid));
            write_account(account, text);
        }
        for problem in &self.problems {
            let _ = writeln!(text, "{problem}");
        }
    }

    /// Returns the accounts of a GPU as JSON.
    pub(crate) fn json_of(&self, uuid: [u8; 16]) -> Vec<Value> {
        self.of(|of| *of == uuid).map(account_json).collect()
    }

    /// Returns the accounts of GPUs that are not listed as JSON.
    pub(crate) fn json_of_rest(&self, listed: &[[u8; 16]]) -> Vec<Value> {
        self.of(|uuid| !listed.contains(uuid)).map(account_json).collect()
    }
}

fn write_account(account: &AccountUsage, text: &mut String) {
    let AccountUsage { group, limit, processes, .. } = account;
    let used = human_bytes(account.used());
    let limit = human_bytes(*limit);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  shared limit of group {group}: {used} of {limit}, {} processes",
        processes.len()
    );
    for process in processes {
        let _ = writeln!(text, "    {process}");
    }
}

fn account_json(account: &AccountUsage) -> Value {
    let process = |process: &ProcessHolder| {
        json!({
            "pid": process.pid,
            "name": process.name,
            "bytes": process.bytes,
            "tag": process.tag,
            "tag_bytes": process.tag_bytes,
        })
    };
    json!({
        "uuid": uuid_text(account.uuid),
        "group": account.group,
        "limit_bytes": account.limit,
        "used_bytes": account.used(),
        "processes": account.processes.iter().map(process).collect::<Vec<_>>(),
    })
}

/// Returns a UUID as `nvidia-smi` writes it.
pub(crate) fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (i, byte) in uuid.iter().enumerate() {
        let dash = if matches!(i, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}
