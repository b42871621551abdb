//! The driver that a command runs on: this machine's GPU, or the simulated driver.

use clap::Args;
use dmr_streams::{Device, device};
use dmr_trace::summary::CheckerFindings;

use crate::exit::Failure;

#[cfg(feature = "sim")]
use crate::bytes;

/// The arguments of commands that use a device.
#[derive(Args, Clone, Debug)]
pub struct DriverArgs {
    /// CUDA ordinal of the device
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,

    /// Memory of each simulated device
    #[cfg(feature = "sim")]
    #[arg(long, value_name = "BYTES", default_value = "141GiB", value_parser = bytes::parse)]
    pub sim_memory: u64,

    /// The seed of the simulated driver's scheduler: another seed, another order of execution
    #[cfg(feature = "sim")]
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub sim_seed: u64,
}

/// The machine that a command runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    ordinal: usize,
    #[cfg(feature = "sim")]
    universe: Option<dmr_sim::Universe>,
}

#[cfg(feature = "sim")]
mod simulated {
    use super::*;
    use dmr_sim::{Driver, LabelGuard, Universe};
    use dmr_trace::Noted;

    /// The number of devices of a simulated machine.
    const DEVICES: usize = 2;

    impl Machine {
        /// Chooses the driver that `DMR_DRIVER` names; without it the GPU's, otherwise the
        /// simulated one.
        ///
        /// # Errors
        ///
        /// An unknown `DMR_DRIVER`; a simulated driver that cannot be installed; no such
        /// simulated device.
        pub fn choose(args: &DriverArgs) -> Result<Self, Failure> {
            match dmr_sim::select().map_err(Failure::unusable)? {
                Driver::Cuda => Ok(Self { ordinal: args.device, universe: None }),
                Driver::Simulated(_) => {
                    let universe = Universe::builder()
                        .devices(DEVICES)
                        .capacity(args.sim_memory)
                        .seed(args.sim_seed)
                        .build()
                        .map_err(Failure::unusable)?;
                    Self::simulated(universe, args.device)
                }
            }
        }

        /// Chooses a device of a simulated machine.
        ///
        /// # Errors
        ///
        /// It has no such device.
        pub fn simulated(universe: Universe, device: usize) -> Result<Self, Failure> {
            match universe.ordinal(device) {
                usize::MAX => Err(Failure::unusable(format!(
                    "device {device} is out of range: the simulated machine has {DEVICES} devices"
                ))),
                ordinal => Ok(Self { ordinal, universe: Some(universe) }),
            }
        }

        /// Returns whether the driver is the simulated one.
        #[must_use]
        pub fn is_simulated(&self) -> bool {
            self.universe.is_some()
        }

        /// Returns why the driver is the simulated one; `None` if it is not.
        pub(super) fn why_simulated(&self) -> Option<String> {
            self.universe.as_ref()?;
            match dmr_sim::select() {
                Ok(Driver::Simulated(because)) => Some(because.to_string()),
                _ => Some("chosen by the program".to_owned()),
            }
        }

        /// Returns labels for the operations of this thread; `None` on a GPU, which reports none.
        pub(crate) fn labels(&self) -> Option<Labels> {
            self.is_simulated().then(Labels::default)
        }

        /// Runs all work to its end, and returns the findings of the simulated driver; `None` on a
        /// GPU.
        #[must_use]
        pub fn findings(&self) -> Option<CheckerFindings> {
            let verdict = self.universe.as_ref()?.finish();
            let mut findings = CheckerFindings::default();
            for report in &verdict.reports {
                let kind: &mut Noted<String> =
                    if report.kind.is_race() { &mut findings.races } else { &mut findings.others };
                kind.note_with(|| report.to_string().replace("\n  ", " · "));
            }
            findings.others.count += verdict.dropped;
            Some(findings)
        }
    }

    /// Labels the operations of a thread with their row.
    #[derive(Default)]
    pub(crate) struct Labels {
        current: Option<LabelGuard>,
    }

    impl Labels {
        pub(crate) fn set(&mut self, line: Option<u64>) {
            // Labels nest: the old one is dropped before the new one is made.
            self.current = None;
            self.current = line.map(|line| dmr_sim::label(format!("trace line {line}")));
        }
    }
}

#[cfg(feature = "sim")]
pub(crate) use simulated::Labels;

#[cfg(not(feature = "sim"))]
mod cuda_only {
    use super::*;

    impl Machine {
        /// Chooses the GPU's driver: this program was built without the simulated one.
        ///
        /// # Errors
        ///
        /// None: errors of the driver are returned when the device is opened.
        pub fn choose(args: &DriverArgs) -> Result<Self, Failure> {
            Ok(Self { ordinal: args.device })
        }

        /// Returns `false`.
        #[must_use]
        pub fn is_simulated(&self) -> bool {
            false
        }

        pub(crate) fn labels(&self) -> Option<Labels> {
            None
        }

        pub(super) fn why_simulated(&self) -> Option<String> {
            None
        }

        /// Returns `None`: there is no checker.
        #[must_use]
        pub fn findings(&self) -> Option<CheckerFindings> {
            None
        }
    }

    /// Does nothing: only the simulated driver reports labels.
    pub(crate) struct Labels;

    impl Labels {
        pub(crate) fn set(&mut self, _line: Option<u64>) {}
    }
}

#[cfg(not(feature = "sim"))]
pub(crate) use cuda_only::Labels;

impl Machine {
    /// Returns the CUDA ordinal of the device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Describes the driver for the table: the GPU's name, or that it is simulated and why.
    #[must_use]
    pub fn describe(&self, device: &Device) -> String {
        match self.why_simulated() {
            Some(why) => format!("simulated ({why})"),
            None => format!("{} (CUDA {})", device.name(), device.driver_version()),
        }
    }

    /// Opens all devices of the driver.
    ///
    /// # Errors
    ///
    /// No driver, no device, other errors of the driver.
    pub fn devices(&self) -> Result<Vec<Device>, Failure> {
        let count = device::device_count().map_err(Failure::unusable)?;
        (0..count).map(|ordinal| Device::open(ordinal).map_err(Failure::unusable)).collect()
    }
}

/// The variable that chooses the driver.
pub(crate) const DRIVER_VARIABLE: &str = "DMR_DRIVER";
