//! The tests of the crate: the recorder is the process's, so one test at a time has it.

mod appended_files;
mod automatic_files;
mod changes;
mod forks;
mod rings;
mod support;
mod times;
