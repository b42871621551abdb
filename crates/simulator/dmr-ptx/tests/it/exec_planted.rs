//! Planted faults of order: each kernel with its fault is a race, and the repaired kernel runs
//! clean.

use crate::exec_memory::{BASE, Buffer, load, run_with};
use dmr_ptx::{Fault, FaultKind};

/// A kernel in two forms that differ in the text that `FAULT` stands for.
struct Planted {
    name: &'static str,
    blocks: u32,
    threads: u32,
    cluster: u32,
    body: &'static str,
    fault: &'static str,
    repaired: &'static str,
}

/// Thread number in `%r1`, block in `%r4`, the address of its word of the tile in `%r2`, of the
/// output in `%rd1`; `%p0` holds in the first warp.
const START: &str = ".reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .f32 %f<10>;
    .shared .align 16 .b8 tile[256];
    ld.param.u64 %rd0, [out]; mov.u32 %r1, %tid.x; mov.u32 %r3, tile; mov.u32 %r4, %ctaid.x;
    mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1; cvt.rn.f32.u32 %f1, %r1;
    and.b32 %r5, %r1, 31; shl.b32 %r5, %r5, 2; add.u32 %r2, %r3, %r5; setp.lt.u32 %p0, %r1, 32;";

const PLANTED: [Planted; 10] = [
    Planted {
        name: "a thread that only arrives at a barrier reads what others have written before it",
        blocks: 1,
        threads: 64,
        cluster: 1,
        body: "@%p0 bra writer; FAULT
            mov.u32 %r6, 0; spin: add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 5000; @%p1 bra spin;
            ld.shared.u32 %r7, [%r2]; st.global.u32 [%rd1], %r7; bra end;
            writer: st.shared.u32 [%r2], %r1; bar.sync 1, 64; end:",
        fault: "bar.arrive 1, 64;",
        repaired: "bar.sync 1, 64;",
    },
    Planted {
        name: "a thread writes after it has arrived at a barrier",
        blocks: 1,
        threads: 64,
        cluster: 1,
        body: "@%p0 bra writer; bar.sync 1, 64; ld.shared.u32 %r7, [%r2]; st.global.u32 [%rd1], %r7; bra end;
            writer: FAULT end:",
        fault: "bar.arrive 1, 64; st.shared.u32 [%r2], %r1;",
        repaired: "st.shared.u32 [%r2], %r1; bar.arrive 1, 64;",
    },
    Planted {
        name: "a thread writes between its arrival at the barrier of the cluster and its wait",
        blocks: 1,
        threads: 64,
        cluster: 1,
        body: "FAULT barrier.cluster.wait.acquire;
            @!%p0 ld.shared.u32 %r7, [%r2]; @!%p0 st.global.u32 [%rd1], %r7;",
        fault: "barrier.cluster.arrive.release; @%p0 st.shared.u32 [%r2], %r1;",
        repaired: "@%p0 st.shared.u32 [%r2], %r1; barrier.cluster.arrive.release; mov.u32 %r8, 0;",
    },
    Planted {
        name: "a block writes global memory between its arrival at the barrier of the cluster and its wait",
        blocks: 2,
        threads: 32,
        cluster: 2,
        body: "setp.eq.u32 %p1, %r4, 0; FAULT barrier.cluster.wait.acquire;
            @!%p1 ld.global.u32 %r7, [%rd1]; @!%p1 st.global.u32 [%rd1+128], %r7;",
        fault: "barrier.cluster.arrive.release; @%p1 st.global.u32 [%rd1], %r1;",
        repaired: "@%p1 st.global.u32 [%rd1], %r1; barrier.cluster.arrive.release; mov.u32 %r8, 0;",
    },
    Planted {
        name: "atomic changes by two blocks have the scope of a block",
        blocks: 2,
        threads: 32,
        cluster: 1,
        body: "FAULT [%rd0], 1;",
        fault: "red.relaxed.cta.global.add.u32",
        repaired: "red.relaxed.gpu.global.add.u32",
    },
    Planted {
        name: "two lanes write floats that differ in their high bytes alone",
        blocks: 1,
        threads: 32,
        cluster: 1,
        body: "FAULT st.global.f32 [%rd0], %f1;",
        fault: "",
        repaired: "mov.f32 %f1, 0f3f800000;",
    },
    Planted {
        name: "the rows of a matrix overlap that a warp stores",
        blocks: 1,
        threads: 32,
        cluster: 1,
        body: "FAULT wmma.store.d.sync.aligned.row.m16n16k16.global.f32
            [%rd0], {%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}, %r6;",
        fault: "mov.u32 %r6, 8;",
        repaired: "mov.u32 %r6, 16;",
    },
    Planted {
        name: "a bulk copy writes global memory, and is not waited for",
        blocks: 1,
        threads: 64,
        cluster: 1,
        body: "setp.eq.u32 %p1, %r1, 0; @%p0 st.shared.u32 [%r2], %r1; fence.proxy.async.shared::cta; bar.sync 0;
            @!%p1 bra stored; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r3], 128;
            cp.async.bulk.commit_group; FAULT
            stored: bar.sync 0; @!%p0 ld.global.u32 %r7, [%rd1+-128]; @!%p0 st.global.u32 [%rd1+128], %r7;",
        fault: "",
        repaired: "cp.async.bulk.wait_group 0;",
    },
    Planted {
        name: "a bulk copy writes global memory, and is waited for until it has read",
        blocks: 1,
        threads: 64,
        cluster: 1,
        body: "setp.eq.u32 %p1, %r1, 0; @%p0 st.shared.u32 [%r2], %r1; fence.proxy.async.shared::cta; bar.sync 0;
            @!%p1 bra stored; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r3], 128;
            cp.async.bulk.commit_group; FAULT
            stored: bar.sync 0; @!%p0 ld.global.u32 %r7, [%rd1+-128]; @!%p0 st.global.u32 [%rd1+128], %r7;",
        fault: "cp.async.bulk.wait_group.read 0;",
        repaired: "cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;",
    },
    Planted {
        name: "a copy reads global memory that another thread overwrites",
        blocks: 1,
        threads: 64,
        cluster: 1,
        body: "@%p0 cp.async.ca.shared.global [%r2], [%rd1], 4; FAULT
            bar.sync 0; @!%p0 st.global.u32 [%rd1+-128], %r1; cp.async.wait_all;",
        fault: "",
        repaired: "cp.async.wait_all;",
    },
];

fn run(planted: &Planted, text: &str) -> Result<(), Box<Fault>> {
    let body = planted.body.replace("FAULT", text);
    let program = load(&format!(".visible .entry k(.param .u64 out) {{ {START}\n{body}\nret; }}"));
    let blocks = planted.blocks;
    let threads = planted.threads;
    run_with(&program, blocks, threads, &[BASE], &mut Buffer::zeroed(256), |launch| {
        launch.cluster = [planted.cluster, 1, 1];
    })
    .map(drop)
}

#[test]
fn each_planted_fault_is_a_race_and_each_repaired_kernel_is_clean() {
    for planted in &PLANTED {
        let name = planted.name;
        let Err(fault) = run(planted, planted.fault) else { panic!("not found: {name}") };
        assert!(matches!(fault.kind, FaultKind::Race { .. }), "{name}: {fault}");
        run(planted, planted.repaired).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    }
}
