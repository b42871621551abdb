//! Copies of boxes of tensors, and copies that reduce.

use crate::exec_memory::{BASE, Buffer, run};
use dmr_ptx::{Fault, FaultKind, Swizzle, TensorDimension, TensorElement, TensorMap};

/// The words of the tensor: 10 rows of 40. The box has 4 rows of 32.
const TENSOR: usize = 400;

fn map() -> TensorMap {
    let dimension =
        |size, stride, box_size| TensorDimension { size, stride, box_size, element_stride: 1 };
    TensorMap {
        element: TensorElement::U32,
        address: BASE,
        dimensions: vec![dimension(40, 4, 32), dimension(10, 160, 4)],
        swizzle: Swizzle::None,
        fills_nan: false,
    }
}

/// Runs 128 threads. `%r1` is the thread, `%r3` the address of its word in shared memory, `%rd1`
/// that of its word behind the tensor, `%rd2` the address of the map; `%r10` and `%r11` are the
/// coordinates, and `%r7` is the address of an object.
fn boxed(map: &TensorMap, at: [i32; 2], body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let text = format!(
        ".visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .s32 x, .param .align 8 .s32 y) {{
            .shared .align 128 .b8 all[512]; .shared .align 8 .b64 object;
            .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
            ld.param.u64 %rd0, [out]; ld.param.s32 %r10, [x]; ld.param.s32 %r11, [y];
            mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;
            mov.u32 %r1, %tid.x; mov.u32 %r0, all; mov.u32 %r7, object; setp.eq.s32 %p1, %r1, 0;
            mul.lo.s32 %r4, %r1, 4; add.s32 %r3, %r0, %r4; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
            @%p1 mbarrier.init.shared::cta.b64 [%r7], 128; bar.sync 0;
            {body}
            ret; }}"
    );
    let words: Vec<u32> = (0..TENSOR as u32).map(|n| 1000 + n).chain([0; 128]).collect();
    let mut memory = Buffer::of_words(&words);
    let bytes = map.to_bytes();
    let mut values: Vec<u64> =
        bytes.chunks_exact(8).map(|part| u64::from_le_bytes(part.try_into().unwrap())).collect();
    values.extend([BASE + 4 * TENSOR as u64, at[0] as u32 as u64, at[1] as u32 as u64]);
    run(&text, 1, 128, &values, &mut memory).map(|_| memory.words())
}

const LOAD: &str = "@!%p1 bra begun; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r7], 512;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%rd2, {%r10, %r11}], [%r7];
    begun: mbarrier.arrive.shared::cta.b64 _, [%r7];
    wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r7], 0; @!%p2 bra wait;
    ld.shared.u32 %r6, [%r3]; st.global.u32 [%rd1], %r6;";

const FILL: &str = "add.s32 %r6, %r1, 1; st.shared.u32 [%r3], %r6; bar.sync 0; @!%p1 bra done;";
const WAIT: &str = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; done:";

/// Returns the word of the tensor at a coordinate before the kernel runs.
fn word(x: i32, y: i32) -> Option<u32> {
    ((0..40).contains(&x) && (0..10).contains(&y)).then(|| (1000 + y * 40 + x) as u32)
}

#[test]
fn a_box_is_loaded_and_filled_with_zeros_where_the_tensor_ends() {
    for at in [[0, 0], [8, 6], [20, 8], [-5, -2]] {
        let all = boxed(&map(), at, LOAD).unwrap();
        let place = |n: i32| word(at[0] + n % 32, at[1] + n / 32).unwrap_or(0);
        assert_eq!(all[TENSOR..], (0..128).map(place).collect::<Vec<_>>(), "{at:?}");
    }
}

#[test]
fn elements_out_of_bounds_are_nan_if_the_map_says_so() {
    let map = TensorMap { element: TensorElement::F32, fills_nan: true, ..map() };
    let all = boxed(&map, [39, 9], LOAD).unwrap();
    assert_eq!(all[TENSOR], 1399);
    assert!(all[TENSOR + 1..].iter().all(|&bits| f32::from_bits(bits).is_nan()));
}

#[test]
fn a_swizzled_box_has_its_rows_exchanged() {
    let map = TensorMap { swizzle: Swizzle::Bytes128, ..map() };
    let all = boxed(&map, [4, 3], LOAD).unwrap();
    // A row has 128 bytes: the unit of four words changes with the row.
    let place = |n: i32| word(4 + ((n % 32) ^ (4 * (n / 32))), 3 + n / 32).unwrap();
    assert_eq!(all[TENSOR..], (0..128).map(place).collect::<Vec<_>>());
}

