//! `set`, `setp` and `slct` against comparisons of values.

use super::reference::Reference;
use super::{CASES, bits, refused, run, run_all};
use rustc_apfloat::ieee::{BFloat, Double, Half, Single};
use std::cmp::Ordering;

/// Returns whether a comparison holds; `None` for an order is that of NaN.
fn holds(comparison: &str, order: Option<Ordering>) -> bool {
    use Ordering::{Equal, Greater, Less};
    match comparison {
        "num" => return order.is_some(),
        "nan" => return order.is_none(),
        _ => {}
    }
    let Some(order) = order else {
        return comparison.len() == 3;
    };
    match &comparison[..2] {
        "eq" => order == Equal,
        "ne" => order != Equal,
        "lt" | "lo" => order == Less,
        "le" | "ls" => order != Greater,
        "gt" | "hi" => order == Greater,
        "ge" | "hs" => order != Less,
        other => panic!("{other}"),
    }
}

const ORDERED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNSIGNED: [&str; 4] = ["lo", "ls", "hi", "hs"];
const FLOAT: [&str; 8] = ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

fn check(
    ty: &str,
    comparisons: &[&str],
    operand: impl Fn(&mut fastrand::Rng) -> u64,
    order: impl Fn(u64, u64) -> Option<Ordering>,
) {
    let mut random = fastrand::Rng::with_seed(3);
    for comparison in comparisons {
        let cases: Vec<[u64; 3]> = (0..CASES / 4)
            .map(|_| {
                let a = operand(&mut random);
                [a, if random.u32(..4) == 0 { a } else { operand(&mut random) }, random.u64(..2)]
            })
            .collect();
        for (combine, apply) in [
            ("", (|t, _| t) as fn(bool, bool) -> bool),
            (".and", |t, c| t && c),
            (".or", |t, c| t || c),
            (".xor", |t, c| t != c),
        ] {
            let results = run_all(&format!("setp.{comparison}{combine}.{ty}"), &cases);
            let values = run_all(&format!("set.{comparison}{combine}.u32.{ty}"), &cases);
            for ((case, result), value) in cases.iter().zip(results).zip(values) {
                let outcome = holds(comparison, order(case[0], case[1]));
                let both =
                    [outcome, !outcome].map(|outcome| u64::from(apply(outcome, case[2] != 0)));
                assert_eq!(result, both, "setp.{comparison}{combine}.{ty} {case:x?}");
                assert_eq!(
                    value[0],
                    both[0] * 0xffff_ffff,
                    "set.{comparison}{combine}.u32.{ty} {case:x?}"
                );
            }
        }
    }
}

#[test]
fn integers_compare_by_value() {
    for width in [16, 32, 64] {
        let operand = |random: &mut fastrand::Rng| bits(random, width);
        check(&format!("u{width}"), &[&ORDERED[..], &UNSIGNED[..]].concat(), operand, |a, b| {
            Some(a.cmp(&b))
        });
        let value = |x: u64| (x << (64 - width)) as i64;
        check(&format!("s{width}"), &ORDERED, operand, |a, b| Some(value(a).cmp(&value(b))));
        check(&format!("b{width}"), &["eq", "ne"], operand, |a, b| Some(a.cmp(&b)));
    }
}

#[test]
fn floating_point_values_compare_ordered_and_unordered() {
    fn float<F: Reference>(ty: &str) {
        check(ty, &[&ORDERED[..], &FLOAT[..]].concat(), F::random, |a, b| {
            F::of(a).partial_cmp(&F::of(b))
        });
    }
    float::<Single>("f32");
    float::<Double>("f64");
    float::<Half>("f16");
    float::<BFloat>("bf16");
}

#[test]
fn ftz_makes_subnormal_operands_zero() {
    assert_eq!(run("setp.eq.ftz.f32", [1, 0x8000_0002]), 1);
    assert_eq!(run("setp.eq.f32", [1, 0x8000_0002]), 0);
    assert_eq!(run("setp.gt.ftz.f16", [1, 0]), 0);
    assert_eq!(run("setp.gt.f16", [1, 0]), 1);
}

#[test]
fn set_has_the_type_of_its_result() {
    assert_eq!(run("set.eq.f32.s32", [4, 4]), 0x3f80_0000);
    assert_eq!(run("set.lt.f32.f32", [0, 0]), 0);
    assert_eq!(run("set.eq.f16.f16", [0x3c00, 0x3c00]), 0x3c00);
    assert_eq!(run("set.lt.bf16.s64", [u64::MAX, 1]), 0x3f80);
    assert_eq!(run("set.eq.u16.bf16", [0, 0x8000]), 0xffff);
    assert_eq!(run("set.gt.f16x2.f16x2", [0x3c00_0000, 0]), 0x3c00_0000);
    assert_eq!(run("set.le.u32.bf16x2", [0x0000_3f80, 0]), 0xffff_0000);
}

#[test]
fn setp_of_pairs_has_one_predicate_for_each_half() {
    assert_eq!(run_all("setp.gt.f16x2", &[[0x3c00_0000, 0]]), [[0, 1]]);
    assert_eq!(run_all("setp.gt.and.bf16x2", &[[0x3f80_3f80, 0, 0]]), [[0, 0]]);
    assert_eq!(run_all("setp.gt.or.bf16x2", &[[0x3f80_0000, 0, 0]]), [[0, 1]]);
}

#[test]
fn slct_selects_by_sign() {
    assert_eq!(run("slct.u32.s32", [5, 6, 0]), 5);
    assert_eq!(run("slct.u32.s32", [5, 6, 0x8000_0000]), 6);
    for (c, expected) in
        [(0x8000_0000, 5), (0x7fc0_0000, 6), (0x8000_0001, 6), (0x3f80_0000, 5), (0xff80_0000, 6)]
    {
        assert_eq!(run("slct.f64.f32", [5, 6, c]), expected, "{c:x}");
    }
    assert_eq!(run("slct.b16.f32.ftz", [5, 6, 0x8000_0001]), 5);
}

#[test]
fn comparisons_that_a_type_does_not_have_are_refused() {
    for opcode in
        ["setp.lo.s32", "setp.lt.b32", "setp.equ.u32", "set.eq.f32.f16x2", "setp.eq.ftz.f64"]
    {
        assert!(!refused(opcode).is_empty());
    }
}
