//! Memory that a launch declares together with its views, for the wrappers of cudarc.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_core::{Access, BlockId, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_streams::{DeviceContext, MemoryOrigin, StreamGuard, TypedMemory, TypedMemoryMut};

use sealed::Parts;

use crate::error::RefusedMemory;
use crate::others::OtherStreams;
use crate::uses::LaunchUses;
use crate::{LaunchError, LaunchRecorder, LaunchView, LaunchViewMut, PrepareError};

impl LaunchRecorder {
    /// As [`launch`](Self::launch), for the wrappers of cudarc: records the uses of `memory`, too,
    /// and passes views of it to `enqueue`, which cuBLAS, cuDNN, cuRAND and cudarc's copies take.
    /// Lends the stream. See [`LaunchView`].
    ///
    /// `memory` consists of [`Reads`], [`Writes`] and [`ReadsAndWrites`], in tuples, arrays,
    /// vectors and options:
    ///
    /// ```no_run
    /// # use dmr_core::DeviceBlock;
    /// # use dmr_launch::{LaunchError, LaunchRecorder, Reads, Writes};
    /// # use dmr_streams::DeviceContext;
    /// # use cudarc::driver::DriverError;
    /// # fn copy(
    /// #     ctx: &impl DeviceContext,
    /// #     a: &DeviceBlock,
    /// #     b: &mut DeviceBlock,
    /// # ) -> Result<(), LaunchError<DriverError>> {
    /// let launch = LaunchRecorder::new_strict(ctx.streams().default_stream());
    /// launch.launch_with(ctx, (Reads(a), Writes(b)), |stream, (a, mut b)| {
    ///     stream.memcpy_dtod(&a, &mut b)
    /// })
    /// # }
    /// ```
    ///
    /// The memory must be tracked, also if the recorder is permissive: the wrappers are safe
    /// functions.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch), and [`View`](LaunchError::View).
    ///
    /// # Misuse does not compile
    ///
    /// A view cannot leave the closure:
    ///
    /// ```compile_fail,E0521
    /// # use dmr_core::DeviceBlock;
    /// # use dmr_launch::{LaunchRecorder, Reads};
    /// # use dmr_streams::DeviceContext;
    /// # fn leave(ctx: &impl DeviceContext, a: &DeviceBlock) {
    /// let launch = LaunchRecorder::new_strict(ctx.streams().default_stream());
    /// let mut kept = None;
    /// let _ = launch.launch_with(ctx, Reads(a), |_, a| { kept = Some(a); Ok::<_, ()>(()) });
    /// # }
    /// ```
    ///
    /// Nor can the memory be used meanwhile, or be declared twice if the launch writes it:
    ///
    /// ```compile_fail,E0502
    /// # use dmr_core::DeviceBlock;
    /// # use dmr_launch::{LaunchRecorder, Reads, Writes};
    /// # use dmr_streams::DeviceContext;
    /// # fn twice(ctx: &impl DeviceContext, a: &mut DeviceBlock) {
    /// let launch = LaunchRecorder::new_strict(ctx.streams().default_stream());
    /// let _ = launch.launch_with(ctx, (Reads(&*a), Writes(a)), |_, _| Ok::<_, ()>(()));
    /// # }
    /// ```
    #[inline]
    pub fn launch_with<C, M, T, E>(
        mut self,
        ctx: &C,
        mut memory: M,
        enqueue: impl FnOnce(&Arc<CudaStream>, M::Views<'_>) -> Result<T, E>,
    ) -> Result<T, LaunchError<E>>
    where
        C: DeviceContext + ?Sized,
        M: LaunchMemory,
    {
        memory.record(&mut self.uses);
        self.launch_in_place(
            ctx,
            memory,
            |memory, stream, resource| memory.reject_untracked(&Tracking { stream, resource }),
            |stream, memory, others| enqueue(stream.stream(), memory.into_views(others)),
        )
    }
}

/// Memory that a launch reads: its closure gets a [`LaunchView`].
#[derive(Debug)]
pub struct Reads<'m, M: ?Sized>(pub &'m M);

/// Memory that a launch overwrites: its closure gets a [`LaunchViewMut`].
#[derive(Debug)]
pub struct Writes<'m, M: ?Sized>(pub &'m mut M);

/// Memory that a launch reads and writes: its closure gets a [`LaunchViewMut`].
#[derive(Debug)]
pub struct ReadsAndWrites<'m, M: ?Sized>(pub &'m mut M);

/// The argument of [`LaunchRecorder::launch_with`](crate::LaunchRecorder::launch_with): [`Reads`],
/// [`Writes`] and [`ReadsAndWrites`], in tuples of up to 12, arrays, vectors and options.
///
/// Memory of another owner is none: its uses are not tracked, and its address may be any.
///
/// ```compile_fail,E0277
/// # use dmr_launch::{LaunchRecorder, Reads};
/// # use dmr_streams::{DeviceContext, MemoryOrigin, TrackedMemory};
/// struct Theirs;
/// impl TrackedMemory for Theirs {
///     fn device_ptr(&self) -> u64 { 0x1000 }
///     fn origin(&self) -> MemoryOrigin<'_> { MemoryOrigin::External { name: "theirs" } }
/// }
/// # fn launch(ctx: &impl DeviceContext) {
/// let launch = LaunchRecorder::new_permissive(ctx.streams().default_stream());
/// let _ = launch.launch_with(ctx, Reads(&Theirs), |_, _| Ok::<_, ()>(()));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how the launch uses it",
    label = "wrap it in `Reads`, `Writes` or `ReadsAndWrites`",
    note = "such as `Reads(&x)`, or a tuple: `(Reads(&x), Writes(&mut y))`"
)]
pub trait LaunchMemory: sealed::Parts {}

