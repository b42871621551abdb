//! The attributes of the simulated devices: those of an NVIDIA H200, where the simulator has what
//! they describe.

use std::ffi::c_int;

use crate::abi::{ERROR_INVALID_VALUE, Outcome};

/// The attributes that are not 0: numbers of `CUdevice_attribute`, and values.
///
/// Measured on an H200 with driver 580.159. An attribute that says whether a feature exists is 0
/// where the simulator refuses the feature; so are numbers of the bus.
const VALUES: &[(std::ops::RangeInclusive<c_int>, c_int)] = &[
    // Launches: threads of a block, its dimensions x, y, z; grid x, y, z.
    (1..=3, 1024),
    (4..=4, 64),
    (5..=5, c_int::MAX),
    (6..=7, 65_535),
    (8..=8, 48 << 10), // bytes of shared memory of a block, without a request for more
    (9..=9, 64 << 10), // bytes of constant memory
    (10..=10, 32),     // threads of a warp
    (11..=11, c_int::MAX), // bytes of the pitch of a copy
    (12..=12, 65_536), // registers of a block
    (13..=13, 1_980_000), // clock, kHz
    (14..=14, 512),    // alignment of textures, bytes
    (15..=15, 1),      // copies beside kernels
    (16..=16, 132),    // multiprocessors
    (19..=19, 1),      // mapped host memory
    // Largest textures: 1-D, 2-D, 3-D, layers.
    (21..=22, 131_072),
    (23..=23, 65_536),
    (24..=26, 16_384),
    (27..=28, 32_768),
    (29..=29, 2048),
    (30..=30, 512),       // alignment of surfaces, bytes
    (31..=31, 1),         // kernels beside each other
    (32..=32, 1),         // error correction
    (36..=36, 3_201_000), // memory clock, kHz
    (37..=37, 6016),      // memory bus, bits
    (38..=38, 60 << 20),  // bytes of the L2 cache
    (39..=39, 2048),      // threads of a multiprocessor
    (40..=40, 3),         // copy engines
    (41..=41, 1),         // unified addressing
    (42..=42, 32_768),
    (43..=43, 2048),
    (45..=46, 32_768),
    (47..=48, 8192),
    (49..=49, 32_768),
    (51..=51, 32), // alignment of the pitch of textures, bytes
    (52..=53, 32_768),
    (54..=54, 2046),
    (55..=55, 32_768),
    (56..=56, 131_072),
    (57..=57, 65_536),
    (58..=60, 16_384),
    (61..=61, 32_768),
    (62..=62, 2048),
    (63..=64, 32_768),
    (65..=65, 2048),
    (66..=67, 32_768),
    (68..=68, 2046),
    (69..=69, 1 << 28),
    (70..=70, 131_072),
    (71..=71, 65_000),
    (72..=72, 2_097_120),
    (73..=74, 32_768),
    (75..=75, 9), // compute capability, major; the minor number is 0
    (77..=77, 32_768),
    (78..=80, 1),            // stream priorities, caches of global and of local memory
    (81..=81, 228 << 10),    // bytes of shared memory of a multiprocessor
    (82..=82, 65_536),       // registers of a multiprocessor
    (83..=83, 1),            // managed memory
    (87..=87, 2),            // speed of single to double precision
    (89..=91, 1), // managed memory beside the host, preemption, host pointers of registered memory
    (92..=94, 1), // stream memory operations, first version: 0 there, where the functions still exist
    (95..=95, 1), // cooperative launches
    (97..=97, 227 << 10), // bytes of shared memory of a block, on request
    (99..=99, 1), // registration of host memory
    (102..=102, 1), // virtual memory; 103 to 105 and 128, exporting it, are 0
    (106..=106, 32), // blocks of a multiprocessor
    (108..=108, 39_321_600), // bytes of the L2 cache that accesses can persist in
    (109..=109, 1 << 27), // bytes of an access policy window
    (110..=110, 1), // RDMA to virtual memory
    (111..=111, 1024), // bytes of shared memory that the driver reserves in each block
    (113..=113, 1), // read-only registration of host memory
    (115..=115, 1), // memory pools
    (120..=120, 1), // clusters
    (122..=123, 1), // stream memory operations: 64 bits, NOR
    (126..=126, 4), // domains of memory synchronisation
    (131..=131, -1), // the host's memory node
];

/// The greatest attribute that the driver has.
const LAST: c_int = 147;

/// Returns the value of a `CUdevice_attribute` of the simulated device.
pub(crate) fn device_attribute(attribute: c_int) -> Outcome<c_int> {
    if !(1..=LAST).contains(&attribute) {
        return Err(ERROR_INVALID_VALUE);
    }
    let found = VALUES.iter().find(|(numbers, _)| numbers.contains(&attribute));
    Ok(found.map_or(0, |(_, value)| *value))
}
