//! The work of a launch on streams other than its own: that of cudarc's wrappers, so none without
//! the feature `cudarc`.

#[cfg(feature = "cudarc")]
pub(crate) use dmr_slices::OtherStreams;
#[cfg(not(feature = "cudarc"))]
pub(crate) use none::OtherStreams;

#[cfg(not(feature = "cudarc"))]
mod none {
    use dmr_core::ResourceResult;
    use dmr_streams::StreamGuard;

    /// The uses on other streams: there are none.
    #[derive(Debug)]
    pub(crate) struct OtherStreams<'l> {
        _launch: &'l StreamGuard<'l>,
    }

    /// The outcome of [`OtherStreams::end`].
    pub(crate) struct EndOfUses {
        pub(crate) outcome: ResourceResult<()>,
        pub(crate) is_protected: bool,
    }

    impl<'l> OtherStreams<'l> {
        pub(crate) fn new(launch: &'l StreamGuard<'l>) -> Self {
            Self { _launch: launch }
        }

        pub(crate) fn end(&self) -> EndOfUses {
            EndOfUses { outcome: Ok(()), is_protected: true }
        }
    }
}
