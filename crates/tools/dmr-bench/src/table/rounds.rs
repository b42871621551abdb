//! Ours against the best peer, round by round: what decides whether a target is met.

use std::collections::{BTreeMap, BTreeSet};

use super::grid::Grid;
use super::result::{Key, Outcome, column, is_ours, is_reference};
use super::targets;
use crate::percentiles::median;

const COLUMNS: [&str; 6] = ["ours", "best peer", "ratio", "min", "max", "by round"];

const PRESSURE: [&str; 9] = [
    "operations/s",
    "by round",
    "refused",
    "alloc p50",
    "p99",
    "p99.9",
    "max",
    "reserved, MiB",
    "rounds cut short",
];

const PRESSURE_WITH_WORK: [&str; 14] = [
    "operations/s",
    "by round",
    "refused",
    "alloc p50",
    "p99",
    "p99.9",
    "max",
    "refusal p50",
    "refusal p99",
    "refusal p99.9",
    "refusal max",
    "live, MiB",
    "reserved, MiB",
    "rounds cut short",
];

/// Returns the tables of these JSON lines. Lines with the same number in the field `round` are
/// compared.
///
/// A row for each workload and each stack of ours has the median of ours, the best peer with its
/// median, and the ratio of ours to the best peer of the same round: the median, the extremes and
/// each one. The figure is the nanoseconds per operation, in W5 the ratio to `none` of the same
/// program and round. A round in which one side is missing has no ratio. `~` marks a figure that
/// includes a round which was cut short.
#[must_use]
pub fn ratios(lines: &str) -> String {
    let rounds = Rounds::read(lines);
    let mut text = rounds.environments.iter().fold(String::new(), |text, line| text + line + "\n");
    text.push_str(&format!("rounds: {}\n", rounds.numbers.len()));
    let title = "ns per operation (W5: over `none`), and the ratio to the best peer of each round";
    text.push_str(&rounds.against_peers().render(title));
    let title = "W8: medians of the rounds; nanoseconds of one allocation, refused ones included";
    text.push_str(&rounds.limited(Key::is_pressure, &PRESSURE).render(title));
    let title =
        "W9: medians of the rounds; nanoseconds of one allocation that succeeds, and of a refusal";
    let grid = rounds.limited(Key::is_pressure_with_work, &PRESSURE_WITH_WORK);
    text.push_str(&grid.render(title));
    text.push_str(&format!("errors: {}\n", rounds.errors.len()));
    rounds.errors.iter().for_each(|error| text.push_str(&format!("- {error}\n")));
    text
}

/// The lines of one round, by column.
type Round = BTreeMap<String, Outcome>;

#[derive(Default)]
struct Rounds {
    rows: BTreeMap<Key, BTreeMap<u64, Round>>,
    numbers: BTreeSet<u64>,
    environments: BTreeSet<String>,
    errors: Vec<String>,
}

/// A stack of ours beside the peers, or beside one other stack.
#[derive(Debug, PartialEq)]
struct Comparison {
    ours: f64,
    best: String,
    best_median: f64,
    /// By round.
    ratios: Vec<f64>,
    is_cut: bool,
}

