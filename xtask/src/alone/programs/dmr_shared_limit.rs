//! `dmr-shared-limit` alone: two members share a limit.

use dmr_shared_limit::{ChargeError, Largest, SharedLimit, SharedLimitConfig};

fn main() {
    // A group that no other process names.
    let group = format!("alone-{}", std::process::id());
    let config = SharedLimitConfig::new([1; 16], 100).with_group(group);
    let join = || SharedLimit::join(&config).expect("an account");
    let one = join();
    let two = join();
    one.charge(60, Largest::default()).expect("room");
    let refused = two.charge(60, Largest::default());
    assert!(matches!(refused, Err(ChargeError::OverLimit(refusal)) if refusal.remaining() == 40));
    // The last member then removes the account.
    one.release(60, Largest::default());
}
