//! The bytes that a program computes if its steps run in submission order, one after the other.

use super::program::{Program, Span, Step};

/// The value of a byte; `None` if it was not written yet.
pub(crate) type Bytes = Vec<Option<u8>>;

/// The outcome of a program in submission order.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Per buffer; `None` where it is not allocated at the end.
    pub(crate) buffers: Vec<Option<Bytes>>,
    /// Per step; the bytes of a download.
    pub(crate) downloads: Vec<Option<Bytes>>,
}

/// The kernel `blend`, byte by byte.
pub(crate) fn blend(a: u8, b: u8) -> u8 {
    a.wrapping_mul(3).wrapping_add(b) ^ 0x5a
}

/// The kernel `accumulate`, byte by byte.
pub(crate) fn accumulate(out: u8, src: u8) -> u8 {
    out.wrapping_add(src).wrapping_add(1)
}

/// Returns the bytes of an upload of `len` bytes.
pub(crate) fn upload(byte: u8, len: u64) -> Vec<u8> {
    (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
}

/// Runs a program that makes no mistake with its memory.
pub(crate) fn run(program: &Program) -> Model {
    let mut model =
        Model { buffers: vec![None; program.buffers], downloads: vec![None; program.steps.len()] };
    for (index, step) in program.steps.iter().enumerate() {
        match *step {
            Step::Alloc { buf, bytes, .. } => {
                model.buffers[buf] = Some(vec![None; bytes as usize]);
            }
            Step::Free { buf, .. } => model.buffers[buf] = None,
            Step::Fill { dst, byte, .. } => {
                model.store(dst, vec![Some(byte); dst.len as usize]);
            }
            Step::Copy { dst, src, .. } => {
                let bytes = model.load(src);
                model.store(dst, bytes);
            }
            Step::Upload { dst, byte, .. } => {
                let bytes = upload(byte, dst.len).into_iter().map(Some).collect();
                model.store(dst, bytes);
            }
            Step::Download { src, .. } => model.downloads[index] = Some(model.load(src)),
            Step::Blend { a, b, out, .. } => {
                let bytes = zip(model.load(a), model.load(b), blend);
                model.store(out, bytes);
            }
            Step::Accumulate { src, out, .. } => {
                let bytes = zip(model.load(out), model.load(src), accumulate);
                model.store(out, bytes);
            }
            _ => {}
        }
    }
    model
}

impl Model {
    fn load(&self, span: Span) -> Bytes {
        match &self.buffers[span.buf] {
            Some(bytes) => bytes[span.offset as usize..][..span.len as usize].to_vec(),
            None => vec![None; span.len as usize],
        }
    }

    fn store(&mut self, span: Span, bytes: Bytes) {
        if let Some(buffer) = &mut self.buffers[span.buf] {
            buffer[span.offset as usize..][..span.len as usize].copy_from_slice(&bytes);
        }
    }
}

fn zip(a: Bytes, b: Bytes, f: fn(u8, u8) -> u8) -> Bytes {
    a.into_iter().zip(b).map(|(a, b)| Some(f(a?, b?))).collect()
}
