//! Clusters: blocks that run together, meet at a barrier and access each other's shared memory.

use crate::exec_memory::{BASE, Buffer, load, run_with};
use dmr_ptx::{Fault, FaultKind};

/// Runs 8 blocks of 64 threads in clusters of 4. `%r1` is the thread, `%r2` the rank of the block,
/// `%r3` the address of the thread's word in shared memory, `%r4` that in the next block of the
/// cluster, `%r8` is the rank of that, `%r7` the address of an `mbarrier` object; `%rd1` is the
/// thread's word in global memory, which has a word for each thread.
fn run(body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let text = format!(
        ".visible .entry k(.param .u64 out) {{
            .shared .align 16 .b8 all[256]; .shared .align 8 .b64 object[2];
            .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
            ld.param.u64 %rd0, [out];
            mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r0, all; mov.u32 %r7, object;
            setp.eq.s32 %p1, %r1, 0; setp.eq.s32 %p2, %r2, 0;
            mul.lo.s32 %r5, %r1, 4; add.s32 %r3, %r0, %r5;
            add.s32 %r8, %r2, 1; and.b32 %r8, %r8, 3; mapa.shared::cluster.u32 %r4, %r3, %r8;
            mov.u32 %r9, %ctaid.x; mad.lo.s32 %r10, %r9, 64, %r1; mul.wide.u32 %rd1, %r10, 4; add.s64 %rd1, %rd0, %rd1;
            {body}
            ret; }}"
    );
    let mut memory = Buffer::zeroed(512);
    run_with(&load(&text), 8, 64, &[BASE], &mut memory, |launch| launch.cluster = [4, 1, 1])
        .map(|_| memory.words())
}

/// A number of the thread, in its word of shared memory.
const FILL: &str = "mad.lo.s32 %r6, %r9, 100, %r1; st.shared.u32 [%r3], %r6;";
const MEET: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

/// Returns what the threads of the next block of a cluster have stored.
fn next_numbers() -> Vec<u32> {
    (0..512).map(|n| (n / 256 * 4 + (n / 64 + 1) % 4) * 100 + n % 64).collect()
}

#[test]
fn a_block_reads_the_shared_memory_of_the_next() {
    let read = "ld.shared::cluster.u32 %r6, [%r4]; st.global.u32 [%rd1], %r6;";
    assert_eq!(run(&format!("{FILL} {MEET} {read} {MEET}")).unwrap(), next_numbers());
    let generic = "cvt.u64.u32 %rd2, %r3; cvta.shared.u64 %rd2, %rd2; mapa.u64 %rd3, %rd2, %r8;
        ld.u32 %r6, [%rd3]; st.global.u32 [%rd1], %r6;";
    assert_eq!(run(&format!("{FILL} {MEET} {generic} {MEET}")).unwrap(), next_numbers());
}

#[test]
fn a_block_writes_and_changes_the_shared_memory_of_the_next() {
    let body = format!(
        "st.shared.u32 [%r3], 0; {MEET} mad.lo.s32 %r6, %r2, 100, %r1; st.shared::cluster.u32 [%r4], %r6;
         {MEET} atom.shared::cluster.add.u32 %r11, [%r4], 7; {MEET} ld.shared.u32 %r6, [%r3]; st.global.u32 [%rd1], %r6;"
    );
    let expected: Vec<u32> = (0..512).map(|n| (n / 64 + 3) % 4 * 100 + n % 64 + 7).collect();
    assert_eq!(run(&body).unwrap(), expected);
}

#[test]
fn the_rank_of_an_address_is_that_of_its_block() {
    let body = "getctarank.shared::cluster.u32 %r11, %r3; getctarank.shared::cluster.u32 %r12, %r4;
        mad.lo.s32 %r6, %r11, 10, %r12; st.global.u32 [%rd1], %r6;";
    let expected: Vec<u32> = (0..512).map(|n| n / 64 % 4 * 10 + (n / 64 + 1) % 4).collect();
    assert_eq!(run(body).unwrap(), expected);
}

#[test]
fn the_barrier_orders_threads_of_a_block_and_blocks() {
    let in_block = "xor.b32 %r11, %r5, 252; add.s32 %r11, %r0, %r11; ld.shared.u32 %r6, [%r11];";
    run(&format!("{FILL} {MEET} {in_block}")).unwrap();
    let across = "xor.b32 %r11, %r10, 64; mul.wide.u32 %rd2, %r11, 4; add.s64 %rd2, %rd0, %rd2;
        ld.global.u32 %r6, [%rd2];";
    run(&format!("st.global.u32 [%rd1], 1; {MEET} {across}")).unwrap();
    let fault = run(&format!("{MEET} st.global.u32 [%rd1], 1; {across}")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn a_barrier_that_a_block_never_reaches_is_reported() {
    let body = format!("@%p2 bra spin; {MEET} ret; spin: bar.sync 1, 96;");
    let fault = run(&body).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier(_)), "{fault}");
    // Threads that have exited are not waited for.
    run(&format!("@%p2 ret; {MEET}")).unwrap();
    let fault = run("barrier.cluster.wait.aligned;").unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Invalid(_)), "{fault}");
}