impl Rounds {
    fn read(lines: &str) -> Self {
        let mut rounds = Self::default();
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str::<Outcome>(line) {
                Ok(outcome) => rounds.add(outcome),
                Err(error) => rounds.errors.push(format!("unreadable line: {error}")),
            }
        }
        rounds
    }

    fn add(&mut self, outcome: Outcome) {
        self.environments.extend(outcome.environment());
        let number = outcome.round.unwrap_or(0);
        if let Some(error) = &outcome.error {
            let Outcome { bench, resource, workload, .. } = &outcome;
            self.errors.push(format!("round {number}: {bench}/{resource}/{workload}: {error}"));
        } else if let (Some(key), Some(column)) = (Key::of(&outcome), column(&outcome))
            && outcome.ns_per_op.is_some()
        {
            self.numbers.insert(number);
            self.rows.entry(key).or_default().entry(number).or_default().insert(column, outcome);
        }
    }

    fn against_peers(&self) -> Grid {
        let mut grid = Grid::new("target", &COLUMNS.map(str::to_owned), |_| true);
        let is_peer = |name: &str| !is_ours(name) && !is_reference(name);
        for (key, rounds) in self.rows.iter().filter(|(key, _)| !key.is_of_layers()) {
            let names: BTreeSet<&String> = rounds.values().flat_map(Round::keys).collect();
            let ours = names.into_iter().filter(|name| is_ours(name) && !is_reference(name));
            for name in ours {
                if let Some(found) = compare(key, rounds, name, is_peer) {
                    let target = targets::against_best_peer(&key.to_string(), name);
                    let cell = |column: &String| found.cell(key, column);
                    grid.row(&format!("{key} {name}"), target.map(str::to_owned), cell);
                }
            }
            for (pages, blocks) in targets::PAGES_AND_BLOCKS.iter().filter(|_| key.is_pressure()) {
                if let Some(found) = compare(key, rounds, pages, |name| name == *blocks) {
                    let cell = |column: &String| found.cell(key, column);
                    let name = format!("{key} {pages} / {blocks}");
                    grid.row(&name, Some(targets::PAGES_OVER_BLOCKS.to_owned()), cell);
                }
            }
        }
        grid
    }

    /// The rows under a memory limit that `wanted` accepts, of ours and the peers.
    fn limited(&self, wanted: fn(&Key) -> bool, columns: &[&str]) -> Grid {
        let columns: Vec<_> = columns.iter().map(|&name| name.to_owned()).collect();
        let mut grid = Grid::new("", &columns, |_| true);
        for (key, rounds) in self.rows.iter().filter(|(key, _)| wanted(key)) {
            let names: BTreeSet<&String> = rounds.values().flat_map(Round::keys).collect();
            let mut names: Vec<_> = names.into_iter().collect();
            names.sort_by_key(|name| !is_ours(name));
            for name in names {
                let outcomes: Vec<_> =
                    rounds.values().filter_map(|round| round.get(name)).collect();
                grid.row(&format!("{key} {name}"), None, |column| squeezed(&outcomes, column));
            }
        }
        grid
    }
}

impl Comparison {
    fn cell(&self, key: &Key, column: &str) -> Option<String> {
        let figure = |value: f64| match key.is_cross_stream() {
            true => format!("{value:.3}"),
            false => format!("{value:.0}"),
        };
        let cut = if self.is_cut { "~" } else { "" };
        Some(match column {
            "ours" => figure(self.ours) + cut,
            "best peer" => format!("{} {}", self.best, figure(self.best_median)),
            "ratio" => format!("{:.2}", median(&self.ratios)),
            "min" => format!("{:.2}", self.ratios.iter().copied().fold(f64::INFINITY, f64::min)),
            "max" => format!("{:.2}", self.ratios.iter().copied().fold(0.0, f64::max)),
            _ => self.ratios.iter().map(|it| format!("{it:.2}")).collect::<Vec<_>>().join(" "),
        })
    }
}

/// Compares `name` with the best of the columns that are peers in each round; `None` if no round
/// has both.
fn compare(
    key: &Key,
    rounds: &BTreeMap<u64, Round>,
    name: &str,
    is_peer: impl Fn(&str) -> bool,
) -> Option<Comparison> {
    let mut ours = Vec::new();
    let mut ratios = Vec::new();
    let mut is_cut = false;
    let mut peers: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in rounds.values() {
        let Some(own) = figure(key, round, name) else { continue };
        let others: Vec<(&str, f64)> = round
            .keys()
            .filter(|name| is_peer(name))
            .filter_map(|name| Some((name.as_str(), figure(key, round, name)?)))
            .collect();
        let Some(&(best, least)) = others.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else {
            continue;
        };
        ours.push(own);
        ratios.push(own / least);
        is_cut |= round[name].truncated || round[best].truncated;
        others.iter().for_each(|&(peer, figure)| peers.entry(peer).or_default().push(figure));
    }
    let medians = peers.into_iter().map(|(peer, figures)| (peer, median(&figures)));
    let (best, best_median) = medians.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Comparison { ours: median(&ours), best: best.to_owned(), best_median, ratios, is_cut })
}

/// Returns the figure by which the columns of a round are compared; lower is better.
fn figure(key: &Key, round: &Round, name: &str) -> Option<f64> {
    let outcome = round.get(name)?;
    if !key.is_cross_stream() {
        return outcome.ns_per_op;
    }
    let of_program = || {
        let is_none = |other: &&Outcome| {
            other.resource == crate::workload::NONE && is_ours(&other.bench) == is_ours(name)
        };
        Some(outcome.ns_per_op? / round.values().find(is_none)?.ns_per_op?)
    };
    outcome.ratio_to_none.or_else(of_program)
}

