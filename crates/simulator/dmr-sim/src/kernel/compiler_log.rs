//! Messages of the PTX compiler, and the buffers in which programs get them.

use std::ffi::{c_int, c_uint, c_void};

/// The messages about one call.
#[derive(Default)]
pub(crate) struct CompilerLog {
    pub(crate) information: String,
    pub(crate) errors: String,
}

/// The buffers for messages of the PTX compiler, from the options of a call (`CUjit_option`).
#[derive(Clone, Copy)]
pub(crate) struct LogBuffers {
    /// The buffer, its size, and the place of the size in the values of the call: messages, and
    /// errors.
    logs: [Log; 2],
}

#[derive(Clone, Copy)]
struct Log {
    buffer: *mut u8,
    bytes: usize,
    size: *mut *mut c_void,
}

impl Default for LogBuffers {
    fn default() -> Self {
        let none = Log { buffer: std::ptr::null_mut(), bytes: 0, size: std::ptr::null_mut() };
        Self { logs: [none; 2] }
    }
}

// SAFETY: the pointers are used in calls for which the program keeps the buffers valid, whatever
// thread makes them.
unsafe impl Send for LogBuffers {}

impl LogBuffers {
    /// Returns the buffers of a call's options.
    ///
    /// # Safety
    ///
    /// `options` and `values` are null, or point to `count` of each.
    pub(crate) unsafe fn read(
        count: c_uint,
        options: *const c_int,
        values: *const *mut c_void,
    ) -> Self {
        let mut found = Self::default();
        let logs = &mut found.logs;
        let count = if options.is_null() || values.is_null() { 0 } else { count as usize };
        for i in 0..count {
            // SAFETY: by this function's contract.
            let (option, value) = unsafe { (*options.add(i), *values.add(i)) };
            match option {
                3 | 5 => logs[option as usize / 5].buffer = value.cast(),
                4 | 6 => {
                    let log = &mut logs[option as usize / 6];
                    // Sizes are values cast to pointers.
                    log.bytes = value as usize as u32 as usize;
                    log.size = values.wrapping_add(i).cast_mut();
                }
                _ => {}
            }
        }
        found
    }

    /// Writes the messages of a call to its buffers, and the number of bytes written to the values
    /// of the sizes.
    ///
    /// # Safety
    ///
    /// The buffers are as large as the call has said, and the values are writable, as the driver's
    /// contract says.
    pub(crate) unsafe fn report(&self, log: &CompilerLog) {
        for (log, text) in self.logs.iter().zip([&log.information, &log.errors]) {
            let text = &text.as_bytes()[..text.len().min(log.bytes.saturating_sub(1))];
            // SAFETY: by this function's contract.
            unsafe {
                if !log.buffer.is_null() && log.bytes > 0 {
                    std::ptr::copy_nonoverlapping(text.as_ptr(), log.buffer, text.len());
                    log.buffer.add(text.len()).write(0);
                }
                if !log.size.is_null() {
                    log.size.write_unaligned(text.len() as *mut c_void);
                }
            }
        }
    }
}
