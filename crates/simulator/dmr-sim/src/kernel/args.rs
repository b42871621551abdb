//! The arguments of one launch of a kernel.

/// The arguments of one launch, by parameter index.
#[derive(Clone, Debug)]
pub struct KernelArgs {
    params: Vec<Box<[u8]>>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    cluster: Option<[u32; 3]>,
    is_cooperative: bool,
}

impl KernelArgs {
    pub(crate) fn new(params: Vec<Box<[u8]>>, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { params, grid, block, shared_bytes: 0, cluster: None, is_cooperative: false }
    }

    pub(crate) fn with_shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    pub(crate) fn with_cluster(self, cluster: Option<[u32; 3]>) -> Self {
        Self { cluster, ..self }
    }

    pub(crate) fn with_cooperation(self, is_cooperative: bool) -> Self {
        Self { is_cooperative, ..self }
    }

    /// Returns the bytes of a parameter; empty if there is none.
    #[must_use]
    pub fn bytes(&self, index: usize) -> &[u8] {
        self.params.get(index).map_or(&[], |param| param)
    }

    /// Returns a 64-bit parameter: pointers and `size_t`. 0 if it is shorter.
    #[must_use]
    pub fn u64(&self, index: usize) -> u64 {
        u64::from_le_bytes(self.head(index))
    }

    /// Returns a 32-bit parameter.
    #[must_use]
    pub fn u32(&self, index: usize) -> u32 {
        u32::from_le_bytes(self.head(index))
    }

    /// Returns a signed 32-bit parameter.
    #[must_use]
    pub fn i32(&self, index: usize) -> i32 {
        i32::from_le_bytes(self.head(index))
    }

    /// Returns a 32-bit float parameter.
    #[must_use]
    pub fn f32(&self, index: usize) -> f32 {
        f32::from_le_bytes(self.head(index))
    }

    /// Returns a 64-bit float parameter.
    #[must_use]
    pub fn f64(&self, index: usize) -> f64 {
        f64::from_le_bytes(self.head(index))
    }

    /// Returns the dimensions of the grid, in blocks.
    #[must_use]
    pub const fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Returns the dimensions of a block, in threads.
    #[must_use]
    pub const fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Returns the dynamic shared memory of a block, in bytes.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Returns the dimensions of a cluster, in blocks, if the launch has them.
    #[must_use]
    pub const fn cluster(&self) -> Option<[u32; 3]> {
        self.cluster
    }

    /// Returns whether the launch is cooperative: its blocks can synchronise as a grid.
    #[must_use]
    pub const fn is_cooperative(&self) -> bool {
        self.is_cooperative
    }

    fn head<const N: usize>(&self, index: usize) -> [u8; N] {
        self.bytes(index).first_chunk().copied().unwrap_or([0; N])
    }
}
