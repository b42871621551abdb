//! Without a tool, or with a library that is not one, there is no observer, and all other functions
//! run their work. Each case is a process of its own: a tool is looked for once per process.

#![cfg(target_os = "linux")]

use std::process::Command;

/// The variable that is set in the processes that look for a tool.
const CHILD: &str = "DMR_NVTX_CHILD";

#[test]
fn a_library_that_is_no_tool_is_ignored() {
    if std::env::var_os(CHILD).is_some() {
        assert!(dmr_nvtx::memory_observer().is_none());
        let work = || dmr_nvtx::unrestricted(|| dmr_nvtx::range(c"range", || 42));
        assert_eq!(dmr_nvtx::restricted(&[], work), 42);
        return;
    }
    for path in [None, Some(""), Some("./."), Some("/no/such/library.so"), Some("libc.so.6")] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["a_library_that_is_no_tool_is_as_none", "--exact"]).env(CHILD, "1");
        child.env_remove("NVTX_INJECTION64_PATH");
        if let Some(path) = path {
            child.env("NVTX_INJECTION64_PATH", path);
        }
        let output = child.output().unwrap();
        assert!(output.status.success(), "{path:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
