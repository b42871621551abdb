//! The checks of one operation: its declared accesses, or those that a launch has recorded.

use crate::access::{AccessKind, AccessedRanges, AddressRange, Clock, Operation};
use crate::check::{Before, Check, Findings, Report, ReportKind, Shadow};
use crate::kernel::Recording;
use crate::memory::Reach;

/// The stores of undefined values of one launch whose places are searched.
const MOST_PLACES: usize = 256;

impl Shadow {
    /// Runs a check of an operation that comes after all of `clock`.
    pub(crate) fn check_after(
        &mut self,
        clock: Clock,
        out: &mut Findings,
        check: impl FnOnce(&mut Self, Before<'_>, &mut Findings),
    ) {
        let clock = self.words.up_to_date(clock);
        // Taken out of the shadow, which is written to meanwhile.
        let open = self.words.take_open();
        check(self, Before { clock: &clock, open: &open }, out);
        self.words.put_open(open);
    }

    /// Checks the declared accesses of an operation, in the order of `ranges`.
    pub(crate) fn submitted(
        &mut self,
        operation: &Operation,
        ranges: &[AccessedRanges<'_>],
        clock: &Clock,
        reach: Reach<'_>,
        happen: bool,
        out: &mut Findings,
    ) {
        self.words.submitted(operation.epoch, clock);
        let open = self.words.take_open();
        let before = Before { clock, open: &open };
        for AccessedRanges { kind, ranges } in ranges.iter().filter(|some| !some.ranges.is_empty())
        {
            let access = &operation.access(*kind);
            let check = Check { access, before, reach };
            for &bytes in *ranges {
                self.access(bytes, &check, happen, out);
            }
        }
        self.words.put_open(open);
    }

    /// Checks the recorded accesses of a launch, kind by kind. Each set is cut into the blocks that
    /// it touches: a set of bytes joins what lies side by side, but a finding is about one block.
    /// Of equal findings it reports the first: one launch is one mistake, however many ranges it
    /// touches.
    pub(crate) fn launched(
        &mut self,
        operation: &Operation,
        recording: Recording,
        clock: &Clock,
        reach: Reach<'_>,
        out: &mut Findings,
    ) {
        self.words.submitted(operation.epoch, clock);
        let open = self.words.take_open();
        let before = Before { clock, open: &open };
        let mut left = Recording::MAX_RANGES;
        out.begin_launch(recording.sites);
        'all: for (set, kind) in &recording.sets {
            let access = &operation.access(*kind);
            let check = Check { access, before, reach };
            out.in_launch(*kind);
            for mut rest in set.ranges() {
                while !rest.is_empty() {
                    let bytes = self.prefix_in_one_block(rest, &recording.crossed);
                    self.access(AddressRange::new(rest.start(), bytes), &check, true, out);
                    rest = AddressRange::between(rest.start() + bytes, rest.end());
                    if left == 0 {
                        out.verdict.cut_footprints += 1;
                        break 'all;
                    }
                    left -= 1;
                }
            }
        }
        out.in_launch(AccessKind::Write);
        for (number, bytes) in recording.undefined.ranges().enumerate() {
            let store = operation.site();
            let is_searched = number < MOST_PLACES;
            let store = if is_searched { out.placed(store, bytes.start()) } else { store };
            self.undefine(bytes, Some(&store));
        }
        out.end_launch();
        self.words.put_open(open);
        for message in recording.faults {
            let mut second = operation.site();
            second.operation = format!("{}: {message}", second.operation).into();
            out.push(Report::new(ReportKind::KernelFault, second));
        }
        if recording.panicked {
            out.push(Report::new(ReportKind::KernelPanicked, operation.site()));
        }
    }
}