#[test]
fn a_box_of_every_second_element_is_dense_in_shared_memory() {
    let mut map = map();
    map.dimensions[0].element_stride = 2;
    map.dimensions[1] = TensorDimension { box_size: 8, ..map.dimensions[1] };
    let all = boxed(&map, [1, 1], LOAD).unwrap();
    let place = |n: i32| word(1 + 2 * (n % 16), 1 + n / 16).unwrap();
    assert_eq!(all[TENSOR..], (0..128).map(place).collect::<Vec<_>>());
}

#[test]
fn a_box_is_stored_where_it_is_in_the_tensor() {
    let store =
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {%r10, %r11}], [%r0];";
    for (at, swizzle) in [([30, 7], Swizzle::None), ([-1, 2], Swizzle::Bytes128)] {
        let map = TensorMap { swizzle, ..map() };
        let all = boxed(&map, at, &format!("{FILL} {store} {WAIT}")).unwrap();
        let exchange = |x: i32, y: i32| if swizzle == Swizzle::None { x } else { x ^ (4 * y) };
        let place = |n: i32| {
            let x = n % 40 - at[0];
            let y = n / 40 - at[1];
            let is_in_box = (0..32).contains(&x) && (0..4).contains(&y);
            if is_in_box { (y * 32 + exchange(x, y) + 1) as u32 } else { 1000 + n as u32 }
        };
        assert_eq!(all[..TENSOR], (0..TENSOR as i32).map(place).collect::<Vec<_>>());
    }
}

#[test]
fn copies_that_reduce_change_global_memory() {
    let tensor = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd2, {%r10, %r11}], [%r0];";
    let all = boxed(&map(), [4, 3], &format!("{FILL} {tensor} {WAIT}")).unwrap();
    assert_eq!(all[3 * 40 + 3..3 * 40 + 6], [1123, 1124 + 1, 1125 + 2]);
    let plain = "mov.u64 %rd3, %rd0; add.s64 %rd3, %rd3, -512;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.max.u32 [%rd3], [%r0], 256;";
    let most = "mul.lo.s32 %r6, %r1, 20; add.s32 %r6, %r6, 1000;";
    let fill = format!("{most} st.shared.u32 [%r3], %r6; bar.sync 0; @!%p1 bra done;");
    let all = boxed(&map(), [0, 0], &format!("{fill} {plain} {WAIT}")).unwrap();
    let first = TENSOR - 128;
    let expected: Vec<u32> = (0..64).map(|n| (1000 + 20 * n).max(1000 + 272 + n)).collect();
    assert_eq!(all[first..first + 64], expected);
    assert_eq!(all[first + 64], 1000 + first as u32 + 64);
}

#[test]
fn a_box_that_is_not_waited_for_is_a_race() {
    let body = LOAD.replace("@!%p2 bra wait;", "");
    let fault = boxed(&map(), [0, 0], &body).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn bytes_that_are_no_map_are_refused() {
    let body = LOAD.replace("[%rd2,", "[%rd0,");
    let fault = boxed(&map(), [0, 0], &body).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Invalid(_)), "{fault}");
}

#[test]
fn a_box_is_no_larger_than_the_shared_memory_of_the_block() {
    let mut map = map();
    map.dimensions[1] = TensorDimension { box_size: 5, ..map.dimensions[1] };
    // 640 bytes; the block has 520.
    let fault = boxed(&map, [0, 0], LOAD).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Invalid(_)), "{fault}");
    assert!(fault.to_string().contains("520 bytes at most"), "{fault}");
}

#[test]
fn addresses_at_the_end_of_memory_are_refused() {
    let map = TensorMap { address: u64::MAX - 15, ..map() };
    let fault = boxed(&map, [0, 0], LOAD).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Memory { .. }), "{fault}");
    let store =
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {%r10, %r11}], [%r0];";
    let fault = boxed(&map, [0, 0], &format!("{FILL} {store} {WAIT}")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Memory { .. }), "{fault}");
    let plain = "mov.u64 %rd3, -128;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd3], [%r0], 256;";
    let fault = boxed(&map, [0, 0], &format!("{FILL} {plain} {WAIT}")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Memory { .. }), "{fault}");
}
