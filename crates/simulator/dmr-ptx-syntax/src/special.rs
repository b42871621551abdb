//! The special registers of PTX.

/// A special register: what the hardware says about a thread, and not a register of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "the names of the PTX ISA; a number is a dimension, x is 0, or the register's own"
)]
pub enum SpecialRegister {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Clusterid(u8),
    Nclusterid(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    Laneid,
    Warpid,
    Nwarpid,
    Smid,
    Nsmid,
    Gridid,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    Clock,
    ClockHi,
    Clock64,
    Pm(u8),
    Pm64(u8),
    Envreg(u8),
    Globaltimer,
    GlobaltimerLo,
    GlobaltimerHi,
    ReservedSmemOffsetBegin,
    ReservedSmemOffsetEnd,
    ReservedSmemOffsetCap,
    ReservedSmemOffset(u8),
    TotalSmemSize,
    AggrSmemSize,
    DynamicSmemSize,
    CurrentGraphExec,
}

impl SpecialRegister {
    /// Returns the register of this name: `%tid` with the component `x`, `%laneid` without one.
    ///
    /// A vector without a component (`mov.v4.u32 r, %tid`) is its first dimension.
    #[must_use]
    pub fn from_name(name: &str, component: Option<&str>) -> Option<Self> {
        let name = name.strip_prefix('%')?;
        let vector: Option<fn(u8) -> Self> = match name {
            "tid" => Some(Self::Tid),
            "ntid" => Some(Self::Ntid),
            "ctaid" => Some(Self::Ctaid),
            "nctaid" => Some(Self::Nctaid),
            "clusterid" => Some(Self::Clusterid),
            "nclusterid" => Some(Self::Nclusterid),
            "cluster_ctaid" => Some(Self::ClusterCtaid),
            "cluster_nctaid" => Some(Self::ClusterNctaid),
            _ => None,
        };
        match (vector, component) {
            (Some(vector), component) => Some(vector(dimension(component)?)),
            (None, None) => Self::scalar(name),
            (None, Some(_)) => None,
        }
    }

    fn scalar(name: &str) -> Option<Self> {
        Some(match name {
            "cluster_ctarank" => Self::ClusterCtarank,
            "cluster_nctarank" => Self::ClusterNctarank,
            "is_explicit_cluster" => Self::IsExplicitCluster,
            "laneid" => Self::Laneid,
            "warpid" => Self::Warpid,
            "nwarpid" => Self::Nwarpid,
            "smid" => Self::Smid,
            "nsmid" => Self::Nsmid,
            "gridid" => Self::Gridid,
            "lanemask_eq" => Self::LanemaskEq,
            "lanemask_le" => Self::LanemaskLe,
            "lanemask_lt" => Self::LanemaskLt,
            "lanemask_ge" => Self::LanemaskGe,
            "lanemask_gt" => Self::LanemaskGt,
            "clock" => Self::Clock,
            "clock_hi" => Self::ClockHi,
            "clock64" => Self::Clock64,
            "globaltimer" => Self::Globaltimer,
            "globaltimer_lo" => Self::GlobaltimerLo,
            "globaltimer_hi" => Self::GlobaltimerHi,
            "reserved_smem_offset_begin" => Self::ReservedSmemOffsetBegin,
            "reserved_smem_offset_end" => Self::ReservedSmemOffsetEnd,
            "reserved_smem_offset_cap" => Self::ReservedSmemOffsetCap,
            "total_smem_size" => Self::TotalSmemSize,
            "aggr_smem_size" => Self::AggrSmemSize,
            "dynamic_smem_size" => Self::DynamicSmemSize,
            "current_graph_exec" => Self::CurrentGraphExec,
            _ => return Self::numbered(name),
        })
    }

    fn numbered(name: &str) -> Option<Self> {
        let number = |digits: &str, below: u8| {
            let number: u8 = digits.parse().ok()?;
            let canonical = digits.len() == 1 || !digits.starts_with(['0', '+']);
            (number < below && canonical).then_some(number)
        };
        if let Some(rest) = name.strip_prefix("envreg") {
            return number(rest, 32).map(Self::Envreg);
        }
        if let Some(rest) = name.strip_prefix("reserved_smem_offset_") {
            return number(rest, 2).map(Self::ReservedSmemOffset);
        }
        let rest = name.strip_prefix("pm")?;
        match rest.strip_suffix("_64") {
            Some(digits) => number(digits, 8).map(Self::Pm64),
            None => number(rest, 8).map(Self::Pm),
        }
    }
}

fn dimension(component: Option<&str>) -> Option<u8> {
    Some(match component {
        None | Some("x" | "r") => 0,
        Some("y" | "g") => 1,
        Some("z" | "b") => 2,
        Some("w" | "a") => 3,
        Some(_) => return None,
    })
}
