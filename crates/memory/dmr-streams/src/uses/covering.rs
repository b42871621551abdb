//! Choosing the waits to queue: those that no other queued wait covers.

use smallvec::SmallVec;

/// Returns, for each of `count` waits, whether it is queued.
///
/// `covers(by, of)` returns whether a stream that waits for `by` also comes after `of`. A wait is
/// left out only if one that is queued covers it. Of waits that cover each other, or several in a
/// circle, one is queued.
pub(super) fn queued(count: usize, covers: impl Fn(usize, usize) -> bool) -> SmallVec<[bool; 8]> {
    let all = 0..count;
    let mut queued: SmallVec<[bool; 8]> =
        all.clone().map(|of| !all.clone().any(|by| by != of && covers(by, of))).collect();
    for of in all.clone() {
        if !queued[of] {
            queued[of] = !all.clone().any(|by| queued[by] && covers(by, of));
        }
    }
    queued
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::queued;

    const EVENTS: usize = 4;

    /// Calls `check` with every relation on four events: bit `by * EVENTS + of` is set if `by`
    /// covers `of`.
    fn for_every_relation(check: impl Fn(&dyn Fn(usize, usize) -> bool, &[bool])) {
        for relation in 0_u32..1 << (EVENTS * EVENTS) {
            let covers = |by: usize, of: usize| relation & 1 << (by * EVENTS + of) != 0;
            check(&covers, &queued(EVENTS, covers));
        }
    }

    #[test]
    fn every_wait_that_is_left_out_is_covered_by_one_that_is_queued() {
        for_every_relation(|covers, queued| {
            for of in (0..EVENTS).filter(|of| !queued[*of]) {
                assert!((0..EVENTS).any(|by| queued[by] && by != of && covers(by, of)));
            }
        });
    }

    #[test]
    fn where_one_wait_covers_all_others_it_is_the_only_one_queued() {
        for_every_relation(|covers, queued| {
            let first =
                |by: usize| (0..EVENTS).all(|of| of == by || covers(by, of) && !covers(of, by));
            if let Some(first) = (0..EVENTS).find(|by| first(*by)) {
                assert!((0..EVENTS).all(|wait| queued[wait] == (wait == first)));
            }
        });
    }
}
