//! Events: what they record, and what waits for them.

use crate::machine::{Action, Machine, Recorded};

impl Machine {
    /// Records an event after all work of a stream. An event that was destroyed is ignored.
    pub(crate) fn record_event(&mut self, event: u32, stream: u32) {
        let (epoch, deps) = self.begin(stream);
        self.push(epoch, deps, Action::Order);
        let clock = self.streams[stream as usize].clock.clone();
        if let Ok(event) = self.event(event) {
            event.recorded = Some(Recorded { epoch, clock });
            event.captured = None;
        }
    }

    /// Makes later work of a stream come after the last record of an event; an event that was never
    /// recorded is complete.
    pub(crate) fn wait_for_event(&mut self, event: u32, stream: u32) {
        let recorded = self.event(event).ok().and_then(|event| event.recorded.clone());
        let Some(recorded) = recorded else { return };
        let (epoch, mut deps) = self.begin(stream);
        self.streams[stream as usize].clock.join(&recorded.clock);
        deps.push(recorded.epoch);
        self.push(epoch, deps, Action::Order);
    }
}
