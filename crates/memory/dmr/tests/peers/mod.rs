//! Runtimes on two devices, and a kernel that copies words between any memory that its device can
//! access.

#![allow(unsafe_code, reason = "kernel launches")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use dmr::cudarc::driver::{CudaFunction, DriverError, LaunchConfig, PushKernelArg};
use dmr::cudarc::nvrtc::Ptx;
use dmr::prelude::*;
use dmr_testkit::Rig;

/// `to[i] = from[i]`, for `n` words.
const PTX: &str = "
.version 7.0
.target sm_50
.address_size 64
.visible .entry copy_words(.param .u64 to, .param .u64 from, .param .u32 n) {
    .reg .pred %past;
    .reg .b32 %i, %n, %threads, %block, %value;
    .reg .b64 %to, %from, %at;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u32 %n, [n];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    setp.ge.u32 %past, %i, %n;
    @%past bra done;
    mul.wide.u32 %at, %i, 4;
    add.u64 %to, %to, %at;
    add.u64 %from, %from, %at;
    ld.global.u32 %value, [%from];
    st.global.u32 [%to], %value;
done:
    ret;
}";

/// The backends whose memory another device can access, each in its own way.
pub(crate) const BACKENDS: [Backend; 4] =
    [Backend::Async, Backend::Direct, Backend::DirectTracked, Backend::Pool];

/// The backends that track uses.
pub(crate) const TRACKING: [Backend; 3] = [Backend::Async, Backend::DirectTracked, Backend::Pool];

/// A runtime on the streams of a rig.
pub(crate) fn runtime(rig: &Rig, backend: Backend) -> DeviceRuntime {
    let streams = Arc::clone(rig.streams());
    DeviceRuntime::builder(rig.ordinal()).with_streams(streams).backend(backend).build().unwrap()
}

/// The kernel, on the device of a rig.
pub(crate) struct CopyWords(CudaFunction);

impl CopyWords {
    pub(crate) fn load(rig: &Rig) -> Self {
        let module = rig.device().context().load_module(Ptx::from_src(PTX)).unwrap();
        Self(module.load_function("copy_words").unwrap())
    }

    /// Copies words on `stream`, without an order of its own.
    ///
    /// # Safety
    ///
    /// Both addresses have that many words, which the device can access.
    pub(crate) unsafe fn launch(&self, stream: &StreamLease, to: u64, from: u64, words: u32) {
        // SAFETY: the caller's obligations.
        unsafe { self.try_launch(stream, to, from, words) }.unwrap();
    }

    /// Copies words as [`launch`](Self::launch) does.
    ///
    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    pub(crate) unsafe fn try_launch(
        &self,
        stream: &StreamLease,
        to: u64,
        from: u64,
        words: u32,
    ) -> Result<(), DriverError> {
        let config = LaunchConfig::for_num_elems(words);
        let mut launch = stream.stream().launch_builder(&self.0);
        // SAFETY: the caller's obligations; the kernel takes two addresses and a count.
        unsafe { launch.arg(&to).arg(&from).arg(&words).launch(config) }.map(drop)
    }

    /// Copies words from memory of a peer, as a recorded launch. The device has access.
    pub(crate) fn launch_peer(
        &self,
        here: &DeviceRuntime,
        stream: &StreamLease,
        to: &mut DeviceBuffer<u32>,
        (there, home): (&DeviceRuntime, &StreamLease),
        from: &DeviceBuffer<u32>,
        words: u32,
    ) {
        assert!(to.len() >= words as usize && from.len() >= words as usize);
        let mut launch = LaunchRecorder::new_strict(stream);
        let to = launch.write(to);
        let from = launch.read_peer(from, there, home);
        // SAFETY: both buffers have that many words, and the device has access.
        let copy = || unsafe { self.try_launch(stream, to.device_ptr(), from.device_ptr(), words) };
        launch.launch(here, |_| copy()).unwrap();
    }
}
