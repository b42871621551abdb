//! Sparse device memory: a fill is one run, whatever its length.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of bytes that were never written.
const NEVER_WRITTEN: u8 = 0xCD;
/// The bytes of an aligned chunk: the first write to a part of it makes it one run, into which
/// later ones write.
const CHUNK: u64 = 1 << 14;

/// Sparse bytes by address: disjoint runs.
#[derive(Debug, Default)]
pub(crate) struct Store {
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Debug)]
struct Run {
    len: u64,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// Byte `i` of the run is byte `i % 4` of the pattern.
    Fill([u8; 4]),
    /// The run's bytes start at `from`: splitting and copying a run share them.
    Data { bytes: Arc<[u8]>, from: usize },
}

impl Store {
    /// Overwrites `len` bytes at `at`: byte `i` becomes byte `i % 4` of `pattern`.
    pub(crate) fn fill(&mut self, at: u64, len: u64, pattern: [u8; 4]) {
        if len > 0 {
            self.erase(at, len);
            self.runs.insert(at, Run { len, content: Content::Fill(pattern) });
        }
    }

    /// Overwrites the bytes at `at`.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        if len == 0 {
            return;
        }
        if let Some(old) = self.in_place(at, bytes.len()) {
            old.copy_from_slice(bytes);
            return;
        }
        let start = at - at % CHUNK;
        if at + len > start + CHUNK {
            self.insert(at, bytes.into());
            return;
        }
        let mut chunk = vec![0; CHUNK as usize];
        self.read(start, &mut chunk);
        chunk[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.insert(start, chunk.into());
    }

    /// Lets `change` change the bytes at `at`.
    pub(crate) fn update(&mut self, at: u64, len: usize, change: &mut dyn FnMut(&mut [u8])) {
        if let Some(bytes) = self.in_place(at, len) {
            change(bytes);
            return;
        }
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes);
        change(&mut bytes);
        self.write(at, &bytes);
    }

    fn insert(&mut self, at: u64, bytes: Arc<[u8]>) {
        let len = bytes.len() as u64;
        self.erase(at, len);
        self.runs.insert(at, Run { len, content: Content::Data { bytes, from: 0 } });
    }

    /// Reads the bytes at `at`.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        if let Some((&start, run)) = self.runs.range(..=at).next_back()
            && at - start + into.len() as u64 <= run.len
            && let Content::Data { bytes, from } = &run.content
        {
            into.copy_from_slice(&bytes[from + (at - start) as usize..][..into.len()]);
            return;
        }
        into.fill(NEVER_WRITTEN);
        self.overlapping(at, into.len() as u64, |start, len, run, skip| {
            let into = &mut into[(start - at) as usize..][..len as usize];
            match &run.content {
                Content::Fill(pattern) => {
                    for (i, byte) in into.iter_mut().enumerate() {
                        *byte = pattern[(skip as usize + i) % 4];
                    }
                }
                Content::Data { bytes, from } => {
                    into.copy_from_slice(&bytes[from + skip as usize..][..into.len()]);
                }
            }
        });
    }

    /// Copies `len` bytes; the ranges may overlap.
    pub(crate) fn copy(&mut self, to: u64, from: u64, len: u64) {
        let mut copied = Vec::new();
        self.overlapping(from, len, |start, len, run, skip| {
            copied.push((to + (start - from), run.part(skip, len)));
        });
        self.erase(to, len);
        self.runs.extend(copied);
    }

    /// Removes the bytes: they read as never written.
    pub(crate) fn erase(&mut self, at: u64, len: u64) {
        self.cut(at);
        self.cut(at + len);
        while let Some((&start, _)) = self.runs.range(at..at + len).next() {
            self.runs.remove(&start);
        }
    }

    /// Splits the run that contains `at`.
    fn cut(&mut self, at: u64) {
        let Some((&start, run)) = self.runs.range_mut(..at).next_back() else { return };
        let head = at - start;
        if head < run.len {
            let tail = run.part(head, run.len - head);
            run.len = head;
            self.runs.insert(at, tail);
        }
    }

    /// Returns the bytes at `at`, if they are in one run that is not shared.
    fn in_place(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let (&start, run) = self.runs.range_mut(..=at).next_back()?;
        let skip = at - start;
        if skip + len as u64 > run.len {
            return None;
        }
        let Content::Data { bytes, from } = &mut run.content else { return None };
        let from = *from + skip as usize;
        Arc::get_mut(bytes)?.get_mut(from..from + len)
    }

    /// Calls `visit(start, len, run, skip)` for the part of each run inside the range, `skip`
    /// bytes into the run.
    fn overlapping(&self, at: u64, len: u64, mut visit: impl FnMut(u64, u64, &Run, u64)) {
        let end = at + len;
        let first = self.runs.range(..at).next_back().map_or(at, |(&start, _)| start);
        for (&start, run) in self.runs.range(first..end) {
            let from = start.max(at);
            let to = (start + run.len).min(end);
            if from < to {
                visit(from, to - from, run, from - start);
            }
        }
    }
}

