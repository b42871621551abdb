//! The bytes of all memory: of devices in the store, of pinned host memory in the host's.

use smallvec::SmallVec;

use crate::memory::{Mappings, Store, address::is_on_device};

/// All memory: device memory in the store, pinned host memory in the host's.
pub(crate) struct Memory<'a> {
    pub(crate) store: &'a mut Store,
    /// The mappings of virtual addresses.
    pub(crate) mappings: &'a Mappings,
}

impl Memory<'_> {
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        if is_on_device(at) {
            for piece in self.mappings.pieces(at, into.len() as u64) {
                let into = &mut into[(piece.at - at) as usize..][..piece.bytes as usize];
                self.store.read(piece.physical, into);
            }
        } else {
            let host = at as usize as *const u8;
            // SAFETY: operations and kernels access only memory that was accessible at their
            // submission: this is inside of pinned host memory, which is released only after all
            // earlier work has run; or memory of the program, which by the driver's contract stays
            // valid while a graph copies it.
            unsafe { std::ptr::copy(host, into.as_mut_ptr(), into.len()) };
        }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        if is_on_device(at) {
            for piece in self.mappings.pieces(at, bytes.len() as u64) {
                let bytes = &bytes[(piece.at - at) as usize..][..piece.bytes as usize];
                self.store.write(piece.physical, bytes);
            }
        } else {
            let host = at as usize as *mut u8;
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy(bytes.as_ptr(), host, bytes.len()) };
        }
    }

    /// Lets `change` change the bytes at `at`.
    pub(crate) fn update(&mut self, at: u64, len: usize, change: &mut dyn FnMut(&mut [u8])) {
        if is_on_device(at)
            && let [piece] = self.mappings.pieces(at, len as u64)[..]
        {
            self.store.update(piece.physical, len, change);
            return;
        }
        let mut bytes: SmallVec<[u8; 16]> = SmallVec::from_elem(0, len);
        self.read(at, &mut bytes);
        change(&mut bytes);
        self.write(at, &bytes);
    }

    pub(crate) fn fill(&mut self, at: u64, len: u64, pattern: [u8; 4]) {
        if is_on_device(at) {
            for piece in self.mappings.pieces(at, len) {
                let pattern = rotated(pattern, piece.at - at);
                self.store.fill(piece.physical, piece.bytes, pattern);
            }
        } else {
            let bytes: Vec<u8> = pattern.iter().copied().cycle().take(len as usize).collect();
            self.write(at, &bytes);
        }
    }

    pub(crate) fn copy(&mut self, to: u64, from: u64, len: u64) {
        if is_on_device(to) && is_on_device(from) {
            for source in self.mappings.pieces(from, len) {
                let to = to + (source.at - from);
                for target in self.mappings.pieces(to, source.bytes) {
                    let physical = source.physical + (target.at - to);
                    self.store.copy(target.physical, physical, target.bytes);
                }
            }
        } else {
            let mut bytes = vec![0; len as usize];
            self.read(from, &mut bytes);
            self.write(to, &bytes);
        }
    }
}

/// Returns the pattern rotated by `skipped` bytes.
fn rotated(mut pattern: [u8; 4], skipped: u64) -> [u8; 4] {
    pattern.rotate_left((skipped % 4) as usize);
    pattern
}
