//! The driver that a program runs on: a GPU if there is one, otherwise the simulated driver.

use std::sync::Arc;

use dmr_sim::{Driver, Universe};
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

use crate::Outcome;

/// A GPU, or a universe of the simulated driver.
#[derive(Clone, Debug)]
pub struct Machine(Option<Universe>);

impl Machine {
    /// Selects the driver that `DMR_DRIVER` names. On the simulated driver, makes a universe.
    ///
    /// # Errors
    ///
    /// No driver can be selected.
    pub fn select() -> Outcome<Self> {
        Ok(Self(match dmr_sim::select()? {
            Driver::Simulated(_) => Some(Universe::new()?),
            _ => None,
        }))
    }

    /// Returns the universe; `None` on a GPU.
    #[must_use]
    pub fn universe(&self) -> Option<&Universe> {
        self.0.as_ref()
    }

    /// Opens its first device.
    ///
    /// # Errors
    ///
    /// Those of [`Device::open`].
    pub fn device(&self) -> Outcome<Device> {
        Ok(Device::open(self.0.as_ref().map_or(0, |universe| universe.ordinal(0)))?)
    }

    /// Makes a stream pool on its first device.
    ///
    /// # Errors
    ///
    /// Those of [`Device::open`] and [`StreamPool::new`].
    pub fn streams(&self) -> Outcome<Arc<StreamPool>> {
        Ok(StreamPool::new(self.device()?, StreamPoolConfig::default())?)
    }
}
