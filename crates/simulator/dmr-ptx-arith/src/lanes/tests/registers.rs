//! Shuffles, votes, matches, elections and reductions, against CUDA's description of their
//! intrinsics.

use super::{ALL, Random, eval, lanes};
use crate::lanes::Defect;
use crate::{Lanes, Mask};

/// Operand `c` as CUDA's intrinsics compute it from `width`.
fn bounds(width: usize, clamp: u64) -> u64 {
    ((32 - width as u64) << 8) | clamp
}

fn shuffle(mode: &str, b: Lanes, c: u64, executing: Mask) -> (Vec<Lanes>, Result<(), Defect>) {
    let sources = [lanes(|lane| 100 + lane as u64), b, [c; 32], [u64::from(executing); 32]];
    eval(&format!("shfl.sync.{mode}.b32"), &sources, executing, executing)
}

/// Compares a shuffle of a full warp with the lane that CUDA's guide says each lane reads; `None`
/// is its own.
fn check_shuffle(mode: &str, clamp: u64, reads: impl Fn(usize, usize, usize) -> Option<usize>) {
    for width in [1, 2, 4, 8, 16, 32] {
        for b in 0..32 {
            let (out, result) = shuffle(mode, [b as u64; 32], bounds(width, clamp), ALL);
            assert_eq!(result, Ok(()));
            for (lane, (&value, &in_range)) in out[0].iter().zip(&out[1]).enumerate() {
                let source = reads(lane, b, width);
                let expected = (100 + source.unwrap_or(lane) as u64, u64::from(source.is_some()));
                assert_eq!((value, in_range), expected, "{mode} width {width} b {b} lane {lane}");
            }
        }
    }
}

#[test]
fn a_shuffle_up_reads_a_lower_lane_of_its_segment() {
    check_shuffle("up", 0, |lane, b, width| (lane % width >= b).then(|| lane - b));
}

#[test]
fn a_shuffle_down_reads_a_higher_lane_of_its_segment() {
    check_shuffle("down", 0x1f, |lane, b, width| (lane % width + b < width).then_some(lane + b));
}

#[test]
fn a_butterfly_reads_its_segment_or_an_earlier_one() {
    check_shuffle("bfly", 0x1f, |lane, b, width| {
        ((lane ^ b) / width <= lane / width).then_some(lane ^ b)
    });
}

#[test]
fn an_indexed_shuffle_reads_a_lane_of_its_segment() {
    check_shuffle("idx", 0x1f, |lane, b, width| Some(lane / width * width + b % width));
}

#[test]
fn a_clamp_below_the_end_of_the_warp_bounds_the_lanes_that_are_read() {
    let (out, _) = shuffle("down", [3; 32], 9, ALL);
    assert_eq!(&out[0][4..9], &[107, 108, 109, 107, 108]);
    assert_eq!(&out[1][4..9], &[1, 1, 1, 0, 0]);
}

#[test]
fn only_five_bits_of_the_lane_count() {
    let (out, _) = shuffle("idx", lanes(|lane| 32 * lane as u64 + 7), 0x1f, ALL);
    assert_eq!(out[0], [107; 32]);
}

#[test]
fn a_shuffle_that_reads_a_lane_outside_of_the_mask_is_a_defect_and_gives_the_lane_its_own_value() {
    let (out, result) = shuffle("idx", lanes(|lane| if lane == 5 { 20 } else { 1 }), 0x1f, 0xff);
    assert_eq!(result, Err(Defect::ReadsInactive { lane: 5, source: 20 }));
    assert_eq!(&out[0][..10], &[101, 101, 101, 101, 101, 105, 101, 101, 0xdead, 0xdead]);
    let (_, result) = shuffle("down", [4; 32], 0x1f, 0xff);
    assert_eq!(result, Err(Defect::ReadsInactive { lane: 4, source: 8 }));
}

#[test]
fn a_shuffle_without_sync_is_between_the_lanes_that_execute_it() {
    let sources = [lanes(|lane| lane as u64), [1; 32], [0x1f; 32]];
    let (out, result) = eval("shfl.bfly.b32", &sources, 0xf0, 0xf0);
    assert_eq!(result, Ok(()));
    assert_eq!(&out[0][3..9], &[0xdead, 5, 4, 7, 6, 0xdead]);
}

#[test]
fn a_lane_outside_of_its_own_member_mask_and_a_member_that_is_absent_are_defects() {
    let sources = [[1; 32], [0xff; 32]];
    assert_eq!(eval("vote.sync.all.pred", &sources, 0xff, 0x1ff).1, Err(Defect::NotMembers(0x100)));
    let (out, result) = eval("vote.sync.ballot.b32", &sources, 0xff, 0x7f);
    assert_eq!(result, Err(Defect::Missing(0x80)));
    assert_eq!(&out[0][6..8], &[0x7f, 0xdead]);
}

#[test]
fn a_vote_counts_the_predicates_of_the_lanes_that_execute_it() {
    // Members, the lanes where the predicate is true, then all, any, uni, ballot.
    let table = [
        (ALL, ALL, [1, 1, 1, 0xffff_ffff]),
        (ALL, 0, [0, 0, 1, 0]),
        (ALL, 0x8000_0001, [0, 1, 0, 0x8000_0001]),
        (0x0000_ff00, 0xffff_ff00, [1, 1, 1, 0xff00]),
        (0x0000_ff00, 0xffff_00ff, [0, 0, 1, 0]),
        (0x0000_ff00, 0x0000_0100, [0, 1, 0, 0x100]),
    ];
    for (members, truths, expected) in table {
        let sources = [lanes(|lane| u64::from(truths >> lane & 1)), [u64::from(members); 32]];
        for (name, expected) in
            ["all.pred", "any.pred", "uni.pred", "ballot.b32"].into_iter().zip(expected)
        {
            let (out, result) = eval(&format!("vote.sync.{name}"), &sources, members, members);
            assert_eq!(result, Ok(()));
            let expected = lanes(|lane| if members >> lane & 1 == 1 { expected } else { 0xdead });
            assert_eq!(out[0], expected, "{name} of {members:x} with {truths:x}");
        }
    }
}

