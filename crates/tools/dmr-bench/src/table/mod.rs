//! Ours and the peers' results side by side, ratios included.

mod grid;
mod result;
mod rounds;
mod targets;

use std::collections::BTreeMap;

use grid::Grid;
use result::{Key, Outcome, column, is_ours, is_reference};
pub use rounds::ratios;

/// The tables of these JSON lines, as Markdown. What cannot be read is counted; what failed is
/// listed.
#[must_use]
pub fn render(lines: &str) -> String {
    let results = Results::read(lines);
    let mut text = results.environment();
    for (title, grid) in [
        (
            "mean ns per operation (W5: host ns per iteration; W6: ns until B is done); ~ was cut short",
            results.means(),
        ),
        ("W5: ratio to `none` of the same run", results.ratios_to_none()),
        ("p99 of one operation, ns", results.tails()),
        ("peak reserved, MiB (ratio to peak live)", results.memory()),
        ("W8: operations a second (refused allocations)", results.pressure()),
        ("W9: operations a second (refused allocations)", results.pressure_with_work()),
        ("W7: mean ns per operation (w5: host ns per iteration, two operations)", results.layers()),
        ("W7: of that, over the stack without the layer", results.over_base()),
        ("W7: rows in the log (rows dropped)", results.logs()),
    ] {
        text.push_str(&grid.render(title));
    }
    for ours in results.columns.iter().filter(|name| is_ours(name) && !is_reference(name)) {
        let title = format!("{ours} / each peer: below 1 is faster");
        text.push_str(&results.against_peers(ours).render(&title));
    }
    text.push_str(&results.problems());
    text
}

/// All lines by row and column: the later of two that have both in common.
#[derive(Default)]
struct Results {
    rows: BTreeMap<Key, BTreeMap<String, Outcome>>,
    columns: Vec<String>,
    environments: Vec<String>,
    errors: Vec<String>,
    unreadable: usize,
}

