//! A file that is truncated, damaged or foreign is an error that names the byte; what stands before
//! it is returned.

use dmr_recording::{Event, MAGIC, Problem, ReadError, Reader, Record};
use fastrand::Rng;

use crate::files::file;
use crate::support::record;

struct Read {
    records: Vec<Record>,
    error: Option<ReadError>,
}

fn read(file: &[u8]) -> Read {
    let mut records = Vec::new();
    let mut error = None;
    match Reader::new(file) {
        Ok(reader) => {
            for record in reader {
                match record {
                    Ok(record) => records.push(record),
                    Err(found) => error = Some(found),
                }
            }
        }
        Err(found) => error = Some(found),
    }
    Read { records, error }
}

#[test]
fn a_file_cut_anywhere_is_read_up_to_its_last_whole_chunk() {
    let mut rng = Rng::with_seed(3);
    let written: Vec<_> = (0..60).map(|_| record(&mut rng)).collect();
    let whole = file(&written, 3);
    let all = read(&whole).records;
    let mut fewest = 0;
    for len in 0..whole.len() {
        let Read { records, error } = read(&whole[..len]);
        assert_eq!(records, all[..records.len()], "cut at {len}");
        assert!(records.len() >= fewest, "cut at {len}");
        fewest = records.len();
        match error {
            Some(error) => assert_eq!(error.at, len as u64, "{error}"),
            // Between two chunks.
            None => assert!(records.is_empty() || records.len() % 3 == 1, "cut at {len}"),
        }
    }
    assert_eq!(fewest, all.len() - 1, "all but the summary");
}

#[test]
fn a_byte_that_was_changed_is_found_and_its_chunk_named() {
    let mut rng = Rng::with_seed(4);
    let written: Vec<_> = (0..60).map(|_| record(&mut rng)).collect();
    let whole = file(&written, 3);
    let all = read(&whole).records;
    for at in MAGIC.len() + 4..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << rng.u32(..8);
        let Read { records, error } = read(&damaged);
        let error = error.unwrap_or_else(|| panic!("byte {at} was changed"));
        assert_eq!(records, all[..records.len()]);
        assert!(error.at <= at as u64, "byte {at} was changed: {error}");
    }
}

#[test]
fn a_foreign_file_and_another_version_are_refused_by_name() {
    let problem = |file: &[u8]| read(file).error.map(|error| (error.at, error.problem));
    assert_eq!(problem(b""), Some((0, Problem::NoMagic)));
    assert_eq!(problem(b"order,time_ns,thread,action"), Some((0, Problem::NoMagic)));
    assert_eq!(problem(&MAGIC[..5]), Some((5, Problem::NoMagic)));
    assert_eq!(problem(&MAGIC), Some((8, Problem::Truncated)));
    let mut newer = file(&[], 1);
    newer[8] = 9;
    assert_eq!(problem(&newer), Some((8, Problem::Version(9))));
    let error = Reader::new(&newer[..]).unwrap_err().to_string();
    let text = "byte 8: a recording of version 9 of the format, and this program reads 1 to 2";
    assert_eq!(error, text);
}

#[test]
fn a_chunk_that_claims_too_much_is_refused_before_it_is_read() {
    let mut hostile = file(&[], 1);
    let at = hostile.len();
    hostile.extend_from_slice(&[0xff, 0xff, 0xff, 0xff ^ 0xa5]);
    hostile.extend_from_slice(&[0; 64]);
    let Read { records, error } = read(&hostile);
    assert!(matches!(records[..], [_, Record { event: Event::Summary(_), .. }]));
    let error = error.unwrap();
    assert_eq!((error.at, error.problem), (at as u64, Problem::ChunkLength(0xff_ffff)));
}
