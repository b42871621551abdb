//! In place of `file`, where the platform is not Linux: no account can be opened.

use std::path::Path;
use std::time::Duration;

use crate::SharedLimitConfig;
use crate::error::{Problem, SharedLimitError};
use crate::layout::{Header, ProcessId};
use crate::member::Identity;
use crate::storage::Storage;

/// An open account: there is none.
#[derive(Debug)]
pub(crate) enum AccountFile {}

pub(crate) fn user() -> u32 {
    0
}

pub(crate) fn identity(_: &SharedLimitConfig) -> Result<Identity, Problem> {
    Err(Problem::Unsupported)
}

pub(crate) fn check_namespaces(_: &Header) -> Result<(), Problem> {
    Err(Problem::Unsupported)
}

impl AccountFile {
    pub(crate) fn open(path: &Path) -> Result<Self, SharedLimitError> {
        Err(SharedLimitError { path: path.to_owned(), problem: Problem::Unsupported })
    }

    pub(crate) fn open_to_read(_: &Path) -> Result<Self, Problem> {
        Err(Problem::Unsupported)
    }
}

impl Storage for AccountFile {
    fn lock(&mut self, _: Duration) -> Result<(), Problem> {
        match *self {}
    }

    fn unlock(&mut self) {
        match *self {}
    }

    fn read(&mut self) -> Result<Vec<u8>, Problem> {
        match *self {}
    }

    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), Problem> {
        match *self {}
    }

    fn remove(&mut self) -> Result<(), Problem> {
        match *self {}
    }

    fn is_alive(&mut self, _: &ProcessId) -> bool {
        match *self {}
    }
}
