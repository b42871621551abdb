//! The code blocks of the guide, compiled and run on the simulated driver.
//!
//! `cargo test -p dmr-guide --doc` runs every block of `docs/src/guide` and of the simulator's
//! README, each in a process of its own. A block is a function that takes a runtime, or none; its
//! last line, which the book hides, passes it to [`run`] or [`run_program`].

#![forbid(unsafe_code)]

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use dmr::DeviceRuntime;
use dmr::cudarc::driver::CudaFunction;
use dmr::cudarc::nvrtc::Ptx;
use dmr_sim::Universe;

/// Makes each page the documentation of a type, so that rustdoc runs its blocks, and lists them.
macro_rules! pages {
    ($($page:ident: $path:literal,)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($path)]
            pub struct $page;
        )*

        #[cfg(test)]
        const PAGES: &[(&str, &str)] = &[$(($path, include_str!($path)),)*];
    };
}

pages! {
    DmrSim: "../../../simulator/dmr-sim/README.md",
    Async: "../../../../docs/src/guide/async.md",
    Benchmarks: "../../../../docs/src/guide/benchmarks.md",
    Clients: "../../../../docs/src/guide/clients.md",
    CInterface: "../../../../docs/src/guide/c-interface.md",
    Python: "../../../../docs/src/guide/python.md",
    ComingFrom: "../../../../docs/src/guide/coming-from.md",
    CompileErrors: "../../../../docs/src/guide/compile-errors.md",
    Cudarc: "../../../../docs/src/guide/cudarc.md",
    Debugging: "../../../../docs/src/guide/debugging.md",
    Environment: "../../../../docs/src/guide/environment.md",
    Errors: "../../../../docs/src/guide/errors.md",
    GettingStarted: "../../../../docs/src/guide/getting-started.md",
    Graphs: "../../../../docs/src/guide/graphs.md",
    GpuTests: "../../../../docs/src/guide/gpu-tests.md",
    Others: "../../../../docs/src/guide/others.md",
    OutOfMemory: "../../../../docs/src/guide/out-of-memory.md",
    Pool: "../../../../docs/src/guide/pool.md",
    QueryEngine: "../../../../docs/src/guide/query-engine.md",
    Recorder: "../../../../docs/src/guide/recorder.md",
    Recipes: "../../../../docs/src/guide/recipes.md",
    Replay: "../../../../docs/src/guide/replay.md",
    Report: "../../../../docs/src/guide/report.md",
    Sanitizer: "../../../../docs/src/guide/sanitizer.md",
    SeveralGpus: "../../../../docs/src/guide/several-gpus.md",
    Streams: "../../../../docs/src/guide/streams.md",
    Testing: "../../../../docs/src/guide/testing.md",
    Transfers: "../../../../docs/src/guide/transfers.md",
}

const TWICE: &str = "
.version 7.0
.target sm_50
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .pred %past;
    .reg .b32 %i, %n, %threads, %block;
    .reg .f32 %value;
    .reg .b64 %x, %y;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    ld.param.u32 %n, [n];
    setp.ge.u32 %past, %i, %n;
    @%past ret;
    ld.param.u64 %x, [x];
    mad.wide.u32 %x, %i, 4, %x;
    ld.global.f32 %value, [%x];
    add.f32 %value, %value, %value;
    ld.param.u64 %y, [y];
    mad.wide.u32 %y, %i, 4, %y;
    st.global.f32 [%y], %value;
    ret;
}";

/// The result of a code block.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Runs a block on a runtime of a simulated machine.
///
/// # Panics
///
/// As [`run_program`].
pub fn run(block: impl FnOnce(&DeviceRuntime) -> Outcome) {
    run_program(|| block(&DeviceRuntime::builder(0).build()?));
}

/// Runs a block that builds its own runtimes on a simulated machine, whose first device has ordinal
/// 0.
///
/// # Panics
///
/// If the block fails, or if the simulated driver finds a race, a misuse of memory or a leak.
pub fn run_program(block: impl FnOnce() -> Outcome) {
    let machine = machine();
    let folder = tempfile::tempdir().expect("a folder for the files that a block writes");
    std::env::set_current_dir(&folder).expect("the block runs in that folder");
    let outcome = catch_unwind(AssertUnwindSafe(block));
    // First: a finding explains a wrong value.
    let verdict = machine.finish();
    if let Ok(Err(error)) = outcome {
        panic!("{error}\n{verdict}");
    }
    assert!(verdict.is_clean(), "{verdict}");
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Returns a simulated machine. Its first device has ordinal 0 in a process that has made no
/// machine before.
///
/// # Panics
///
/// If the simulated driver cannot be installed.
#[must_use]
pub fn machine() -> Universe {
    Universe::new().expect("the simulated driver")
}

/// Loads the kernel `twice(x, y, n)`: `y[i] = 2 * x[i]` for `n` elements of type `f32`.
///
/// # Panics
///
/// If the module cannot be loaded.
#[must_use]
pub fn twice(gpu: &DeviceRuntime) -> CudaFunction {
    let module = gpu.device().context().load_module(Ptx::from_src(TWICE)).expect("a module");
    module.load_function("twice").expect("its kernel")
}

#[cfg(test)]
mod tests {
    use dmr::prelude::*;

    use super::*;

    #[test]
    fn a_block_whose_values_are_wrong_fails_with_the_finding() {
        let failed = catch_unwind(|| {
            run(|gpu| {
                let stream = gpu.streams().acquire()?;
                std::mem::forget(DeviceBuffer::<u32>::zeroed(gpu, &stream, 10)?);
                assert_eq!([0.0], [100.0]);
                Ok(())
            });
        });
        let panic = failed.unwrap_err();
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains("memory was never freed"), "{text}");
    }

    #[test]
    fn every_page_of_the_guide_is_compiled() {
        let summary = include_str!("../../../../docs/src/SUMMARY.md");
        let listed = summary.split("](guide/").skip(1).filter_map(|rest| rest.split(')').next());
        for page in listed {
            let is_compiled = PAGES.iter().any(|(path, _)| path.ends_with(&format!("/{page}")));
            assert!(is_compiled, "{page} is not in the list of dmr-guide");
        }
    }

    /// The README shows a part of a function, which does not compile by itself.
    #[test]
    fn the_code_of_the_readme_is_run_in_the_guide() {
        let code = |text: &'static str| {
            let lines = text.lines().map(|line| line.split("//").next().unwrap_or(line).trim());
            lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
        };
        let blocks = include_str!("../../../../README.md").split("```rust\n").skip(1);
        let shown: Vec<_> = blocks.map(|rest| code(rest.split("```").next().unwrap())).collect();
        assert_eq!(shown.len(), 1);
        let page = code(include_str!("../../../../docs/src/guide/getting-started.md"));
        assert!(page.contains(&shown[0]), "not in getting-started.md:\n{}", shown[0]);
    }

    #[test]
    fn every_block_of_the_guide_is_run() {
        for (path, text) in PAGES {
            let fences = text.lines().filter(|line| line.starts_with("```rust"));
            for fence in fences {
                let is_skipped = fence.contains("ignore") || fence.contains("no_run");
                assert!(!is_skipped, "{path} has a block that is not run: {fence}");
            }
        }
    }
}