/// One cell about W8 or W9, of all rounds of one resource.
fn squeezed(outcomes: &[&Outcome], column: &str) -> Option<String> {
    let all = |of: fn(&Outcome) -> Option<f64>| -> Vec<f64> {
        outcomes.iter().filter_map(|outcome| of(outcome)).collect()
    };
    let middle = |of| Some(all(of)).filter(|all| !all.is_empty()).map(|all| median(&all));
    let whole = |of| middle(of).map(|value| format!("{value:.0}"));
    let count = |count: Option<u64>| count.map(|count| count as f64);
    match column {
        "operations/s" => whole(|it| it.agg_ops_per_s),
        "by round" => {
            let all = all(|it| it.agg_ops_per_s);
            Some(all.iter().map(|it| format!("{it:.0}")).collect::<Vec<_>>().join(" "))
        }
        "refused" => whole(|it| it.failed_allocs.map(|count| count as f64)),
        "alloc p50" => whole(|it| it.alloc_p50.map(|ns| ns as f64)),
        "p99" => whole(|it| it.alloc_p99.map(|ns| ns as f64)),
        "p99.9" => whole(|it| it.alloc_p999.map(|ns| ns as f64)),
        "max" => whole(|it| it.alloc_max.map(|ns| ns as f64)),
        "refusal p50" => whole(|it| it.refused_p50.map(|ns| ns as f64)),
        "refusal p99" => whole(|it| it.refused_p99.map(|ns| ns as f64)),
        "refusal p99.9" => whole(|it| it.refused_p999.map(|ns| ns as f64)),
        "refusal max" => whole(|it| it.refused_max.map(|ns| ns as f64)),
        "live, MiB" => whole(|it| it.peak_live_bytes.map(|bytes| bytes as f64 / MIB)),
        "reserved, MiB" => {
            let limit = count(outcomes.first()?.limit_bytes)? / MIB;
            let reserved = middle(|it| it.peak_reserved_bytes.map(|bytes| bytes as f64))? / MIB;
            Some(format!("{reserved:.0} of {limit:.0}"))
        }
        _ => {
            let cut = outcomes.iter().filter(|outcome| outcome.truncated).count();
            Some(format!("{cut} of {}", outcomes.len()))
        }
    }
}

