//! `dmr-ptx-syntax` alone: a text with one kernel is parsed.

fn main() {
    let text = ".version 8.0 .target sm_80 .address_size 64 .visible .entry nothing() { ret; }";
    let module = dmr_ptx_syntax::parse(text.as_bytes()).unwrap();
    assert_eq!(module.functions.len(), 1);
}