#[test]
fn what_is_not_there_in_another_block_is_refused() {
    let read = "ld.shared::cluster.u32 %r6, [%r4]; setp.eq.u32 %p1, %r6, 0; @%p1 bra end; end:";
    let fault = run(&format!("{MEET} {read}")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Uninitialised { .. }), "{fault}");
    let fault = run(&format!("{FILL} {MEET} ld.shared::cluster.u32 %r6, [%r4+264];")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
    let fault = run("mapa.shared::cluster.u32 %r4, %r3, 4;").unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Invalid(_)), "{fault}");
}

const INIT: &str =
    "@%p1 mbarrier.init.shared::cta.b64 [%r7], %r12; mapa.shared::cluster.u32 %r13, %r7, %r8;";
const WAIT: &str = "wait: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r7], 0; @!%p3 bra wait;";

#[test]
fn threads_arrive_at_an_object_of_the_next_block() {
    let body = format!(
        "mov.u32 %r12, 64; {INIT} st.shared.u32 [%r3], 0; {MEET} mad.lo.s32 %r6, %r9, 100, %r1; st.shared::cluster.u32 [%r4], %r6;
         mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13];
         {WAIT} xor.b32 %r11, %r5, 252; add.s32 %r11, %r0, %r11; ld.shared.u32 %r6, [%r11]; st.global.u32 [%rd1], %r6; {MEET}"
    );
    let expected: Vec<u32> =
        (0..512).map(|n| (n / 256 * 4 + (n / 64 + 3) % 4) * 100 + 63 - n % 64).collect();
    assert_eq!(run(&body).unwrap(), expected);
}

#[test]
fn an_arrival_of_another_block_orders_the_threads_that_wait_for_it() {
    // What a thread has written comes back to the others by way of the next block.
    let body = format!(
        "mov.u32 %r12, 64; {INIT} @%p1 mbarrier.init.shared::cta.b64 [%r7+8], 32; {MEET}
         {FILL} mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13]; {WAIT}
         add.s32 %r14, %r2, 3; and.b32 %r14, %r14, 3; mapa.shared::cluster.u32 %r15, %r7, %r14;
         setp.lt.s32 %p4, %r1, 32; @%p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r15+8];
         again: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r7+8], 0; @!%p3 bra again;
         xor.b32 %r11, %r5, 252; add.s32 %r11, %r0, %r11; ld.shared.u32 %r6, [%r11]; st.global.u32 [%rd1], %r6; {MEET}"
    );
    let expected: Vec<u32> = (0..512).map(|n| n / 64 * 100 + 63 - n % 64).collect();
    assert_eq!(run(&body).unwrap(), expected);
}

#[test]
fn an_object_of_the_next_block_counts_stored_bytes() {
    let body = format!(
        "mov.u32 %r12, 1; {INIT} {MEET} @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %rd4, [%r7], 256;
         mad.lo.s32 %r6, %r9, 100, %r1; st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r4], %r6, [%r13];
         {WAIT} ld.shared.u32 %r6, [%r3]; st.global.u32 [%rd1], %r6; {MEET}"
    );
    let expected: Vec<u32> =
        (0..512).map(|n| (n / 256 * 4 + (n / 64 + 3) % 4) * 100 + n % 64).collect();
    assert_eq!(run(&body).unwrap(), expected);
}

#[test]
fn a_copy_to_several_blocks_is_counted_in_each() {
    let copy = "mul.wide.u32 %rd5, %r9, 256; add.s64 %rd5, %rd0, %rd5; mov.u16 %h1, 13; and.pred %p4, %p1, %p2; @!%p4 bra begun;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%rd5], 256, [%r7], %h1; begun:";
    let body = format!(
        "mov.u32 %r12, 1; {INIT} add.s32 %r6, %r10, 1; st.global.u32 [%rd1], %r6; setp.eq.s32 %p5, %r2, 1; {MEET} @%p5 bra leave;
         @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %rd4, [%r7], 256;
         {copy} {WAIT} ld.shared.u32 %r6, [%r3]; {MEET} st.global.u32 [%rd1], %r6; ret; leave: {MEET}"
    );
    // The block of rank 1 gets nothing.
    let place = |n: u32| if n / 64 % 4 == 1 { n + 1 } else { n / 256 * 256 + n % 64 + 1 };
    assert_eq!(run(&body).unwrap(), (0..512).map(place).collect::<Vec<_>>());
}

#[test]
fn a_grid_has_whole_clusters() {
    let program = load(".visible .entry k() { ret; }");
    for (cluster, is_valid) in
        [([2, 1, 1], true), ([3, 1, 1], false), ([8, 1, 1], true), ([8, 2, 1], false)]
    {
        let result = run_with(&program, 8, 32, &[], &mut Buffer::zeroed(1), |launch| {
            launch.cluster = cluster;
        });
        assert_eq!(result.is_ok(), is_valid, "{cluster:?}");
    }
}

#[test]
fn the_source_of_a_reducing_copy_may_be_mapped_to_the_own_block() {
    let copy = "@!%p1 bra done; mapa.shared::cluster.u32 %r11, %r0, %r2;
        mul.wide.u32 %rd5, %r9, 256; add.s64 %rd5, %rd0, %rd5;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd5], [%r11], 256;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; done:";
    let expected: Vec<u32> = (0..512).map(|n| n / 64 * 100 + n % 64).collect();
    assert_eq!(run(&format!("{FILL} {MEET} {copy}")).unwrap(), expected);
}
