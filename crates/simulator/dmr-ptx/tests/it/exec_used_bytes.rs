//! Loads with `.pragma "used_bytes_mask"`: the bytes outside of the mask are not accessed.

use crate::exec_memory::{BASE, Buffer, load, run};

/// Each thread loads an element with the mask, and stores `%r10`.
fn kernel(pragma: &str, load: &str, end: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 in, .param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .b16 %h<4>; .shared .align 16 .b8 tile[512];
    ld.param.u64 %rd0, [in]; ld.param.u64 %rd5, [out]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd1, %r1, 16; add.s64 %rd2, %rd0, %rd1;
    mul.wide.u32 %rd6, %r1, 4; add.s64 %rd6, %rd5, %rd6; shl.b32 %r5, %r1, 4; mov.u32 %r6, tile; add.u32 %r5, %r5, %r6;
    {pragma}
    {load}
    {end}
    st.global.u32 [%rd6], %r10;
    ret;
}}"
    )
}

const VECTOR: &str = "ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%rd2];";
const SUM: &str = "add.u32 %r10, %r11, %r12; add.u32 %r10, %r10, %r13;";

/// NVRTC 12.9 loads three floats so, where the fourth is outside of the buffer.
#[test]
fn bytes_outside_of_the_mask_are_not_read() {
    let words: Vec<u32> = (0..8).chain((0..15).map(|n| 100 + n)).collect();
    let at = BASE + 32;
    let text = |pragma| kernel(pragma, VECTOR, SUM);
    for pragma in [".pragma \"used_bytes_mask 4095\";", ".pragma \"used_bytes_mask 0xfff\";"] {
        let mut memory = Buffer::of_words(&words);
        run(&text(pragma), 1, 4, &[at, BASE], &mut memory).unwrap();
        assert_eq!(memory.words()[..4], [303, 315, 327, 339]);
    }
    let fault = run(&text(""), 1, 4, &[at, BASE], &mut Buffer::of_words(&words)).unwrap_err();
    assert!(fault.to_string().contains("out of bounds"), "{fault}");
}

#[test]
fn a_mask_with_holes_and_within_an_element_reads_its_bytes() {
    let words: Vec<u32> = (0..32).map(|n| 0x0403_0201 + n * 0x0101_0101).collect();
    let holes = kernel(".pragma \"used_bytes_mask 3855\";", VECTOR, "add.u32 %r10, %r11, %r13;");
    let mut memory = Buffer::of_words(&words);
    run(&holes, 1, 4, &[BASE + 64, BASE], &mut memory).unwrap();
    assert_eq!(memory.words()[..4], [0, 1, 2, 3].map(|n| words[16 + 4 * n] + words[18 + 4 * n]));
    let part = kernel(".pragma \"used_bytes_mask 7\";", "ld.global.u32 %r10, [%rd2];", "");
    let mut memory = Buffer::of_words(&words);
    run(&part, 1, 4, &[BASE + 64, BASE], &mut memory).unwrap();
    assert_eq!(memory.words()[..4], [0, 1, 2, 3].map(|n| words[16 + 4 * n] & 0xff_ffff));
}

/// Another thread may write the bytes that a load does not use.
#[test]
fn bytes_outside_of_the_mask_do_not_race() {
    let text = |pragma| {
        let load = "ld.shared.v4.u32 {%r11, %r12, %r13, %r14}, [%r5];";
        let start = "mov.u32 %r7, 1; st.shared.v4.u32 [%r5], {%r7, %r7, %r7, %r7}; bar.sync 0;
            xor.b32 %r8, %r1, 32; shl.b32 %r8, %r8, 4; add.u32 %r8, %r8, %r6; st.shared.u32 [%r8+12], %r1;";
        kernel("", start, "")
            .replace("st.global", &format!("{pragma}\n{load}\n{SUM}\nst.global"))
            .replace("tile[512]", "tile[1024]")
    };
    let launch = |text: &str| run(text, 1, 64, &[BASE, BASE], &mut Buffer::zeroed(64));
    launch(&text(".pragma \"used_bytes_mask 4095\";")).unwrap();
    launch(&text("")).unwrap_err();
}

/// A pragma is that of the instruction after it alone.
#[test]
fn the_mask_is_that_of_one_instruction() {
    let text = kernel(".pragma \"used_bytes_mask 15\";", &VECTOR.repeat(2), SUM);
    assert!(load(&text).kernels()[0].refusal.is_none());
    run(&text, 1, 1, &[BASE, BASE], &mut Buffer::zeroed(3)).unwrap_err();
}