impl Run {
    fn part(&self, skip: u64, len: u64) -> Self {
        let content = match &self.content {
            Content::Fill(pattern) => {
                let mut rotated = *pattern;
                rotated.rotate_left((skip % 4) as usize);
                Content::Fill(rotated)
            }
            Content::Data { bytes, from } => {
                Content::Data { bytes: bytes.clone(), from: from + skip as usize }
            }
        };
        Self { len, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum StoreStep {
        Fill(u64, u64, [u8; 4]),
        Write(u64, Vec<u8>),
        Copy(u64, u64, u64),
        Erase(u64, u64),
    }

    const SIZE: u64 = 64;

    fn step() -> impl Strategy<Value = StoreStep> {
        let range = (0..SIZE).prop_flat_map(|at| (Just(at), 0..=SIZE - at));
        prop_oneof![
            (range.clone(), any::<[u8; 4]>())
                .prop_map(|((at, len), p)| StoreStep::Fill(at, len, p)),
            (0..SIZE, proptest::collection::vec(any::<u8>(), 0..8)).prop_map(|(at, mut bytes)| {
                bytes.truncate((SIZE - at) as usize);
                StoreStep::Write(at, bytes)
            }),
            (range.clone(), 0..SIZE).prop_map(|((from, len), to)| StoreStep::Copy(
                to,
                from,
                len.min(SIZE - to)
            )),
            range.prop_map(|(at, len)| StoreStep::Erase(at, len)),
        ]
    }

    proptest! {
        #[test]
        fn sparse_memory_reads_like_an_array(
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let mut store = Store::default();
            let mut model = vec![NEVER_WRITTEN; SIZE as usize];
            for step in steps {
                match step {
                    StoreStep::Fill(at, len, pattern) => {
                        store.fill(at, len, pattern);
                        for i in 0..len {
                            model[(at + i) as usize] = pattern[(i % 4) as usize];
                        }
                    }
                    StoreStep::Write(at, bytes) => {
                        store.write(at, &bytes);
                        model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                    }
                    StoreStep::Copy(to, from, len) => {
                        store.copy(to, from, len);
                        let to = to as usize;
                        let from = from as usize;
                        let len = len as usize;
                        model.copy_within(from..from + len, to);
                    }
                    StoreStep::Erase(at, len) => {
                        store.erase(at, len);
                        model[at as usize..][..len as usize].fill(NEVER_WRITTEN);
                    }
                }
                let mut bytes = vec![0; SIZE as usize];
                store.read(0, &mut bytes);
                prop_assert_eq!(&bytes, &model);
            }
        }
    }

    #[test]
    fn a_fill_of_hundreds_of_gibibytes_is_one_run() {
        let mut store = Store::default();
        store.fill(0, 300 << 30, [1, 2, 3, 4]);
        let mut bytes = [0; 4];
        store.read((200 << 30) + 5, &mut bytes);
        assert_eq!((bytes, store.runs.len()), ([2, 3, 4, 1], 1));
    }
}