impl Results {
    fn read(lines: &str) -> Self {
        let mut results = Self::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match serde_json::from_str::<Outcome>(line) {
                Ok(outcome) => results.add(outcome),
                Err(_) => results.unreadable += 1,
            }
        }
        // Ours first, the reference of W5 before the others.
        results.columns.sort_by_key(|name| (!is_ours(name), !is_reference(name)));
        results
    }

    fn add(&mut self, outcome: Outcome) {
        if let Some(error) = &outcome.error {
            let Outcome { bench, resource, workload, .. } = &outcome;
            self.errors.push(format!("{bench}/{resource}/{workload}: {error}"));
            return;
        }
        if let Some(environment) = outcome.environment() {
            self.environments.push(environment);
        }
        let (Some(key), Some(column)) = (Key::of(&outcome), column(&outcome)) else { return };
        if outcome.ns_per_op.is_none() {
            return;
        }
        if !self.columns.contains(&column) {
            self.columns.push(column.clone());
        }
        self.rows.entry(key).or_default().insert(column, outcome);
    }

    fn environment(&self) -> String {
        self.environments.iter().map(|environment| format!("{environment}\n")).collect()
    }

    fn means(&self) -> Grid {
        let mut grid = self.grid("target", |_, outcome| {
            let cut = if outcome.truncated { "~" } else { "" };
            Some(format!("{:.0}{cut}", outcome.ns_per_op?))
        });
        grid.first_column(|row| Some(targets::time(row)?.to_string()));
        grid
    }

    fn ratios_to_none(&self) -> Grid {
        let mut grid = self.grid("target", |key, outcome| {
            if !key.is_cross_stream() || outcome.resource == "none" {
                return None;
            }
            let computed = || {
                let reference = self.rows[key].values().find(|other| {
                    other.resource == "none" && is_ours(&other.bench) == is_ours(&outcome.bench)
                })?;
                Some(outcome.ns_per_op? / reference.ns_per_op?)
            };
            outcome.ratio_to_none.or_else(computed).map(|ratio| format!("{ratio:.3}"))
        });
        grid.first_column(|_| Some(targets::CROSS_STREAM.to_string()));
        grid
    }

    fn tails(&self) -> Grid {
        self.grid("", |_, outcome| outcome.p99.map(|p99| p99.to_string()))
    }

    fn memory(&self) -> Grid {
        let mut grid = self.grid("target", |key, outcome| {
            let reserved = outcome.peak_reserved_bytes.filter(|_| key.is_about_memory())?;
            let live = outcome.peak_live_bytes.filter(|&live| live > 0)?;
            let mib = reserved as f64 / f64::from(1 << 20);
            Some(format!("{mib:.0} ({:.2})", reserved as f64 / live as f64))
        });
        grid.first_column(|row| targets::memory(row).map(str::to_owned));
        grid
    }

    fn pressure(&self) -> Grid {
        let mut grid = self.rows_of("target", Key::is_pressure, throughput);
        grid.first_column(|_| Some(targets::PRESSURE.to_owned()));
        grid
    }

    fn pressure_with_work(&self) -> Grid {
        self.rows_of("", Key::is_pressure_with_work, throughput)
    }

    fn layers(&self) -> Grid {
        self.rows_of("", Key::is_of_layers, |_, outcome| {
            let cut = if outcome.truncated { "~" } else { "" };
            Some(format!("{:.1}{cut}", outcome.ns_per_op?))
        })
    }

    fn over_base(&self) -> Grid {
        let mut grid = self.rows_of("", Key::is_of_layers, |_, outcome| {
            Some(format!("{:.1}", outcome.ns_over_base?))
        });
        grid.row("target, per operation", None, |column| {
            Some(format!("{}", targets::layer(column)?))
        });
        grid
    }

    fn logs(&self) -> Grid {
        self.rows_of("", Key::is_of_layers, |_, outcome| {
            Some(format!("{} ({})", outcome.log_rows?, outcome.log_dropped?))
        })
    }

    fn against_peers(&self, ours: &str) -> Grid {
        let mut grid =
            Grid::new("target", &self.columns, |column| !is_ours(column) || is_reference(column));
        for (key, outcomes) in self.rows.iter().filter(|(key, _)| !key.is_of_layers()) {
            let Some(own) = outcomes.get(ours).and_then(|outcome| outcome.ns_per_op) else {
                continue;
            };
            let ratio = |peer: f64| format!("{:.2}", own / peer);
            let first = targets::time(&key.to_string()).and_then(targets::Target::nanoseconds);
            let cells = |column: &String| outcomes.get(column)?.ns_per_op.map(ratio);
            grid.row(&key.to_string(), first.map(ratio), cells);
        }
        grid
    }

    fn problems(&self) -> String {
        let mut text =
            format!("errors: {}, unreadable lines: {}\n", self.errors.len(), self.unreadable);
        for error in &self.errors {
            text.push_str(&format!("- {error}\n"));
        }
        text
    }

    /// Of all rows but those about layers, which have columns of their own.
    fn grid(&self, first: &str, cell: impl Fn(&Key, &Outcome) -> Option<String>) -> Grid {
        self.rows_of(first, |key| !key.is_of_layers(), cell)
    }

    fn rows_of(
        &self,
        first: &str,
        wanted: impl Fn(&Key) -> bool,
        cell: impl Fn(&Key, &Outcome) -> Option<String>,
    ) -> Grid {
        let mut grid = Grid::new(first, &self.columns, |_| true);
        for (key, outcomes) in self.rows.iter().filter(|(key, _)| wanted(key)) {
            grid.row(&key.to_string(), None, |column| cell(key, outcomes.get(column)?));
        }
        grid
    }
}