const MIB: f64 = (1 << 20) as f64;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(round: u64, bench: &str, resource: &str, ns: f64) -> String {
        format!(
            r#"{{"round":{round},"bench":"{bench}","resource":"{resource}","workload":"pingpong","params":{{"size":256}},"ns_per_op":{ns}}}"#
        ) + "\n"
    }

    fn rows(text: &str, title: &str) -> Vec<Vec<String>> {
        let (_, rest) = text.split_once(title).expect("the section");
        let table = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = |line: &str| {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        table.map(cells).collect()
    }

    const TITLE: &str = "ns per operation (W5";

    /// The machine is twice as slow in the second round, and another peer is the best in the third.
    fn three_rounds() -> String {
        [(1, 50.0, 100.0, 120.0), (2, 100.0, 200.0, 240.0), (3, 60.0, 130.0, 80.0)]
            .map(|(round, ours, pool, arena)| {
                line(round, "dmr", "pool-pages", ours)
                    + &line(round, "rmm", "pool", pool)
                    + &line(round, "rmm", "arena", arena)
            })
            .concat()
    }

    #[test]
    fn a_round_is_compared_with_the_best_peer_of_that_round() {
        let text = ratios(&three_rounds());
        let row = &rows(&text, TITLE)[2];
        let expected = [
            "W1 256 dmr-pool-pages",
            "0.33",
            "60",
            "arena 120",
            "0.50",
            "0.50",
            "0.75",
            "0.50 0.50 0.75",
        ];
        assert_eq!(row, &expected, "{text}");
        assert!(text.contains("rounds: 3\n"), "{text}");
    }

    #[test]
    fn a_round_without_ours_or_without_peers_has_no_ratio() {
        let text =
            three_rounds() + &line(4, "dmr", "pool-pages", 1.0) + &line(5, "rmm", "pool", 1.0);
        let row = &rows(&ratios(&text), TITLE)[2];
        assert_eq!((row[2].as_str(), row[7].as_str()), ("60", "0.50 0.50 0.75"));
    }

    #[test]
    fn references_are_no_peers() {
        let text = three_rounds() + &line(1, "dmr", "raw", 1.0) + &line(1, "rmm", "none", 1.0);
        let table = rows(&ratios(&text), TITLE);
        assert_eq!((table.len(), table[2][4].as_str()), (3, "0.50"));
    }

    #[test]
    fn cross_stream_work_is_compared_by_the_ratio_to_none_of_each_program() {
        let lines = [
            ("dmr", "none", 1000.0),
            ("dmr", "pool", 1100.0),
            ("rmm", "none", 2000.0),
            ("rmm", "pool", 2000.0),
        ]
        .map(|(bench, resource, ns)| line(1, bench, resource, ns))
        .concat()
        .replace("pingpong", "crossstream");
        let row = &rows(&ratios(&lines), TITLE)[2];
        assert_eq!(row[2..5], ["1.100", "pool 1.000", "1.10"], "{row:?}");
    }

    #[test]
    fn what_was_cut_short_and_what_failed_is_said() {
        let cut = line(1, "dmr", "async", 9.0).replace(r#""ns_per"#, r#""truncated":true,"ns_per"#);
        let error = r#"{"round":2,"bench":"rmm","resource":"pool","workload":"pressure","error":"no memory"}"#;
        let text = ratios(&format!("{cut}{}{error}\n", three_rounds()));
        assert_eq!(rows(&text, TITLE)[2][..3], ["W1 256 dmr-async", "", "9~"], "{text}");
        assert!(text.contains("errors: 1\n- round 2: rmm/pool/pressure: no memory"), "{text}");
    }

    #[test]
    fn under_pressure_pages_stand_over_blocks_and_every_resource_has_its_row() {
        let lines: String = [("dmr", "pool", 800.0), ("dmr", "pool-pages", 400.0), ("rmm", "arena", 1600.0)]
            .map(|(bench, resource, ns)| {
                let ops = 16e9 / ns;
                format!(r#"{{"round":1,"bench":"{bench}","resource":"{resource}","workload":"pressure","params":{{"threads":16}},"ns_per_op":{ns},"agg_ops_per_s":{ops},"failed_allocs":3,"alloc_p50":1,"alloc_p99":2,"alloc_p999":3,"alloc_max":4,"limit_bytes":2097152,"peak_reserved_bytes":1048576,"truncated":false}}"#) + "\n"
            })
            .concat();
        let text = ratios(&lines);
        let table = rows(&text, TITLE);
        let last = table.last().unwrap();
        assert_eq!(last[0], "W8 t=16 dmr-pool-pages / dmr-pool", "{text}");
        assert_eq!((last[1].as_str(), last[4].as_str()), ("1.00", "0.50"), "{text}");
        let pressure = rows(&text, "W8: medians");
        let expected = [
            "W8 t=16 dmr-pool-pages",
            "40000000",
            "40000000",
            "3",
            "1",
            "2",
            "3",
            "4",
            "1 of 2",
            "0 of 1",
        ];
        assert_eq!(pressure[3], expected, "{text}");
        assert_eq!(pressure[4][0], "W8 t=16 arena", "{text}");
    }
    #[test]
    fn under_pressure_with_work_each_share_of_the_limit_has_its_rows() {
        let lines: String = [(90, "dmr", "pool-pages", 400.0), (90, "rmm", "arena", 800.0), (60, "rmm", "arena", 200.0)]
            .map(|(percent, bench, resource, ns)| {
                let ops = 16e9 / ns;
                format!(r#"{{"round":1,"bench":"{bench}","resource":"{resource}","workload":"pressure_work","params":{{"threads":16,"percent":{percent}}},"ns_per_op":{ns},"agg_ops_per_s":{ops},"failed_allocs":3,"alloc_p50":1,"alloc_p99":2,"alloc_p999":3,"alloc_max":4,"refused_p50":5,"refused_p99":6,"refused_p999":7,"refused_max":8,"limit_bytes":2097152,"peak_live_bytes":1048576,"peak_reserved_bytes":2097152,"truncated":true}}"#) + "\n"
            })
            .concat();
        let text = ratios(&lines);
        let ratios = rows(&text, TITLE);
        assert_eq!(ratios.len(), 3, "{text}");
        assert_eq!(
            ratios[2][..4],
            ["W9 t=16 90 % dmr-pool-pages", "400~", "arena 800", "0.50"],
            "{text}"
        );
        let table = rows(&text, "W9: medians");
        let names: Vec<_> = table[2..].iter().map(|row| row[0].as_str()).collect();
        let expected = ["W9 t=16 60 % arena", "W9 t=16 90 % dmr-pool-pages", "W9 t=16 90 % arena"];
        assert_eq!(names, expected, "{text}");
        let expected = [
            "40000000", "40000000", "3", "1", "2", "3", "4", "5", "6", "7", "8", "1", "2 of 2",
            "1 of 1",
        ];
        assert_eq!(table[3][1..], expected, "{text}");
    }
}
