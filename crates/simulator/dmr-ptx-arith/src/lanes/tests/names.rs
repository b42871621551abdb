//! Names: what is decoded, what is refused.

use crate::lanes::decode;
use crate::lanes::{Participation, Role};

use super::{exchange, instruction};

fn refusal(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    decode(parts[0], &parts[1..]).expect("a name of this module").expect_err(name)
}

#[test]
fn a_name_of_another_module_is_left_to_it() {
    assert!(decode("add", &["s32"]).is_none());
    assert!(decode("bar", &["sync"]).is_none());
}

#[test]
fn what_is_not_supported_is_an_error_with_the_whole_name() {
    let names = [
        "shfl.sync.left.b32",
        "vote.sync.most.pred",
        "match.any.sync.b16",
        "redux.sync.mul.u32",
        "redux.sync.add.f32",
        "redux.sync.max.abs.s32",
        "redux.sync.and.u32",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.f16.s32",
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m8n8k4.row.col.s32.f16.f16.s32",
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.f32",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.s8.s8.f32",
        "wmma.load.d.sync.aligned.row.m16n16k16.f16",
        "wmma.load.a.sync.aligned.row.m8n8k16.f16",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8",
        "ldmatrix.sync.aligned.m8n8.shared.b16",
        "stmatrix.sync.aligned.m8n8.x3.shared.b16",
        "movmatrix.sync.aligned.m8n8.b16",
    ];
    for name in names {
        let message = refusal(name);
        assert!(message.starts_with(&format!("{name}: ")), "{message}");
    }
}

#[test]
fn the_lanes_that_meet_are_those_of_the_mask_of_the_warp_or_those_here() {
    for name in [
        "shfl.sync.up.b32",
        "vote.sync.any.pred",
        "match.all.sync.b32",
        "redux.sync.or.b32",
        "elect.sync",
    ] {
        let exchange = exchange(name);
        assert_eq!(exchange.participation(), Participation::Members, "{name}");
        assert_eq!(
            exchange.operands().sources.last().map(|source| source.role),
            Some(Role::Members),
            "{name}"
        );
    }
    for name in ["shfl.up.b32", "vote.any.pred", "activemask.b32"] {
        assert_eq!(exchange(name).participation(), Participation::Executing, "{name}");
    }
    let of_the_warp = [
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        "movmatrix.sync.aligned.m8n8.trans.b16",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "wmma.load.a.sync.aligned.row.m16n16k16.f16",
    ];
    for name in of_the_warp {
        assert_eq!(instruction(name).participation(), Participation::Warp, "{name}");
    }
}

#[test]
fn the_shape_comes_before_or_behind_the_number_of_matrices() {
    for (one, other) in [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.x4.m8n8.shared.b16"),
        (
            "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
            "stmatrix.sync.aligned.x2.trans.m8n8.shared.b16",
        ),
    ] {
        assert_eq!(instruction(one), instruction(other));
    }
}