/// Operations a second, and the number of refused allocations.
fn throughput(_: &Key, outcome: &Outcome) -> Option<String> {
    Some(format!("{:.0} ({})", outcome.agg_ops_per_s?, outcome.failed_allocs?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"bench":"dmr","resource":"async","workload":"pingpong","params":{"size":256},"ns_per_op":40.0,"p99":90,"truncated":true}
{"bench":"dmr","resource":"none","workload":"crossstream","params":{"size":1024},"ns_per_op":4000.0}
{"bench":"dmr","resource":"async","workload":"crossstream","params":{"size":1024},"ns_per_op":4400.0,"ratio_to_none":1.09}
{"bench":"dmr","resource":"async","workload":"replay","params":{"file":"gpt_train.csv.gz"},"ns_per_op":50.0,"peak_live_bytes":1048576,"peak_reserved_bytes":2097152}
{"bench":"dmr","resource":"direct","workload":"pingpong","params":{"size":4096},"error":"no memory"}
"#;
    const PEERS: &str = r#"{"bench":"rmm","resource":"pool","workload":"pingpong","params":{"size":256},"ns_per_op":160.0,"p99":300}
{"bench":"rmm","resource":"none","workload":"crossstream","params":{"size":1024},"ns_per_op":5000.0}
{"bench":"rmm","resource":"pool","workload":"crossstream","params":{"size":1024},"ns_per_op":5500.0}
{"bench":"raw","resource":"driver","workload":"cuEventRecord","params":"","ns_per_op":100.0}
not json
"#;

    fn section<'a>(text: &'a str, title: &str) -> Vec<Vec<&'a str>> {
        let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect();
        let (_, rest) = text.split_once(title).expect("the section");
        rest.lines().skip(2).take_while(|line| line.starts_with('|')).map(cells).collect()
    }

    #[test]
    fn ours_and_the_peers_stand_in_one_row_with_the_target() {
        let text = render(&format!("{OURS}{PEERS}"));
        let means = section(&text, "mean ns per operation");
        let header = ["", "target", "dmr-none", "dmr-async", "none", "pool"];
        assert_eq!(means[0], header, "{text}");
        assert_eq!(means[2], ["W1 256", "20", "", "40~", "", "160"]);
        assert_eq!(section(&text, "p99 of one")[2], ["W1 256", "90", "300"]);
    }

    #[test]
    fn a_ratio_to_none_is_that_of_the_rounds_or_else_that_of_the_same_program() {
        let text = render(&format!("{OURS}{PEERS}"));
        let ratios = section(&text, "W5: ratio");
        assert_eq!(ratios[2], ["W5 1024", "1.03x none", "1.090", "1.100"], "{text}");
    }

    #[test]
    fn what_is_measured_stands_over_each_peer_and_the_target() {
        let text = render(&format!("{OURS}{PEERS}"));
        let rows = section(&text, "dmr-async / each peer");
        assert_eq!(rows[0], ["", "target", "dmr-none", "none", "pool"], "{text}");
        assert_eq!(rows[2], ["W1 256", "2.00", "", "", "0.25"]);
    }

    #[test]
    fn memory_has_its_ratio_to_what_was_live() {
        let text = render(OURS);
        let memory = section(&text, "peak reserved");
        assert_eq!(memory[2][0], "W4 gpt_train");
        assert_eq!(memory[2].last(), Some(&"2 (2.00)"), "{text}");
    }

    const LAYERS: &str = r#"{"bench":"dmr","resource":"bare","workload":"stack","params":{"of":"w3","threads":16},"ns_per_op":8.0}
{"bench":"dmr","resource":"bare+logging","workload":"stack","params":{"of":"w3","threads":16},"ns_per_op":50.0,"ns_over_base":42.5,"log_rows":100,"log_dropped":0}
"#;

    #[test]
    fn a_layer_stands_beside_its_target_by_what_it_adds() {
        let text = render(&format!("{OURS}{LAYERS}"));
        let layers = section(&text, "W7: mean ns per operation");
        assert_eq!(layers[0], ["", "dmr-bare", "dmr-bare+logging"], "{text}");
        assert_eq!(layers[2], ["W7 w3 t=16", "8.0", "50.0"]);
        let over_base = section(&text, "W7: of that");
        assert_eq!(over_base[2..], [["W7 w3 t=16", "42.5"], ["target, per operation", "70"]]);
        assert_eq!(section(&text, "W7: rows in the log")[2], ["W7 w3 t=16", "100 (0)"]);
        let means = section(&text, "mean ns per operation (W5");
        assert!(!means[0].contains(&"dmr-bare"), "{text}");
    }

    #[test]
    fn what_failed_and_what_cannot_be_read_is_said() {
        let text = render(&format!("{OURS}{PEERS}"));
        assert!(text.contains("errors: 1, unreadable lines: 1\n- dmr/direct/pingpong: no memory"));
    }
}
