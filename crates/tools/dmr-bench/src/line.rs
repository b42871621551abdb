//! One result: a line of JSON with the peers' fields.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::percentiles::Percentiles;

/// The name of this program in its lines; the peers' programs are `rmm` and `torch_raw`.
pub const BENCH: &str = "dmr";

/// Fields in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Line(Vec<(String, Value)>);

impl Line {
    /// A result of this workload on this resource.
    #[must_use]
    pub fn new(resource: &str, workload: &str, params: Value) -> Self {
        Self(Vec::new())
            .with("bench", BENCH)
            .with("resource", resource)
            .with("workload", workload)
            .with("params", params)
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// Adds `p50`, `p99` and so on, each name with this before it. Nothing without samples.
    #[must_use]
    pub fn with_percentiles(self, prefix: &str, p: &Percentiles) -> Self {
        if p.n == 0 {
            return self;
        }
        let named = |name: &str| format!("{prefix}{name}");
        self.with(&named("p50"), p.p50)
            .with(&named("p90"), p.p90)
            .with(&named("p99"), p.p99)
            .with(&named("p999"), p.p999)
            .with(&named("max"), p.max)
            .with(&named("mean"), hundredths(p.mean))
            .with(&named("n"), p.n)
    }

    /// A field's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

/// A figure with two decimals, which is more than any clock here can tell.
#[must_use]
pub fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The JSON object, on one line.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_object_in_the_order_of_the_peers() {
        let mut durations = vec![3, 1, 2];
        let line = Line::new("direct", "pingpong", serde_json::json!({ "size": 256 }))
            .with("ops", 3)
            .with_percentiles("alloc_", &Percentiles::of(&mut durations))
            .with_percentiles("free_", &Percentiles::default());
        assert_eq!(
            line.to_string(),
            "{\"bench\":\"dmr\",\"resource\":\"direct\",\"workload\":\"pingpong\",\
             \"params\":{\"size\":256},\"ops\":3,\"alloc_p50\":2,\"alloc_p90\":3,\"alloc_p99\":3,\
             \"alloc_p999\":3,\"alloc_max\":3,\"alloc_mean\":2.0,\"alloc_n\":3}"
        );
    }
}
