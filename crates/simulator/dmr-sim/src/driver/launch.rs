//! Execution control: the launches of kernels, and kernels as nodes of graphs.

use std::ffi::{c_int, c_uint, c_void};

use super::arguments::Arguments;
use super::function::MAX_DYNAMIC_SHARED_BYTES;
use super::{Scope, chapter, driver_call};
use crate::abi::*;
use crate::kernel::KernelArgs;
use crate::machine::{NodeWork, Session};

chapter![cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel];

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`: its number, and a value of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchAttribute {
    id: c_int,
    _padding: [u8; 4],
    value: [u32; 16],
}

/// `CUlaunchAttributeID`: the attributes that the simulator looks at, and the last one.
mod attribute {
    use std::ffi::c_int;

    pub(super) const COOPERATIVE: c_int = 2;
    pub(super) const CLUSTER_DIMENSION: c_int = 4;
    pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;
    pub(super) const PROGRAMMATIC_EVENT: c_int = 7;
    pub(super) const LAUNCH_COMPLETION_EVENT: c_int = 12;
    pub(super) const DEVICE_UPDATABLE_KERNEL_NODE: c_int = 13;
    pub(super) const LAST: c_int = 16;
}

/// The attributes of a launch that have an effect.
#[derive(Clone, Copy, Default)]
pub(super) struct LaunchAttributes {
    /// All blocks must be on the device at a time.
    pub(super) is_cooperative: bool,
    /// The dimensions of a cluster, if there are clusters.
    pub(super) cluster: Option<[c_uint; 3]>,
}

impl LaunchAttributes {
    /// Returns the attributes of a node; the default for a node that is no kernel.
    pub(super) fn of(work: &NodeWork) -> Self {
        match work {
            NodeWork::Kernel { args, .. } => {
                Self { is_cooperative: args.is_cooperative(), cluster: args.cluster() }
            }
            _ => Self::default(),
        }
    }

    /// Returns the words of the value of an attribute: zeros for one without an effect.
    pub(super) fn get(&self, id: c_int) -> Outcome<[u32; 16]> {
        let mut value = [0; 16];
        match id {
            attribute::COOPERATIVE => value[0] = self.is_cooperative.into(),
            attribute::CLUSTER_DIMENSION => {
                value[..3].copy_from_slice(&self.cluster.unwrap_or_default())
            }
            0..=attribute::LAST => {}
            _ => return Err(ERROR_INVALID_VALUE),
        }
        Ok(value)
    }

    /// Sets one attribute, given as the words of its value. One that changes the order of work is
    /// refused: the simulator would order too much.
    pub(super) fn set(&mut self, id: c_int, value: &[u32; 16]) -> Outcome {
        match id {
            attribute::COOPERATIVE => self.is_cooperative = value[0] != 0,
            attribute::CLUSTER_DIMENSION => self.cluster = Some([value[0], value[1], value[2]]),
            attribute::PROGRAMMATIC_STREAM_SERIALIZATION
            | attribute::PROGRAMMATIC_EVENT
            | attribute::LAUNCH_COMPLETION_EVENT
            | attribute::DEVICE_UPDATABLE_KERNEL_NODE
                if value.iter().any(|&word| word != 0) =>
            {
                return Err(ERROR_NOT_SUPPORTED);
            }
            // No effect on the result: caches, priorities, scheduling, domains.
            0..=attribute::LAST => {}
            _ => return Err(ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// Returns the blocks of a cluster; 0 without clusters.
    pub(super) fn cluster_blocks(self) -> u32 {
        self.cluster.map_or(0, |sizes| sizes.iter().fold(1, |all: u32, &n| all.saturating_mul(n)))
    }
}

impl LaunchConfig {
    /// Reads the attributes.
    ///
    /// # Safety
    ///
    /// `attributes` points to `attribute_count` attributes.
    pub(super) unsafe fn attributes(&self) -> Outcome<LaunchAttributes> {
        let mut found = LaunchAttributes::default();
        for i in 0..self.attribute_count as usize {
            if self.attributes.is_null() {
                return Err(ERROR_INVALID_VALUE);
            }
            // SAFETY: by this function's contract.
            let attribute = unsafe { self.attributes.add(i).read_unaligned() };
            found.set(attribute.id, &attribute.value)?;
        }
        Ok(found)
    }
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    driver_call("cuLaunchKernel", Scope::Stream(stream), |session| {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            attributes: LaunchAttributes::default(),
        };
        // SAFETY: the driver's contract is that of `launch`.
        unsafe { launch(session, function, stream, shape, Arguments { params, extra }) }
    })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    params: *const *const c_void,
) -> Code {
    driver_call("cuLaunchCooperativeKernel", Scope::Stream(stream), |session| {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            attributes: LaunchAttributes { is_cooperative: true, cluster: None },
        };
        let arguments = Arguments { params, extra: std::ptr::null() };
        // SAFETY: as above.
        unsafe { launch(session, function, stream, shape, arguments) }
    })
}

pub(super) unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    if config.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract a configuration with its attributes.
    let (config, attributes) = unsafe {
        let config = config.read_unaligned();
        let attributes = config.attributes();
        (config, attributes)
    };
    driver_call("cuLaunchKernelEx", Scope::Stream(config.stream), |session| {
        let shape = Shape {
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
            attributes: attributes?,
        };
        // SAFETY: as above.
        unsafe { launch(session, function, config.stream, shape, Arguments { params, extra }) }
    })
}

/// The size of a launch.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) attributes: LaunchAttributes,
}

/// Checks and submits a launch.
///
/// # Safety
///
/// The contract of [`Arguments::read`].
unsafe fn launch(
    session: &mut Session<'_>,
    function: Handle,
    stream: Handle,
    shape: Shape,
    arguments: Arguments,
) -> Outcome {
    let stream = session.stream(stream)?;
    // SAFETY: by this function's contract.
    let (function, args) = unsafe { prepare(session, function, shape, arguments)? };
    crate::machine::launch::launch(session, stream, function, args)
}

/// Checks a launch, and copies its arguments. Returns the kernel's function with them.
///
/// # Safety
///
/// The contract of [`Arguments::read`].
unsafe fn prepare(
    session: &Session<'_>,
    function: Handle,
    shape: Shape,
    arguments: Arguments,
) -> Outcome<(u32, KernelArgs)> {
    let index = session.function_of(function)?;
    check(session, index, shape)?;
    let entry = session.entry(index)?;
    // SAFETY: by this function's contract.
    let copied = unsafe { arguments.read(entry)? };
    let args = KernelArgs::new(copied, shape.grid, shape.block);
    let args = args.with_shared_bytes(shape.shared_bytes);
    let LaunchAttributes { is_cooperative, cluster } = shape.attributes;
    Ok((index, args.with_cluster(cluster).with_cooperation(is_cooperative)))
}

/// `CUDA_KERNEL_NODE_PARAMS`: the part that all versions have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelParams {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    params: *const *const c_void,
    extra: *const *const c_void,
}

impl KernelParams {
    /// Returns the work of a node with these parameters. The attributes are the node's: parameters
    /// have none.
    ///
    /// # Safety
    ///
    /// `this` is null, or points to parameters with the contract of [`Arguments::read`].
    pub(super) unsafe fn work(
        this: *const Self,
        session: &mut Session<'_>,
        attributes: LaunchAttributes,
    ) -> Outcome<NodeWork> {
        if this.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so valid by this function's contract.
        unsafe { this.read_unaligned().node(session, attributes) }
    }

    /// Returns the work of a node with the parameters of the second version, whose function may be
    /// null: then a kernel of a library follows.
    ///
    /// # Safety
    ///
    /// As [`work`](Self::work); a handle follows the parameters.
    pub(super) unsafe fn work_v2(
        this: *const Self,
        session: &mut Session<'_>,
        attributes: LaunchAttributes,
    ) -> Outcome<NodeWork> {
        if this.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so valid by this function's contract.
        unsafe {
            let mut params = this.read_unaligned();
            if params.function == 0 {
                params.function = this.add(1).cast::<Handle>().read_unaligned();
            }
            params.node(session, attributes)
        }
    }

    /// # Safety
    ///
    /// The contract of [`Arguments::read`].
    unsafe fn node(
        self,
        session: &mut Session<'_>,
        attributes: LaunchAttributes,
    ) -> Outcome<NodeWork> {
        let Self { function, grid, block, shared_bytes, params, extra } = self;
        let shape = Shape { grid, block, shared_bytes, attributes };
        // SAFETY: by this function's contract.
        let (function, args) =
            unsafe { prepare(session, function, shape, Arguments { params, extra })? };
        crate::machine::launch::kernel(session, function)?;
        Ok(NodeWork::Kernel { function, args })
    }
}

/// The maximum number of blocks of a cluster, on devices with clusters of more than the portable 8.
const MAX_CLUSTER_BLOCKS: u32 = 16;

/// Refuses a launch that no device can hold.
pub(super) fn check(session: &Session<'_>, function: u32, shape: Shape) -> Outcome {
    let Shape { grid, block, shared_bytes, attributes } = shape;
    let LaunchAttributes { is_cooperative, cluster } = attributes;
    let threads = block.iter().try_fold(1u32, |product, &n| product.checked_mul(n));
    let threads = threads.filter(|threads| (1..=1024).contains(threads));
    let threads = threads.ok_or(ERROR_INVALID_VALUE)?;
    let kernel = session.entry(function)?;
    // What the text of the kernel says about its launches.
    if kernel.max_threads.is_some_and(|most| threads > most)
        || kernel.required_threads.is_some_and(|required| block != required)
    {
        return Err(ERROR_INVALID_VALUE);
    }
    if kernel.required_cluster.is_some_and(|sizes| cluster.is_some_and(|given| given != sizes)) {
        return Err(ERROR_INVALID_CLUSTER_SIZE);
    }
    if let Some(sizes) = cluster.or(kernel.required_cluster) {
        let blocks = sizes.iter().try_fold(1u32, |all, &size| all.checked_mul(size));
        let is_whole = sizes.iter().zip(grid).all(|(&size, grid)| size > 0 && grid % size == 0);
        if !is_whole || blocks.is_none_or(|blocks| blocks > MAX_CLUSTER_BLOCKS) {
            return Err(ERROR_INVALID_CLUSTER_SIZE);
        }
    }
    let allowed = session.function_attribute(function, MAX_DYNAMIC_SHARED_BYTES)?;
    let fits = block[2] <= 64 && grid[0] <= 0x7fff_ffff && grid[1].max(grid[2]) <= 0xffff;
    if !fits || grid.contains(&0) || u64::from(shared_bytes) > allowed as u64 {
        return Err(ERROR_INVALID_VALUE);
    }
    if is_cooperative {
        let blocks: u64 = grid.iter().fold(1, |all, &n| all.saturating_mul(n.into()));
        let room = session.blocks_of_device(function, threads.into(), shared_bytes.into())?;
        if blocks > room {
            return Err(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}
