//! `dmr-ptx-arith` alone: 32 lanes are added.

fn main() {
    let add = dmr_ptx_arith::decode("add", &["u32"]).unwrap().unwrap();
    let mut sum = [0; dmr_ptx_arith::WARP];
    let mut second = sum;
    add.eval(&[&[1; 32], &[u64::from(u32::MAX); 32]], &mut sum, &mut second, u32::MAX, &mut 0);
    assert_eq!(sum, [0; 32]);
}
