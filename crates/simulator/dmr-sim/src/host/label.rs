//! The place where an operation was submitted: the thread's label, or its call stack.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::python;

thread_local! {
    static LABELS: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
}

/// Labels every operation that this thread submits until the guard is dropped. Labels nest; reports
/// show the innermost one.
///
/// ```
/// let _label = dmr_sim::label("loading the probe side");
/// ```
pub fn label(text: impl Into<String>) -> LabelGuard {
    LABELS.with_borrow_mut(|labels| labels.push(text.into().into()));
    LabelGuard { _not_send: std::marker::PhantomData }
}

/// Ends a [`label`] when dropped.
#[derive(Debug)]
#[must_use = "the label ends when the guard is dropped"]
pub struct LabelGuard {
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for LabelGuard {
    fn drop(&mut self) {
        // A thread whose thread-locals are destroyed has no labels.
        let _ = LABELS.try_with(|labels| labels.borrow_mut().pop());
    }
}

/// Returns the thread's innermost label; without one its name, if that is wanted.
pub(crate) fn current(or_name: bool) -> Option<Arc<str>> {
    let label = LABELS.try_with(|labels| labels.borrow().last().cloned()).ok().flatten();
    let name = || std::thread::current().name().map(|name| format!("thread {name:?}").into());
    label.or_else(|| or_name.then(name).flatten())
}

/// The frames of the program that reports show of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    /// None: no call stack is captured.
    None,
    Innermost,
    All,
}

impl Frames {
    /// Returns the setting of `DMR_SIM_BACKTRACE`.
    pub(crate) fn of_variable(value: Option<&OsStr>) -> Self {
        match value.and_then(OsStr::to_str) {
            Some("1") => Self::Innermost,
            Some("full") => Self::All,
            _ => Self::None,
        }
    }
}

/// A call stack.
#[derive(Debug)]
pub(crate) struct CallStack {
    stack: Stack,
    shown: Frames,
}

#[derive(Debug)]
enum Stack {
    /// Resolved only when a report shows it.
    Native(Backtrace),
    /// The lines of a thread that runs Python, the innermost first.
    Python(Arc<[String]>),
}

impl CallStack {
    /// Captures the thread's call stack, if reports show frames.
    pub(crate) fn capture(shown: Frames) -> Option<Self> {
        if shown == Frames::None {
            return None;
        }
        let native = || Stack::Native(Backtrace::force_capture());
        Some(Self { stack: python::lines().map_or_else(native, Stack::Python), shown })
    }

    /// Returns the places of the frames outside of the simulator, the bindings, this project's
    /// other crates and the standard library, the innermost first: that one only, or all. Of a
    /// thread that runs Python, its lines outside of packages; if there are none, all.
    pub(crate) fn call_sites(&self) -> Vec<String> {
        let most = if self.shown == Frames::All { usize::MAX } else { 1 };
        let native = match &self.stack {
            Stack::Native(stack) => stack,
            Stack::Python(lines) => {
                let any = lines.iter().any(|line| python::is_users(line));
                let lines = lines.iter().filter(|line| !any || python::is_users(line));
                return lines.take(most).cloned().collect();
            }
        };
        let text = native.to_string();
        let mut function = "";
        let places = text.lines().map(str::trim).filter_map(|line| {
            let Some(place) = line.strip_prefix("at ") else {
                function = line.split_once(": ").map_or(line, |(_, name)| name);
                return None;
            };
            is_users(function, place).then(|| place.to_owned())
        });
        places.take(most).collect()
    }
}

/// This project's crates that submit work for a program.
const OURS: &[&str] = &[
    "dmr",
    "dmr-adaptors",
    "dmr-buffer",
    "dmr-core",
    "dmr-cuda-async",
    "dmr-cuda-direct",
    "dmr-cuda-virtual",
    "dmr-launch",
    "dmr-pinned",
    "dmr-pool",
    "dmr-sim",
    "dmr-slices",
    "dmr-streams",
];
const BINDINGS: &str = "cudarc";
const STANDARD: &[&str] = &["alloc", "core", "std"];
/// Functions of the C library around a thread and around `main`: they have places where its debug
/// information is installed.
const START: &[&str] = &[
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "__clone3",
    "clone3",
    "__clone",
    "clone",
];

/// Returns whether a frame is the program's, by the crate in the name of its function, if there is
/// full debug information, and by the path of its source.
fn is_users(function: &str, place: &str) -> bool {
    let is_hidden = |name: &str| {
        let is_ours = OURS.iter().any(|ours| name.replace('_', "-") == *ours);
        is_ours || name == BINDINGS || STANDARD.contains(&name)
    };
    let is_start = START.contains(&function);
    !is_start && !crate_of(function).is_some_and(is_hidden) && !is_hidden_place(place)
}

