//! Iterators over the parts of a view.

use std::iter::FusedIterator;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::{BufferError, DeviceView, DeviceViewMut};

/// An iterator over parts of a view: [`DeviceView::chunks`].
#[derive(Clone, Debug)]
pub struct Chunks<'a, T: Pod> {
    rest: DeviceView<'a, T>,
    chunk_len: usize,
}

/// An iterator over disjoint mutable parts of a view: [`DeviceViewMut::chunks_mut`].
#[derive(Debug)]
pub struct ChunksMut<'a, T: Pod> {
    parts: Chunks<'a, T>,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> Chunks<'a, T> {
    pub(crate) fn new(all: DeviceView<'a, T>, chunk_len: usize) -> Result<Self, BufferError> {
        match chunk_len {
            0 => Err(BufferError::EmptyChunks),
            _ => Ok(Self { rest: all, chunk_len }),
        }
    }
}

impl<'a, T: Pod> ChunksMut<'a, T> {
    /// Makes an iterator over the parts of elements that are borrowed mutably.
    pub(crate) fn new(parts: Chunks<'a, T>) -> Self {
        Self { parts, elements: PhantomData }
    }
}

impl<'a, T: Pod> Iterator for Chunks<'a, T> {
    type Item = DeviceView<'a, T>;

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

impl<'a, T: Pod> Iterator for ChunksMut<'a, T> {
    type Item = DeviceViewMut<'a, T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.parts.next().map(DeviceViewMut::new)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.parts.size_hint()
    }
}

impl<T: Pod> ExactSizeIterator for Chunks<'_, T> {}
impl<T: Pod> ExactSizeIterator for ChunksMut<'_, T> {}
impl<T: Pod> FusedIterator for Chunks<'_, T> {}
impl<T: Pod> FusedIterator for ChunksMut<'_, T> {}
