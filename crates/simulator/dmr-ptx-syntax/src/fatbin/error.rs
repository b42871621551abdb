//! The errors of module images without PTX.

/// An image that has no PTX text to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FatbinError {
    /// The image has no PTX.
    #[error(
        "the image holds {found} and no PTX: compile it with PTX (-gencode arch=compute_90,code=compute_90)"
    )]
    #[non_exhaustive]
    MachineCode {
        /// The entries.
        found: String,
    },
    /// All PTX of the image is for newer devices.
    #[error(
        "the image holds {found}, and the device is sm_{sm}: compile it for that or an older architecture"
    )]
    #[non_exhaustive]
    TooNew {
        /// The PTX entries.
        found: String,
        /// The device: 90 for `sm_90`.
        sm: u32,
    },
    /// The image is not as its headers say.
    #[error("the fat binary is damaged: {0}")]
    Damaged(&'static str),
    /// The PTX is compressed in an unknown way.
    #[error(
        "the fat binary is compressed in an unknown way (flags {flags:#x}): compile it with -no-compress"
    )]
    #[non_exhaustive]
    Compression {
        /// The flags of the entry.
        flags: u64,
    },
    /// The PTX is too long.
    #[error("the fat binary holds {bytes} bytes of PTX; at most {max} are read")]
    #[non_exhaustive]
    TooLarge {
        /// The length in bytes.
        bytes: u64,
        /// The largest length in bytes.
        max: u64,
    },
}
