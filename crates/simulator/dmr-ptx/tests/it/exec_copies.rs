//! Asynchronous copies: their bytes may not be used before they are waited for.

use crate::exec_memory::{BASE, Buffer, run};
use dmr_ptx::{Fault, FaultKind, Finished};

/// A kernel with 64 words and an `mbarrier` object in shared memory. `%r1` is the thread, `%r3` the
/// address of its word in shared memory, `%rd1` that in global memory; `%r5` is the address of the
/// word of the thread's opposite, and `%r7` that of the object. `%p1` is true in the first thread.
fn kernel(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 out) {{
            .shared .align 16 .b8 all[512]; .shared .align 8 .b64 object;
            .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
            ld.param.u64 %rd0, [out];
            mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r0, all; mov.u32 %r7, object;
            setp.eq.s32 %p1, %r1, 0;
            mul.lo.s32 %r4, %r1, 4; add.s32 %r3, %r0, %r4; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
            sub.s32 %r5, %r2, %r1; mul.lo.s32 %r5, %r5, 4; add.s32 %r5, %r0, %r5; add.s32 %r5, %r5, -4;
            st.shared.u32 [%r3], 0; st.shared.u32 [%r3+256], 0; bar.sync 2;
            {body}
            ret; }}"
    )
}

/// Runs 64 threads on the words 100, 101, ...
fn copied(body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let words: Vec<u32> = (100..164).collect();
    let mut memory = Buffer::of_words(&words);
    run(&kernel(body), 1, 64, &[BASE], &mut memory).map(|_: Finished| memory.words())
}

fn race(body: &str) -> Box<Fault> {
    let fault = copied(body).expect_err("a race");
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
    fault
}

const COPY: &str = "cp.async.ca.shared.global [%r3], [%rd1], 4;";
/// Stores what is in the thread's word.
const OWN: &str = "ld.shared.u32 %r6, [%r3]; add.s32 %r6, %r6, 1; st.global.u32 [%rd1], %r6;";
/// Stores what is in the word of the opposite thread.
const OPPOSITE: &str = "ld.shared.u32 %r6, [%r5]; bar.sync 1; st.global.u32 [%rd1], %r6;";

#[test]
fn a_thread_reads_its_copy_after_it_has_waited() {
    let expected: Vec<u32> = (101..165).collect();
    for wait in ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"] {
        assert_eq!(copied(&format!("{COPY} {wait} {OWN}")).unwrap(), expected);
    }
    let fault = race(&format!("{COPY}\n{OWN}"));
    assert_eq!((fault.thread.thread, fault.place.line), ([0; 3], 14));
    let message = fault.to_string();
    assert!(message.contains("asynchronous copy at `k`, line 13"), "{message}");
}

#[test]
fn others_read_it_after_the_wait_and_a_barrier() {
    let expected: Vec<u32> = (100..164).rev().collect();
    let wait = "cp.async.wait_all;";
    assert_eq!(copied(&format!("{COPY} {wait} bar.sync 0; {OPPOSITE}")).unwrap(), expected);
    race(&format!("{COPY} bar.sync 0; {OPPOSITE}"));
    race(&format!("{COPY} bar.sync 0; {wait} {OPPOSITE}"));
    race(&format!("{COPY} {wait} {OPPOSITE}"));
}

#[test]
fn the_barrier_comes_after_the_wait() {
    // The second warp has waited before the first one reads, but nothing orders them.
    let body = format!(
        "{COPY} bar.sync 0; setp.ge.s32 %p2, %r1, 32; @%p2 bra late;
         mov.u32 %r8, 0; spin: add.s32 %r8, %r8, 1; setp.lt.s32 %p3, %r8, 5000; @%p3 bra spin;
         ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd1], %r6; late: cp.async.wait_all;"
    );
    race(&body);
}

#[test]
fn a_wait_leaves_out_the_last_groups_and_copies_of_no_group() {
    let second = "cp.async.ca.shared.global [%r3+256], [%rd1], 4;";
    let other = "ld.shared.u32 %r6, [%r3+256];";
    let groups = format!("{COPY} cp.async.commit_group; {second} cp.async.commit_group;");
    copied(&format!("{groups} cp.async.wait_group 1; {OWN} cp.async.wait_group 0; {other}"))
        .unwrap();
    race(&format!("{groups} cp.async.wait_group 1; {other}"));
    race(&format!("{groups} cp.async.wait_group 2; {OWN}"));
    race(&format!("{COPY} cp.async.wait_group 0; {OWN}"));
}

#[test]
fn bytes_of_a_copy_are_not_overwritten_before_it_is_waited_for() {
    race(&format!("{COPY} st.shared.u32 [%r3], 1; cp.async.wait_all;"));
    copied(&format!("{COPY} cp.async.wait_all; st.shared.u32 [%r3], 1;")).unwrap();
}

const INIT: &str = "@%p1 mbarrier.init.shared::cta.b64 [%r7], %r2; bar.sync 0;";
const WAIT: &str = "wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r7], 0; @!%p2 bra wait;";

