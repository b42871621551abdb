//! The report for a terminal.

use dmr_report::text::report;

use crate::support::open;

#[test]
fn the_text_names_the_peak_its_holders_and_what_was_left_out() {
    let model = open(
        b"time_ns,action,ptr,bytes,stream,tag\n0,allocate,0x10000,1048576,0,weights\n\
          1000000,allocate,0x200000,3145728,1,batch\n2000000,free,0x200000,,1,batch\n\
          2500000,free,0x900000,,1,batch\nx,y,z\n3000000,free,0x10000,,0,weights\n",
    );
    let text = report(&model);
    for line in [
        "events   4 in 3.000 ms · 2 blocks · 2 streams",
        "peak     4 MiB in use at 1.000 ms",
        "              3 MiB   75 %  batch  (1 block)",
        "              1 MiB   25 %  weights  (1 block)",
        "holders       3 MiB  batch, stream 1, from 1.000 ms, freed at 2.000 ms",
        "left out 1 free of blocks that are not live",
        "left out 1 row that cannot be read: line 6: ",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn a_file_without_events_has_a_report() {
    let text = report(&open(b"action,ptr,bytes\n"));
    assert!(text.starts_with("file     ") && text.lines().count() == 1, "{text}");
}