impl<P: sealed::Parts> LaunchMemory for P {}

/// The memory that a launch can track: that of these streams, and blocks if the resource tracks.
pub struct Tracking<'c> {
    stream: &'c StreamGuard<'c>,
    resource: &'c dyn DeviceMemoryResource,
}

impl Tracking<'_> {
    /// Refuses memory whose uses would not be tracked, in either mode of a recorder.
    fn reject_untracked<M: TypedMemory + ?Sized>(&self, memory: &M) -> Result<(), PrepareError> {
        let stream = self.stream.id();
        let named =
            |block: BlockId| RefusedMemory::Block { generation: block.generation(), column: None };
        let is_ours = |block: BlockId| block.alloc_stream().pool() == Some(self.stream.pool().id());
        match memory.origin() {
            MemoryOrigin::Block(block) | MemoryOrigin::Pinned(block) if !is_ours(block) => {
                Err(PrepareError::other_pool(block, named(block), self.stream))
            }
            MemoryOrigin::Block(block) if !self.resource.supports_block_use_tracking() => {
                let source = ResourceError::not_tracked(stream);
                Err(PrepareError::Untracked { stream, memory: named(block), source })
            }
            MemoryOrigin::Block(_) | MemoryOrigin::Pinned(_) | MemoryOrigin::Empty => Ok(()),
            MemoryOrigin::External { name } => Err(self.refused_external(name)),
            _ => Err(self.refused_external("memory of an unknown kind")),
        }
    }

    fn refused_external(&self, name: &str) -> PrepareError {
        let memory = RefusedMemory::External { name: name.into(), column: None };
        PrepareError::External { stream: self.stream.id(), memory }
    }
}

pub(crate) mod sealed {
    use super::{LaunchUses, OtherStreams, PrepareError, Tracking};

    /// Memory that is recorded first and viewed once the launch is prepared. Only this crate
    /// implements it: a view of memory that was not recorded would not be ordered.
    pub trait Parts {
        /// The views, which the closure gets.
        type Views<'s>;

        /// Records the uses.
        fn record(&mut self, uses: &mut LaunchUses);

        /// Refuses memory whose uses would not be tracked.
        fn reject_untracked(&self, tracking: &Tracking<'_>) -> Result<(), PrepareError>;

        /// Returns views of memory whose uses are prepared.
        fn into_views<'s>(self, others: &'s OtherStreams<'s>) -> Self::Views<'s>;
    }
}

macro_rules! one_use {
    ($($kind:ident: $memory:ident, $access:expr, $view:ident;)*) => {$(
        impl<M: $memory + ?Sized> Parts for $kind<'_, M> {
            type Views<'s> = $view<'s, M::Element>;

            fn record(&mut self, uses: &mut LaunchUses) {
                uses.record(&*self.0, $access, None);
            }

            fn reject_untracked(&self, tracking: &Tracking<'_>) -> Result<(), PrepareError> {
                tracking.reject_untracked(&*self.0)
            }

            fn into_views<'s>(self, others: &'s OtherStreams<'s>) -> Self::Views<'s> {
                $view::new(&*self.0, others)
            }
        }
    )*};
}

one_use! {
    Reads: TypedMemory, Access::Read, LaunchView;
    Writes: TypedMemoryMut, Access::Write, LaunchViewMut;
    ReadsAndWrites: TypedMemoryMut, Access::ReadWrite, LaunchViewMut;
}

macro_rules! many_uses {
    ($(impl[$($generics:tt)*] $many:ty, $views:ty, $into_views:expr;)*) => {$(
        impl<$($generics)*> Parts for $many {
            type Views<'s> = $views;

            fn record(&mut self, uses: &mut LaunchUses) {
                self.iter_mut().for_each(|part| part.record(uses));
            }

            fn reject_untracked(&self, tracking: &Tracking<'_>) -> Result<(), PrepareError> {
                self.iter().try_for_each(|part| part.reject_untracked(tracking))
            }

            fn into_views<'s>(self, others: &'s OtherStreams<'s>) -> Self::Views<'s> {
                let into_views: fn(Self, &'s OtherStreams<'s>) -> Self::Views<'s> = $into_views;
                into_views(self, others)
            }
        }
    )*};
}

many_uses! {
    impl[P: Parts] Option<P>, Option<P::Views<'s>>,
        |parts, others| parts.map(|part| part.into_views(others));
    impl[P: Parts] Vec<P>, Vec<P::Views<'s>>,
        |parts, others| parts.into_iter().map(|part| part.into_views(others)).collect();
    impl[P: Parts, const N: usize] [P; N], [P::Views<'s>; N],
        |parts, others| parts.map(|part| part.into_views(others));
}

macro_rules! tuples {
    ($($part:ident)*) => {
        #[allow(non_snake_case, unused_variables, clippy::unused_unit)]
        impl<$($part: Parts),*> Parts for ($($part,)*) {
            type Views<'s> = ($($part::Views<'s>,)*);

            #[inline]
            fn record(&mut self, uses: &mut LaunchUses) {
                let ($($part,)*) = self;
                $($part.record(uses);)*
            }

            #[inline]
            fn reject_untracked(&self, tracking: &Tracking<'_>) -> Result<(), PrepareError> {
                let ($($part,)*) = self;
                $($part.reject_untracked(tracking)?;)*
                Ok(())
            }

            #[inline]
            fn into_views<'s>(self, others: &'s OtherStreams<'s>) -> Self::Views<'s> {
                let ($($part,)*) = self;
                ($($part.into_views(others),)*)
            }
        }
    };
}

tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);
