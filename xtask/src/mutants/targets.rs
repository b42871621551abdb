//! The files with mutants, and the tests that must detect them.

/// Files of one crate, and the packages whose tests are run for each of their mutants.
pub(super) struct Target {
    /// The crate that the files belong to.
    pub(super) package: &'static str,
    /// Globs, from the root of the repository.
    pub(super) files: &'static [&'static str],
    /// The crates whose tests are run: the crate itself, and crates that depend on it and test it.
    pub(super) tested_by: &'static [&'static str],
}

/// The bookkeeping: a fault in it leaks memory, or allocates memory that is in use.
pub(super) const TARGETS: &[Target] = &[
    Target {
        package: "dmr-core",
        files: &["crates/memory/dmr-core/src/ledger.rs"],
        tested_by: &["dmr-core", "dmr-streams"],
    },
    Target {
        package: "dmr-streams",
        files: &[
            "crates/memory/dmr-streams/src/tracked.rs",
            "crates/memory/dmr-streams/src/uses/**/*.rs",
            "crates/memory/dmr-streams/src/event.rs",
            "crates/memory/dmr-streams/src/progress.rs",
            "crates/memory/dmr-streams/src/recycle.rs",
        ],
        tested_by: &["dmr-streams", "dmr-cuda-async", "dmr-launch", "dmr-pool"],
    },
    Target {
        package: "dmr-launch",
        files: &["crates/memory/dmr-launch/src/**/*.rs"],
        tested_by: &["dmr-launch"],
    },
    Target {
        package: "dmr-adaptors",
        files: &["crates/memory/dmr-adaptors/src/budget/**/*.rs"],
        tested_by: &["dmr-adaptors"],
    },
    Target {
        package: "dmr-pool",
        files: &["crates/memory/dmr-pool/src/**/*.rs"],
        tested_by: &["dmr-pool"],
    },
];

/// Test code in files of its own.
pub(super) const TEST_FILES: &[&str] = &["*_loom.rs", "*_tests.rs", "models.rs", "tests.rs"];
