//! `dmr-report` alone: reports on events of one's own.

use dmr_report::builder::{Allocation, Builder};
use dmr_report::model::Source;
use dmr_report::{page, text};

fn main() {
    let mut builder = Builder::new(Source::default());
    let block = Allocation { key: 1, bytes: 4096, tag: "batch", ..Allocation::default() };
    builder.allocate(0, &block).unwrap();
    builder.free(1_000, &block).unwrap();
    let model = builder.finish();
    assert!(text::report(&model).contains("4 KiB in use"));
    page::write(&model, Vec::new()).unwrap();
}