#[test]
fn a_match_of_any_finds_the_lanes_with_the_same_value() {
    let values = lanes(|lane| if lane == 31 { 2 } else { lane as u64 % 3 });
    let (out, _) = eval("match.any.sync.b32", &[values, [ALL.into(); 32]], ALL, ALL);
    assert_eq!(out[0][0], 0b0100_1001_0010_0100_1001_0010_0100_1001);
    assert_eq!(out[0][31], 0b1010_0100_1001_0010_0100_1001_0010_0100);
    let (out, _) = eval("match.any.sync.b32", &[values, [0x7; 32]], 0x1b, 0x1b);
    assert_eq!(&out[0][..6], &[0b01001, 0b10010, 0xdead, 0b01001, 0b10010, 0xdead]);
}

#[test]
fn a_match_of_all_is_the_mask_or_nothing() {
    let (out, _) = eval("match.all.sync.b64", &[[1 << 40; 32], [0xf; 32]], 0xf, 0xf);
    assert_eq!((out[0][3], out[1][3], out[0][4]), (0xf, 1, 0xdead));
    let differs = lanes(|lane| if lane == 2 { 3 << 40 } else { 1 << 40 });
    let (out, _) = eval("match.all.sync.b64", &[differs, [0xf; 32]], 0xf, 0xf);
    assert_eq!((out[0][3], out[1][3]), (0, 0));
}

#[test]
fn the_lowest_lane_is_elected_and_the_active_mask_is_that_of_the_lanes_here() {
    let (out, _) = eval("elect.sync", &[[0xf0; 32]], 0xf0, 0xf0);
    assert_eq!((&out[0][3..6], &out[1][3..6]), (&[0xdead, 4, 4][..], &[0xdead, 1, 0][..]));
    let (out, result) = eval("activemask.b32", &[], 0x30, 0x30);
    assert_eq!((&out[0][4..7], result), (&[0x30, 0x30, 0xdead][..], Ok(())));
}

#[test]
fn a_reduction_folds_the_values_of_the_members() {
    let mut random = Random(5);
    for members in [ALL, 0x0f0f_0f0f, 1 << 9] {
        let values = lanes(|_| random.next() & 0xffff_ffff);
        let of_members: Vec<u32> = (0..32)
            .filter(|lane| members >> lane & 1 == 1)
            .map(|lane| values[lane] as u32)
            .collect();
        let signed = of_members.iter().map(|&value| value as i32);
        let unsigned = of_members.iter().copied();
        let sum = of_members.iter().map(|&value| u64::from(value)).sum::<u64>() as u32;
        let table = [
            ("add.u32", sum),
            ("add.s32", sum),
            ("min.s32", signed.clone().min().unwrap() as u32),
            ("max.s32", signed.max().unwrap() as u32),
            ("min.u32", unsigned.clone().min().unwrap()),
            ("max.u32", unsigned.max().unwrap()),
            ("and.b32", of_members.iter().fold(u32::MAX, |all, value| all & value)),
            ("or.b32", of_members.iter().fold(0, |all, value| all | value)),
            ("xor.b32", of_members.iter().fold(0, |all, value| all ^ value)),
        ];
        for (name, expected) in table {
            let (out, _) =
                eval(&format!("redux.sync.{name}"), &[values, [0; 32]], members, members);
            let expected =
                lanes(|lane| if members >> lane & 1 == 1 { expected.into() } else { 0xdead });
            assert_eq!(out[0], expected, "{name} of {members:x}");
        }
    }
}

#[test]
fn a_reduction_of_floats_orders_zeros_and_treats_nans_as_its_modifiers_say() {
    let values = |first: [f32; 4]| lanes(|lane| u64::from(first[lane % 4].to_bits()));
    let reduce = |name: &str, first| {
        let (out, _) = eval(&format!("redux.sync.{name}"), &[values(first), [0; 32]], ALL, ALL);
        out[0][0] as u32
    };
    let nan = f32::NAN;
    assert_eq!(reduce("min.f32", [1.0, -3.0, 2.0, 0.5]), (-3.0_f32).to_bits());
    assert_eq!(reduce("max.f32", [1.0, -3.0, 2.0, 0.5]), 2.0_f32.to_bits());
    assert_eq!(reduce("max.abs.f32", [1.0, -3.0, 2.0, 0.5]), 3.0_f32.to_bits());
    assert_eq!(reduce("min.f32", [0.0, -0.0, 0.0, 0.0]), (-0.0_f32).to_bits());
    assert_eq!(reduce("max.f32", [-0.0, 0.0, -0.0, -0.0]), 0.0_f32.to_bits());
    assert_eq!(reduce("max.f32", [nan, -3.0, nan, 0.5]), 0.5_f32.to_bits());
    assert_eq!(reduce("max.NaN.f32", [1.0, -3.0, -nan, 0.5]), 0x7fff_ffff);
    assert_eq!(reduce("min.f32", [nan, -nan, nan, nan]), 0x7fff_ffff);
    assert_eq!(reduce("min.abs.NaN.f32", [nan, 1.0, 1.0, 1.0]), 0x7fff_ffff);
}