/// Returns the crate in a function's path: `dmr` of `<dmr::Runtime as core::fmt::Debug>::fmt`.
/// `None` for a name without a path.
fn crate_of(function: &str) -> Option<&str> {
    let path = function.trim_start_matches(['<', '&', '*', '(', '[']);
    let path = ["mut ", "const ", "dyn "]
        .iter()
        .fold(path, |path, word| path.strip_prefix(word).unwrap_or(path));
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    match path[end..].starts_with("::") || path[end..].starts_with('[') {
        true => Some(&path[..end]),
        // A trait method of a type without a path.
        false => crate_of(path.split_once(" as ")?.1),
    }
}

/// Returns whether a place is in the sources of the standard library, of the bindings or of this
/// project. Its crates are in folders by kind in a clone, and in that of a registry.
fn is_hidden_place(place: &str) -> bool {
    if place.starts_with("/rustc/") || place.contains("/rustlib/src/rust/") {
        return true;
    }
    let place = match place.strip_prefix("./") {
        Some(rest) => std::env::current_dir().unwrap_or_default().join(rest),
        None => PathBuf::from(place),
    };
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let is_ours = above.and_then(|folder| place.strip_prefix(folder).ok()).is_some_and(|inside| {
        let mut names = inside.iter().filter_map(|name| name.to_str()).skip(1);
        let name = names.next().unwrap_or_default();
        OURS.iter().any(|ours| is_folder_of(ours, name)) && names.next() == Some("src")
    });
    let names: Vec<_> = place.iter().filter_map(|name| name.to_str()).collect();
    is_ours || names.windows(2).any(|pair| is_folder_of(BINDINGS, pair[0]) && pair[1] == "src")
}

/// Returns whether a folder has the name of a crate: `dmr-sim` or `dmr-sim-0.1.0` for `dmr-sim`.
fn is_folder_of(name: &str, folder: &str) -> bool {
    let Some(rest) = folder.strip_prefix(name) else { return false };
    rest.is_empty()
        || rest.strip_prefix('-').is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_asks_for_no_frame_one_or_all() {
        let set = |value: &'static str| Frames::of_variable(Some(value.as_ref()));
        assert_eq!(Frames::of_variable(None), Frames::None);
        assert_eq!(["0", "1", "full"].map(set), [Frames::None, Frames::Innermost, Frames::All]);
    }

    #[test]
    fn a_crate_is_the_user_s_unless_it_is_one_of_these_by_its_whole_name() {
        let users = ["cuboid::load", "dmrish::run", "<dmr_app::X as core::fmt::Debug>::fmt"];
        for function in users.into_iter().chain(["cut", "{closure#0}", "<u8 as cudarcs::X>::f"]) {
            assert!(is_users(function, "/home/me/app/src/main.rs:1:2"), "{function}");
        }
        let hidden = [
            "cudarc::driver::safe::core::CudaStream::memset_zeros",
            "dmr_sim::driver::memory::cuMemsetD8Async",
            "<dmr_pool::resource::PoolResource<U> as dmr_core::DeviceMemoryResource>::allocate",
            "<T as core::convert::Into<U>>::into",
            "<&mut F as core::ops::function::FnMut<A>>::call_mut",
            "dmr::runtime::DeviceRuntime::shutdown",
        ];
        for function in hidden {
            assert!(!is_users(function, "/home/me/app/src/main.rs:1:2"), "{function}");
        }
    }

    /// Without full debug information a function has no path.
    #[test]
    fn a_place_is_the_user_s_unless_it_is_in_the_sources_of_such_a_crate() {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
        let above = ours.ancestors().nth(2).unwrap().display();
        for path in [
            "memory/dmr/src/lib.rs",
            "memory/dmr-pool/src/pages/back.rs",
            "simulator/dmr-sim-0.1.0/src/label.rs",
        ] {
            assert!(!is_users("f", &format!("{above}/{path}:1:2")), "{path}");
        }
        for path in [
            "memory/dmr/examples/double.rs",
            "memory/dmr-pool/tests/it/threads.rs",
            "memory/dmr-app/src/main.rs",
        ] {
            assert!(is_users("f", &format!("{above}/{path}:1:2")), "{path}");
        }
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        assert!(!is_users("f", &format!("{registry}/cudarc-0.19.10/src/driver/safe/core.rs:1:2")));
        assert!(is_users("f", &format!("{registry}/cudarc-extras-0.1.0/src/lib.rs:1:2")));
        assert!(is_users("f", "/home/me/dmr/src/main.rs:1:2"));
        assert!(!is_users("f", "/rustc/0123/library/core/src/ops/function.rs:250:5"));
    }
}
