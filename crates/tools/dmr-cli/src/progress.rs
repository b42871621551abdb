//! The progress bar of a replay, and the labels of its operations.

use std::io::{IsTerminal, stderr};

use dmr_trace::ReplayObserver;
use dmr_trace::replay::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::driver::Labels;

/// Shows the progress of a replay, on standard error if that is a terminal.
pub(crate) struct Watch {
    bar: ProgressBar,
    labels: Option<Labels>,
}

impl Watch {
    /// Starts the bar. With `labels`, operations are labelled with their row.
    pub(crate) fn new(labels: Option<Labels>) -> Self {
        let target = if stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("replay   {bar:30} {percent} %  {msg}") {
            bar.set_style(style);
        }
        Self { bar, labels }
    }
}

impl ReplayObserver for Watch {
    fn row(&mut self, line: Option<u64>) {
        if let Some(labels) = &mut self.labels {
            labels.set(line);
        }
    }

    fn progress(&mut self, progress: Progress) {
        if let Some(total) = progress.bytes_total {
            self.bar.set_length(total);
        }
        self.bar.set_position(progress.bytes_read);
        self.bar.set_message(format!("{} rows", progress.rows));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
