//! A runtime reports blocks to the universe that it was built in, and to no other that has its
//! ordinals after that has ended.
//!
//! Alone in its process: another test's universe would have the ordinals.

#![cfg(feature = "pool")]

use dmr::dmr_core::Generation;
use dmr_sim::Universe;
use dmr_testkit::Rig;

#[test]
fn a_universe_gets_no_reports_of_the_pools_of_an_earlier_one_with_its_ordinals() {
    let _alone = crate::alone();
    let rig = Rig::simulated();
    let observer = rig.device().memory_observer().unwrap();
    let ordinal = rig.ordinal();
    drop(rig);
    let universe = Universe::new().unwrap();
    assert_eq!(universe.ordinal(0), ordinal);
    // That would be a finding.
    observer.region_freed(0x1000_0000_0200, Generation::next());
    assert_eq!(universe.reports().len(), 0);
    let own = Rig::in_universe(&universe);
    own.device().memory_observer().unwrap().region_freed(0x1000_0000_0200, Generation::next());
    assert_eq!(universe.reports().len(), 1);
}
