//! The flight recorder of a runtime: started by the builder or the environment, written on request.

use std::path::Path;

use dmr_recorder::{LabelScope, RecorderConfig, StartError, Written};

use crate::{DeviceRuntime, DeviceRuntimeBuilder, RuntimeError};

/// The file to which all events are appended.
const RECORD: &str = "DMR_RECORD";
/// The folder of recordings that are written when something goes wrong.
const FLIGHT_RECORDER: &str = "DMR_FLIGHT_RECORDER";

impl DeviceRuntimeBuilder {
    /// Starts the flight recorder of the process: the last events of each thread are kept, and
    /// written on request, or when something goes wrong
    /// ([`RecorderConfig::with_folder`]). There is one in a process: if it records already, it
    /// goes on with its first settings.
    pub fn flight_recorder(mut self, config: RecorderConfig) -> Self {
        self.recorder = Some(config);
        self
    }
}

impl DeviceRuntime {
    /// Gives the events of this thread a label, and the place of this call, until the scope is
    /// dropped. Scopes nest. Does nothing while nothing is recorded.
    #[track_caller]
    pub fn label(&self, name: &str) -> LabelScope {
        dmr_recorder::label(name)
    }

    /// Writes the events that the process keeps, of all its devices, and the heaps of its pools to
    /// a file, which `dmr report` reads. Other threads go on meanwhile.
    ///
    /// # Errors
    ///
    /// Those of the file; [`NotConnected`](std::io::ErrorKind::NotConnected) if the flight recorder
    /// is not started.
    pub fn write_recording(&self, path: impl AsRef<Path>) -> std::io::Result<Written> {
        dmr_recorder::write_recording(path.as_ref())
    }
}

/// Starts the recorder as the builder says, or else the environment.
pub(crate) fn start(config: Option<&RecorderConfig>) -> Result<(), RuntimeError> {
    let Some(config) = config.cloned().or_else(of_environment) else { return Ok(()) };
    match dmr_recorder::start(config) {
        Ok(()) | Err(StartError::AlreadyStarted) => Ok(()),
        Err(error) => Err(RuntimeError::Recorder { problem: error.to_string() }),
    }
}

fn of_environment() -> Option<RecorderConfig> {
    let value = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let file = value(RECORD);
    let folder = value(FLIGHT_RECORDER);
    if file.is_none() && folder.is_none() {
        return None;
    }
    let mut config = RecorderConfig::new();
    if let Some(file) = file {
        config = config.stream_to(file);
    }
    if let Some(folder) = folder {
        config = config.with_folder(folder).on_panic();
    }
    Some(config)
}
