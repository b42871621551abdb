//! The special registers that a warp keeps while it runs.

use dmr_ptx_arith::{Lanes, WARP};
use dmr_ptx_syntax::SpecialRegister;

use super::launch::{Launch, volume};
use super::workspace::WORKSPACE;

/// The multiprocessors of the simulated device.
const MULTIPROCESSORS: u32 = 132;

impl Launch<'_> {
    /// Returns a special register that a warp keeps while it runs.
    pub(super) fn special(
        &self,
        register: SpecialRegister,
        index: [u32; 3],
        warp: usize,
        shared: usize,
    ) -> Lanes {
        use SpecialRegister as S;
        let of = |values: [u32; 3], dimension: u8| {
            values.get(usize::from(dimension)).copied().unwrap_or(0)
        };
        let cluster = |values: [u32; 3], dimension: u8| {
            of(self.cluster, dimension).max(1).min(of(values, dimension).max(1))
        };
        let of_lane = |lane: usize| {
            let thread = (warp * WARP + lane) as u32;
            let [x, y, _] = self.block;
            let bit = 1u32 << lane;
            u64::from(match register {
                S::Tid(d) => of([thread % x, thread / x % y, thread / x / y], d),
                S::Ntid(d) => of(self.block, d),
                S::Ctaid(d) => of(index, d),
                S::Nctaid(d) => of(self.grid, d),
                S::Clusterid(d) => of(index, d) / cluster(self.grid, d),
                S::Nclusterid(d) => of(self.grid, d) / cluster(self.grid, d),
                S::ClusterCtaid(d) => of(index, d) % cluster(self.grid, d),
                S::ClusterNctaid(d) => of(self.cluster, d),
                S::ClusterCtarank => {
                    let at = |d: u8| of(index, d) % cluster(self.grid, d);
                    at(0) + self.cluster[0] * (at(1) + self.cluster[1] * at(2))
                }
                S::ClusterNctarank => volume(self.cluster) as u32,
                S::IsExplicitCluster => u32::from(self.cluster != [1; 3]),
                S::Laneid => lane as u32,
                S::Warpid => warp as u32,
                S::Nwarpid => (volume(self.block) as usize).div_ceil(WARP) as u32,
                S::Smid => {
                    index[0].wrapping_add(index[1].wrapping_mul(self.grid[0])) % MULTIPROCESSORS
                }
                S::Nsmid => MULTIPROCESSORS,
                S::Gridid => 1,
                S::Envreg(1) if self.is_cooperative => (WORKSPACE >> 32) as u32,
                S::Envreg(2) if self.is_cooperative => WORKSPACE as u32,
                S::LanemaskEq => bit,
                S::LanemaskLt => bit - 1,
                S::LanemaskLe => bit | (bit - 1),
                S::LanemaskGt => !(bit | (bit - 1)),
                S::LanemaskGe => !(bit - 1),
                S::TotalSmemSize | S::AggrSmemSize => shared as u32,
                S::DynamicSmemSize => self.shared_bytes,
                _ => 0,
            })
        };
        match register {
            S::Tid(_)
            | S::Laneid
            | S::LanemaskEq
            | S::LanemaskLt
            | S::LanemaskLe
            | S::LanemaskGt
            | S::LanemaskGe => std::array::from_fn(of_lane),
            _ => [of_lane(0); WARP],
        }
    }
}

/// Returns whether a special register differs between the blocks of a launch.
pub(super) fn depends_on_block(register: SpecialRegister) -> bool {
    use SpecialRegister as S;
    matches!(
        register,
        S::Ctaid(_) | S::Clusterid(_) | S::ClusterCtaid(_) | S::ClusterCtarank | S::Smid
    )
}
