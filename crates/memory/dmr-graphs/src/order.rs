//! The order of captured work: a lane for each stream that has joined the capture.

/// The lane of the capture's own stream.
pub(crate) const ORIGIN: usize = 0;

/// The lanes of a capture, and what each has seen of the others.
#[derive(Debug)]
pub(crate) struct Order {
    lanes: Vec<Lane>,
}

/// The work that was captured on a stream since it has joined.
#[derive(Debug)]
struct Lane {
    /// The number of times that another lane was made to come after this one.
    tick: u32,
    /// By lane, the tick that its work comes after; 0 for lanes that are not in the list.
    seen: Vec<u32>,
    /// More work can be captured on it.
    is_open: bool,
}

/// The end of all work that was captured until some call: by lane, the tick that covers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment(Vec<u32>);

impl Order {
    /// Makes the order of a capture that no other stream has joined.
    pub(crate) fn new() -> Self {
        Self { lanes: vec![Lane { tick: 0, seen: Vec::new(), is_open: true }] }
    }

    /// Adds a lane that comes after what the capture's own stream has so far. Returns its index.
    pub(crate) fn fork(&mut self) -> usize {
        let mut seen = self.lanes[ORIGIN].seen.clone();
        self.lanes[ORIGIN].tick += 1;
        see(&mut seen, ORIGIN, self.lanes[ORIGIN].tick);
        self.lanes.push(Lane { tick: 0, seen, is_open: true });
        self.lanes.len() - 1
    }

    /// Makes the capture's own stream come after a lane, which ends.
    pub(crate) fn join(&mut self, lane: usize) {
        let Some(joined) = self.lanes.get_mut(lane) else { return };
        joined.tick += 1;
        joined.is_open = false;
        let tick = joined.tick;
        let seen = std::mem::take(&mut joined.seen);
        let origin = &mut self.lanes[ORIGIN].seen;
        for (of, tick) in seen.into_iter().enumerate() {
            see(origin, of, tick);
        }
        see(origin, lane, tick);
    }

    /// Returns the end of all work that was captured so far, on whichever lane.
    pub(crate) fn now(&self) -> Moment {
        // What an open lane has since its last tick is covered by its next one.
        Moment(self.lanes.iter().map(|lane| lane.tick + u32::from(lane.is_open)).collect())
    }

    /// Returns whether what is captured next on a lane comes after a moment.
    pub(crate) fn comes_after(&self, lane: usize, moment: &Moment) -> bool {
        let Some(Lane { seen, .. }) = self.lanes.get(lane) else { return false };
        let covers = |(of, &tick): (usize, &u32)| {
            of == lane || tick == 0 || seen.get(of).is_some_and(|&seen| seen >= tick)
        };
        moment.0.iter().enumerate().all(covers)
    }
}

impl Moment {
    /// Moves this moment to where the other one is over, too.
    pub(crate) fn join(&mut self, other: &Self) {
        for (of, &tick) in other.0.iter().enumerate() {
            see(&mut self.0, of, tick);
        }
    }
}

fn see(seen: &mut Vec<u32>, of: usize, tick: u32) {
    if seen.len() <= of {
        seen.resize(of + 1, 0);
    }
    seen[of] = seen[of].max(tick);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_comes_after_what_its_lane_has_seen() {
        let mut order = Order::new();
        let start = order.now();
        assert!(order.comes_after(ORIGIN, &start));
        let one = order.fork();
        assert!(order.comes_after(one, &start));
        let forked = order.now();
        for lane in [ORIGIN, one] {
            assert!(!order.comes_after(lane, &forked), "the other one goes on");
        }
        let two = order.fork();
        order.join(one);
        assert!(!order.comes_after(two, &forked));
        assert!(order.comes_after(ORIGIN, &forked));
        let three = order.fork();
        assert!(order.comes_after(three, &forked));
        assert!(!order.comes_after(three, &order.now()));
        order.join(two);
        order.join(three);
        assert!(order.comes_after(ORIGIN, &order.now()));
    }
}
