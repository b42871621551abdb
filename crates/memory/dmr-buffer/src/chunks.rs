//! Iterators over the parts of a view.

use std::iter::FusedIterator;
use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_core::DeviceBlock;

use crate::BufferError;
use crate::view::{View, ViewMut, ViewedMemory};

/// An iterator over parts of a view: [`View::chunks`].
#[derive(Debug)]
pub struct Chunks<'a, T: Pod, M: ViewedMemory = DeviceBlock> {
    rest: View<'a, T, M>,
    chunk_len: usize,
}

/// An iterator over disjoint mutable parts of a view: [`ViewMut::chunks_mut`].
#[derive(Debug)]
pub struct ChunksMut<'a, T: Pod, M: ViewedMemory = DeviceBlock> {
    parts: Chunks<'a, T, M>,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod, M: ViewedMemory> Chunks<'a, T, M> {
    pub(crate) fn new(all: View<'a, T, M>, chunk_len: usize) -> Result<Self, BufferError> {
        match chunk_len {
            0 => Err(BufferError::EmptyChunks),
            _ => Ok(Self { rest: all, chunk_len }),
        }
    }
}

impl<'a, T: Pod, M: ViewedMemory> ChunksMut<'a, T, M> {
    /// Makes an iterator over the parts of elements that are borrowed mutably.
    pub(crate) fn new(parts: Chunks<'a, T, M>) -> Self {
        Self { parts, elements: PhantomData }
    }
}

impl<T: Pod, M: ViewedMemory> Clone for Chunks<'_, T, M> {
    fn clone(&self) -> Self {
        Self { rest: self.rest, chunk_len: self.chunk_len }
    }
}

impl<'a, T: Pod, M: ViewedMemory> Iterator for Chunks<'a, T, M> {
    type Item = View<'a, T, M>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let all = self.rest;
        let end = self.chunk_len.min(all.len());
        self.rest = all.part(end..all.len());
        Some(all.part(0..end))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len().div_ceil(self.chunk_len);
        (left, Some(left))
    }
}

impl<'a, T: Pod, M: ViewedMemory> Iterator for ChunksMut<'a, T, M> {
    type Item = ViewMut<'a, T, M>;

    fn next(&mut self) -> Option<Self::Item> {
        self.parts.next().map(ViewMut::new)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.parts.size_hint()
    }
}

impl<T: Pod, M: ViewedMemory> ExactSizeIterator for Chunks<'_, T, M> {}
impl<T: Pod, M: ViewedMemory> ExactSizeIterator for ChunksMut<'_, T, M> {}
impl<T: Pod, M: ViewedMemory> FusedIterator for Chunks<'_, T, M> {}
impl<T: Pod, M: ViewedMemory> FusedIterator for ChunksMut<'_, T, M> {}
