//! Kernels with one planted fault each: found, with the kind, or missed, as the page about missed
//! faults says. The repaired kernel has no finding.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::support::gpu::{self, Gpu};
use cudarc::driver::sys;
use dmr_sim::{Policy, Report, ReportKind, Universe};

const PAGE: &str = include_str!("../../../../../docs/src/missed-faults.md");

/// A kernel with a fault. Its parameters `%d1` to `%d4` are four buffers one behind the other, of
/// 4,096 bytes each; `%r1` is the number of the thread, `%r2` that of the block, and `%d5` and
/// `%d6` are addresses in the first two, a word for each thread of the block.
struct Planted {
    name: &'static str,
    grid: u32,
    block: u32,
    shared_bytes: u32,
    text: &'static str,
    /// The part of the text that repairs it, and its replacement.
    repair: (&'static str, &'static str),
    expected: Expected,
}

enum Expected {
    Found(ReportKind),
    /// The row of the page begins with this.
    Missed(&'static str),
}
use Expected::{Found, Missed};

const KERNELS: [Planted; 16] = [
    Planted {
        name: "a choice by a word of shared memory that no thread has written",
        grid: 1,
        block: 64,
        shared_bytes: 0,
        text: ".shared .u32 s[64]; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4;
            setp.ne.u32 %p1, %r1, 13; @%p1 st.shared.u32 [%r4], %r1; bar.sync 0;
            xor.b32 %r5, %r1, 1; shl.b32 %r5, %r5, 2; add.u32 %r5, %r3, %r5;
            ld.shared.u32 %r6, [%r5]; setp.gt.u32 %p2, %r6, 5; selp.u32 %r7, 2, 1, %p2;
            st.global.u32 [%d6], %r7;",
        repair: ("@%p1 st.shared", "st.shared"),
        expected: Missed("a store of a value that undefined bits decide in part"),
    },
    Planted {
        name: "a read of the word before a buffer",
        grid: 1,
        block: 128,
        shared_bytes: 0,
        text: "add.s64 %d7, %d6, -4; ld.global.u32 %r3, [%d7]; st.global.u32 [%d5], %r3;",
        repair: ("-4", "0"),
        expected: Found(ReportKind::OutOfBounds),
    },
    Planted {
        name: "a write into the next buffer",
        grid: 9,
        block: 128,
        shared_bytes: 0,
        text: "mad.lo.u32 %r3, %r2, 128, %r1; setp.gt.u32 %p1, %r3, 1024; @%p1 bra DONE;
            mul.wide.u32 %d7, %r3, 4; add.s64 %d7, %d2, %d7; st.global.u32 [%d7], %r3; DONE:",
        repair: ("setp.gt", "setp.ge"),
        expected: Found(ReportKind::OutOfBounds),
    },
    Planted {
        name: "a shuffle from lanes that do not execute it",
        grid: 1,
        block: 32,
        shared_bytes: 0,
        text: "ld.global.u32 %r3, [%d5]; setp.ge.u32 %p1, %r1, 16; @%p1 bra DONE;
            shfl.sync.down.b32 %r4, %r3, 4, 31, 0xffff; st.global.u32 [%d6], %r4; DONE:",
        repair: ("31, 0xffff", "0x100f, 0xffff"),
        expected: Missed("a shuffle from a lane that does not execute it"),
    },
    Planted {
        name: "a flag is read without a fence behind it",
        grid: 2,
        block: 1,
        shared_bytes: 0,
        text: "setp.ne.u32 %p1, %r2, 0; @%p1 bra SECOND; st.global.u32 [%d2], 5; membar.gl;
            atom.global.exch.b32 %r3, [%d3], 1; bra DONE;
            SECOND: atom.global.add.u32 %r3, [%d3], 0; setp.eq.u32 %p2, %r3, 0; @%p2 bra SECOND;
            /* no fence */ ld.global.u32 %r4, [%d2]; st.global.u32 [%d2+4], %r4; DONE:",
        repair: ("/* no fence */", "membar.gl;"),
        expected: Missed("a flag is read without a fence behind it,"),
    },
    Planted {
        name: "an unrelated atomic operation where a flag belongs",
        grid: 2,
        block: 1,
        shared_bytes: 0,
        text: "setp.ne.u32 %p1, %r2, 0; @%p1 bra SECOND; st.global.u32 [%d2], 5; membar.gl;
            atom.global.exch.b32 %r3, [%d3], 1; bra DONE;
            SECOND: atom.global.add.u32 %r3, [%d4], 1; /* waits for nothing */ membar.gl;
            ld.global.u32 %r4, [%d2]; st.global.u32 [%d2+4], %r4; DONE:",
        repair: (
            "/* waits for nothing */",
            "FLAG: atom.global.add.u32 %r3, [%d3], 0; setp.eq.u32 %p2, %r3, 0; @%p2 bra FLAG;",
        ),
        expected: Missed("a flag is read without a fence behind it, a wrong flag is read, an unrelated"),
    },
    Planted {
        name: "a wrong flag is read",
        grid: 3,
        block: 1,
        shared_bytes: 0,
        text: "mul.wide.u32 %d7, %r2, 4; add.s64 %d8, %d3, %d7; add.s64 %d7, %d2, %d7;
            setp.eq.u32 %p1, %r2, 2; @%p1 bra THIRD;
            st.global.u32 [%d7], 5; membar.gl; atom.global.exch.b32 %r3, [%d8], 1; bra DONE;
            THIRD: atom.global.add.u32 %r3, [%d3+0], 0; setp.eq.u32 %p2, %r3, 0; @%p2 bra THIRD;
            membar.gl; ld.global.u32 %r4, [%d2+4]; st.global.u32 [%d2+8], %r4; DONE:",
        repair: ("[%d3+0]", "[%d3+4]"),
        expected: Missed("a flag is read without a fence behind it, a wrong flag is read,"),
    },
    Planted {
        name: "a bulk copy without a fence between the proxies",
        grid: 1,
        block: 64,
        shared_bytes: 0,
        text: ".shared .align 16 .u32 s[64]; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4;
            st.shared.u32 [%r4], %r1; /* no fence */ bar.sync 0;
            setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;
            cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r3], 256;
            cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; DONE:",
        repair: ("/* no fence */", "fence.proxy.async;"),
        expected: Missed("a missing `fence.proxy.async`"),
    },
    Planted {
        name: "the rows of a matrix that is loaded end behind the buffer",
        grid: 1,
        block: 32,
        shared_bytes: 0,
        text: "add.s64 %d7, %d1, 2144;
            wmma.load.a.sync.aligned.row.m16n16k16.global.f16
            {%r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10}, [%d7], 72; st.global.u32 [%d6], %r3;",
        repair: ("72", "64"),
        expected: Found(ReportKind::OutOfBounds),
    },
    Planted {
        name: "the rows of a matrix that is stored overlap",
        grid: 1,
        block: 32,
        shared_bytes: 0,
        text: "cvt.rn.f32.u32 %f1, %r1;
            wmma.store.d.sync.aligned.row.m16n16k16.global.f32
            [%d2], {%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}, 8;",
        repair: ("}, 8", "}, 16"),
        expected: Found(ReportKind::KernelFault),
    },
    Planted {
        name: "two blocks add by atomic operations of the scope of a block",
        grid: 2,
        block: 64,
        shared_bytes: 0,
        text: "red.global.cta.add.u32 [%d2], 1;",
        repair: (".cta", ".gpu"),
        expected: Found(ReportKind::KernelFault),
    },
    Planted {
        name: "a read of another block's shared memory before it was written",
        grid: 2,
        block: 64,
        shared_bytes: 0,
        text: CLUSTER_READ,
        repair: ("/* before */", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
        expected: Missed("the shared memory of another block of a cluster,"),
    },
    Planted {
        name: "a read of the shared memory of a block that may have ended",
        grid: 2,
        block: 64,
        shared_bytes: 0,
        text: CLUSTER_END,
        repair: ("/* after */", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
        expected: Missed("the shared memory of another block of a cluster, also after that block's exit"),
    },
    Planted {
        name: "a read by the read-only path of what the launch has written",
        grid: 1,
        block: 64,
        shared_bytes: 0,
        text: "st.global.u32 [%d5], %r1; ld.global.nc.u32 %r3, [%d5]; st.global.u32 [%d6], %r3;",
        repair: (".nc", ""),
        expected: Missed("a read by `ld.global.nc`"),
    },
    Planted {
        name: "volatile words of shared memory without a barrier of the warp",
        grid: 1,
        block: 32,
        shared_bytes: 0,
        text: ".shared .u32 s[64]; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4;
            st.volatile.shared.u32 [%r4], %r1; st.volatile.shared.u32 [%r4+128], %r1; /* none */
            ld.volatile.shared.u32 %r5, [%r4+64]; st.global.u32 [%d6], %r5;",
        repair: ("/* none */", "bar.warp.sync 0xffffffff;"),
        expected: Missed("`volatile` accesses to shared memory by lanes that are not synchronised"),
    },
    Planted {
        name: "a barrier of a grid whose blocks do not fit on the device",
        grid: 300,
        block: 32,
        shared_bytes: 204_800,
        text: "setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE; red.global.add.u32 [%d2], 1;
            WAIT: atom.global.add.u32 %r3, [%d2], 0; setp.lt.u32 %p2, %r3, 300; @%p2 bra WAIT; DONE:",
        repair: ("@%p2 bra WAIT;", ""),
        expected: Missed("a grid that waits for blocks that are not resident on a device"),
    },
];

/// Each block writes its words, and reads those of the other one.
const CLUSTER_READ: &str =
    ".shared .u32 s[64]; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4;
    st.shared.u32 [%r4], %r1; bar.sync 0; /* before */
    xor.b32 %r5, %r2, 1; mapa.shared::cluster.u32 %r6, %r4, %r5; ld.shared::cluster.u32 %r7, [%r6];
    st.global.u32 [%d6], 7; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

/// The first block reads the words of the other one, which has nothing more to do.
const CLUSTER_END: &str =
    ".shared .u32 s[64]; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4;
    st.shared.u32 [%r4], %r1; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.ne.u32 %p1, %r2, 0; @%p1 bra LAST; mapa.shared::cluster.u32 %r6, %r4, 1;
    ld.shared::cluster.u32 %r7, [%r6]; st.global.u32 [%d6], %r7; LAST: /* after */";

/// Runs a kernel, and returns the findings.
fn run(planted: &Planted, text: &str) -> Vec<Report> {
    let universe = Universe::builder().policy(Policy::Eager).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let cluster =
        if text.contains("cluster") { ".explicitcluster .reqnctapercluster 2" } else { "" };
    let module = format!(
        ".version 8.3\n.target sm_90\n.address_size 64
        .visible .entry k(.param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4) {cluster} {{
        .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<9>; .reg .f32 %f<4>;
        ld.param.u64 %d1, [p1]; ld.param.u64 %d2, [p2]; ld.param.u64 %d3, [p3]; ld.param.u64 %d4, [p4];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
        mul.wide.u32 %d7, %r1, 4; add.s64 %d5, %d1, %d7; add.s64 %d6, %d2, %d7;
        {text} ret; }}"
    );
    let kernel = gpu::kernel(&module, "k").unwrap();
    let mut buffers = [(); 4].map(|()| gpu::malloc(4096).unwrap());
    for &buffer in &buffers {
        gpu::fill(buffer, 0, 4096, null_mut()).unwrap();
    }
    let mut params = buffers.each_mut().map(|buffer| std::ptr::from_mut(buffer).cast::<c_void>());
    let shared = planted.shared_bytes;
    let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the parameters are those of the kernel, and live during the call.
    unsafe {
        sys::cuFuncSetAttribute(kernel, most, shared as i32).result().unwrap();
        let grid = planted.grid;
        let block = planted.block;
        let params = params.as_mut_ptr();
        let stream = null_mut();
        sys::cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, stream, params, null_mut())
            .result()
            .unwrap();
    }
    let _ = gpu::sync_context();
    let _ = gpu::read(buffers[1], 4096);
    universe.reports()
}

#[test]
fn each_planted_fault_is_found_or_on_the_page_and_the_repaired_kernel_is_clean() {
    let mut wrong = Vec::new();
    for planted in &KERNELS {
        let found = run(planted, planted.text);
        let is_right = match &planted.expected {
            Found(kind) => !found.is_empty() && found.iter().all(|report| report.kind == *kind),
            Missed(row) => {
                found.is_empty() && PAGE.lines().any(|line| line.starts_with(&format!("| {row}")))
            }
        };
        let (from, to) = planted.repair;
        assert_eq!(planted.text.matches(from).count(), 1, "{}", planted.name);
        let repaired = run(planted, &planted.text.replace(from, to));
        if !is_right || !repaired.is_empty() {
            wrong.push(format!("{}: {found:#?}, repaired: {repaired:?}", planted.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
