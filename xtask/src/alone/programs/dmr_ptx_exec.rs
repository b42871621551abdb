//! `dmr-ptx-exec` alone: a text with one kernel is loaded.

fn main() {
    let text = ".version 8.0 .target sm_80 .address_size 64 .visible .entry nothing() { ret; }";
    let program = dmr_ptx_exec::Program::load(text).unwrap();
    assert!(program.kernel("nothing").is_some_and(|kernel| kernel.refusal.is_none()));
}