#[test]
fn an_object_counts_the_copies_of_its_threads() {
    let arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r7];";
    let all = copied(&format!("{INIT} {COPY} {arrive} {WAIT} {OPPOSITE}")).unwrap();
    assert_eq!(all, (100..164).rev().collect::<Vec<_>>());
    race(&format!("{INIT} {COPY} {arrive} {OWN}"));
    race(&format!("{INIT} {COPY} {arrive} bar.sync 0; {OPPOSITE}"));
    race(&format!("{INIT} {COPY} mbarrier.arrive.shared.b64 _, [%r7]; {WAIT} {OWN}"));
}

#[test]
fn a_bulk_copy_to_shared_memory_is_waited_for_at_its_object() {
    let copy = "@!%p1 bra begun; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r7], 256;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 256, [%r7]; begun:";
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r7];";
    let all = copied(&format!("{INIT} {copy} {arrive} {WAIT} {OPPOSITE}")).unwrap();
    assert_eq!(all, (100..164).rev().collect::<Vec<_>>());
    let fault = race(&format!("{INIT} {copy} {arrive} bar.sync 0; {OPPOSITE}"));
    assert!(fault.to_string().contains("asynchronous copy"), "{fault}");
    // A wait for groups is none: what an object counts is in no group.
    let groups = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    race(&format!("{INIT} {copy} {groups} {arrive} bar.sync 0; {OPPOSITE}"));
    let all = copied(&format!("{INIT} {copy} {groups} {arrive} {WAIT} {OPPOSITE}")).unwrap();
    assert_eq!(all, (100..164).rev().collect::<Vec<_>>());
    // A wait for the phase before the copy's is none.
    let phase = "mbarrier.arrive.shared::cta.b64 _, [%r7];";
    race(&format!(
        "{INIT} {phase} {WAIT} bar.sync 0; {copy} again: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r7], 0; @!%p2 bra again; {OPPOSITE}"
    ));
}

#[test]
fn the_source_of_a_bulk_copy_is_kept_until_it_is_waited_for() {
    let fill = "st.shared.u32 [%r3], %r1; bar.sync 0; @!%p1 bra done;";
    let copy = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r0], 256; cp.async.bulk.commit_group;";
    let change = "st.shared.u32 [%r3], 7; done:";
    for wait in ["cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;"] {
        let all = copied(&format!("{fill} {copy} {wait} {change}")).unwrap();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
    }
    let read = "ld.shared.u32 %r6, [%r3];";
    copied(&format!("{fill} {copy} {read} cp.async.bulk.wait_group 0; {change}")).unwrap();
    race(&format!("{fill} {copy} {change}"));
}

#[test]
fn a_copy_that_ignores_its_source_writes_zeros() {
    let body = "and.b32 %r6, %r1, 1; setp.eq.s32 %p2, %r6, 0;
        cp.async.ca.shared.global [%r3], [%rd1], 4, %p2; cp.async.wait_all; ld.shared.u32 %r6, [%r3]; st.global.u32 [%rd1], %r6;";
    let all = copied(body).unwrap();
    assert_eq!(all, (0..64).map(|n| if n % 2 == 0 { 0 } else { 100 + n }).collect::<Vec<_>>());
}

#[test]
fn copies_in_a_loop_are_in_flight_until_the_last_is_waited_for() {
    // More copies of the same bytes than are kept.
    let looped = |label: &str, copy: &str| {
        format!(
            "mov.u32 %r8, 0; {label}: {copy} add.s32 %r8, %r8, 1; setp.lt.s32 %p3, %r8, 300;
             @%p3 bra {label};"
        )
    };
    let copies = |group: &str| looped("again", &format!("{COPY} {group}"));
    let expected: Vec<u32> = (101..165).collect();
    race(&format!("{} {OWN}", copies("")));
    assert_eq!(copied(&format!("{} cp.async.wait_all; {OWN}", copies(""))).unwrap(), expected);
    let commit = "cp.async.commit_group;";
    race(&format!("{} cp.async.wait_group 1; {OWN}", copies(commit)));
    let waited = format!("{} cp.async.wait_group 0; {OWN}", copies(commit));
    assert_eq!(copied(&waited).unwrap(), expected);
    // The last group of these bytes is followed by 300 groups of others.
    let other = "cp.async.ca.shared.global [%r3+256], [%rd1], 4; cp.async.commit_group;";
    let both = format!("{} {}", copies(commit), looped("other", other));
    race(&format!("{both} {OWN}"));
    race(&format!("{both} cp.async.wait_group 301; {OWN}"));
    assert_eq!(copied(&format!("{both} cp.async.wait_group 300; {OWN}")).unwrap(), expected);
    // Others read them after a barrier behind the wait.
    let opposite = format!("bar.sync 0; {OPPOSITE}");
    copied(&format!("{} cp.async.wait_all; {opposite}", copies(""))).unwrap();
    race(&format!("{} bar.sync 0; cp.async.wait_all; {OPPOSITE}", copies("")));
}
