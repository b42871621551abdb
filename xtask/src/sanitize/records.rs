//! Parses the tool's XML into kernels and findings.

use std::collections::BTreeMap;

use quick_xml::DeError;
use quick_xml::de::Deserializer;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The prefix of the names of the canary's kernels.
const CANARY: &str = "dmr_canary";

/// The tool's report about one program and its children.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Launches of kernels that the tool checked, without the canary's.
    pub(super) kernels: u64,
    /// Findings outside the canary.
    pub(super) findings: Vec<Finding>,
    /// The classes of the findings in the canary's kernels.
    pub(super) canary: Vec<String>,
    /// The number of records, launches included: the tool's number of errors.
    pub(super) records: u64,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) class: String,
    /// The tool's description, and the kernel if the tool names one.
    pub(super) text: String,
    /// The device address, in hexadecimal, if the tool's record has one.
    pub(super) address: Option<String>,
    /// The failed driver call, if the finding is about one.
    pub(super) api_error: Option<ApiError>,
}

/// A driver call that returned an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ApiError {
    /// The function, without the version in its name.
    pub(super) call: String,
    pub(super) error: String,
}

impl ApiError {
    pub(super) fn new(call: &str, error: &str) -> Self {
        let call = ["_v2", "_v3"].iter().find_map(|it| call.strip_suffix(it)).unwrap_or(call);
        Self { call: call.to_owned(), error: error.to_owned() }
    }
}

impl Report {
    /// Parses the XML. `log` is the tool's text: only it has the distance of a wrong address from
    /// the nearest allocation.
    pub(super) fn parse(xml: &str, log: &str) -> Result<Self, DeError> {
        let mut document = Deserializer::from_str(xml.trim_end());
        let Document::ComputeSanitizerOutput(output) = Document::deserialize(&mut document)?;
        if !document.is_empty() {
            return Err(DeError::Custom("something follows the results".to_owned()));
        }
        let distances = distances(log);
        let mut report = Self::default();
        for item in output.items {
            if let Item::Record(record) = item {
                report.add(&record, &distances);
            }
        }
        Ok(report)
    }

    fn add(&mut self, record: &Record, distances: &BTreeMap<String, Distance>) {
        self.records += 1;
        let mut kernels = record.kernels().peekable();
        let is_canary = kernels.peek().is_some() && kernels.all(|it| it.starts_with(CANARY));
        if record.kind == "LaunchInfo" {
            let is_checked = record.filtered.is_none() && record.what.filtered.is_none();
            self.kernels += u64::from(is_checked && !is_canary);
            return;
        }
        let finding = record.finding(distances);
        if is_canary {
            self.canary.push(finding.class);
        } else {
            self.findings.push(finding);
        }
    }
}

/// The distance of an address from the nearest allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distance {
    OneByteAfter,
    OneByteBefore,
    Further,
}

/// The distances in the tool's text, by address.
fn distances(log: &str) -> BTreeMap<String, Distance> {
    let mut distances = BTreeMap::new();
    let mut address = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Access to 0x") {
            address = rest.split_whitespace().next().map(|digits| format!("0x{digits}"));
        } else if line.contains("the nearest allocation")
            && let Some(address) = address.take()
        {
            let distance = if line.contains("is 1 bytes after") {
                Distance::OneByteAfter
            } else if line.contains("is 1 bytes before") {
                Distance::OneByteBefore
            } else {
                Distance::Further
            };
            distances.insert(address, distance);
        }
    }
    distances
}

/// The content of the file. An unknown root element, or an unknown element in it, is an error.
#[derive(Deserialize)]
enum Document {
    ComputeSanitizerOutput(Output),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    #[serde(rename = "$value", default)]
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Item {
    Record(Box<Record>),
    /// A process that ran under the tool.
    Session(IgnoredAny),
}

#[derive(Deserialize)]
struct Record {
    kind: String,
    #[serde(default)]
    what: What,
    r#where: Option<Place>,
    filtered: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct What {
    #[serde(default)]
    text: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    api: String,
    #[serde(default)]
    address: String,
    kernel: Option<String>,
    source: Option<Side>,
    destination: Option<Side>,
    filtered: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Side {
    r#where: Option<Place>,
}

#[derive(Deserialize)]
struct Place {
    func: Option<String>,
}

impl Record {
    /// The names of the kernels that the record is about.
    fn kernels(&self) -> impl Iterator<Item = &str> {
        let sides = [&self.what.source, &self.what.destination];
        let places = sides.into_iter().flatten().filter_map(|side| side.r#where.as_ref());
        let places = places.chain(&self.r#where).filter_map(|place| place.func.as_deref());
        places.chain(self.what.kernel.as_deref())
    }

    fn finding(&self, distances: &BTreeMap<String, Distance>) -> Finding {
        let What { text, kind, error, api, address, .. } = &self.what;
        let api_error = (self.kind == "Api").then(|| ApiError::new(api, error));
        let mut said = text.clone();
        if !kind.is_empty() {
            said = format!("{said}: {kind}");
        }
        if let Some(kernel) = self.kernels().next() {
            said = format!("{said} in {kernel}");
        }
        let class = self.class(api_error.as_ref(), distances);
        let text = format!("{}: {said}", self.kind);
        let address = (!address.is_empty()).then(|| address.clone());
        Finding { class: class.to_owned(), text, address, api_error }
    }

    /// Returns this project's class of a finding.
    fn class(
        &self,
        api_error: Option<&ApiError>,
        distances: &BTreeMap<String, Distance>,
    ) -> &'static str {
        let What { text, kind, error, address, .. } = &self.what;
        match &*self.kind {
            "Precise" if error.contains("out of bounds") => match distances.get(address) {
                Some(Distance::OneByteAfter) => "overrun",
                Some(Distance::OneByteBefore) => "underrun",
                _ => "not-allocated",
            },
            "Precise" if error.contains("before") => "use-before-alloc",
            "Precise" if error.contains("not writable") => "not-writable",
            "Precise" if error.contains("not readable") => "not-readable",
            "Stream-ordered race" if text.contains("Use-after-free") => "use-after-free",
            "Stream-ordered race" if text.contains("before-alloc") => "use-before-alloc",
            "Initcheck" | "InitcheckApiError" => "uninitialized",
            "Leak" => "leak",
            "Analysis" | "Hazard" => "shared-race",
            "Synccheck" if kind.contains("Divergent thread") => "divergent-barrier",
            "Api" if api_error.is_some_and(is_invalid_free) => "invalid-free",
            "Api" => "api-error",
            _ => "other",
        }
    }
}

fn is_invalid_free(ApiError { call, error }: &ApiError) -> bool {
    matches!(&**call, "cuMemFree" | "cuMemFreeAsync") && error == "CUDA_ERROR_INVALID_VALUE"
}

/// Returns the classes by which a tool may report a planted fault of a class. The tool detects that
/// memory is not allocated, and not whether it ever was; if a block is freed before the report, the
/// tool no longer has its distance from the address. So where the tool reports the exact address of
/// the fault (`is_located`), `not-allocated` is enough.
pub(super) fn accepted(planted: &str, is_located: bool) -> Vec<&str> {
    match planted {
        "overrun" | "underrun" if is_located => vec![planted, "not-allocated"],
        "use-after-free" => vec!["use-after-free", "not-allocated"],
        "double-free" => vec!["invalid-free"],
        "undeclared" => vec!["not-readable", "not-writable"],
        same => vec![same],
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The report with every device address replaced.
    pub(in crate::sanitize) fn moved(xml: &str, address: &str) -> String {
        let mut parts = xml.split("<address>");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            let rest = &part[part.find('<').unwrap_or_default()..];
            format!("{text}<address>{address}{rest}")
        })
    }

    /// A sample of the tool's own output, of an H200 and version 2026.4 unless its name has
    /// another.
    macro_rules! sample {
        ($name:literal) => {
            include_str!(concat!("samples/", $name, ".xml"))
        };
    }

    fn report(xml: &str) -> Report {
        Report::parse(xml, "").unwrap()
    }

    fn class(xml: &str, log: &str) -> String {
        let report = Report::parse(xml, log).unwrap();
        assert_eq!(report.findings.len(), 1, "{report:?}");
        report.findings[0].class.clone()
    }

    #[test]
    fn every_kind_of_record_has_its_class() {
        for (xml, expected) in [
            (sample!("use-before-alloc"), "use-before-alloc"),
            (sample!("use-after-free"), "use-after-free"),
            (sample!("double-free"), "invalid-free"),
            (sample!("uninitialized"), "uninitialized"),
            (sample!("shared-race"), "shared-race"),
            (sample!("divergent-barrier"), "divergent-barrier"),
            (sample!("two-processes"), "leak"),
        ] {
            assert_eq!(class(xml, ""), expected);
        }
    }

    #[test]
    fn a_wrong_address_is_classified_by_the_nearest_allocation() {
        let log = |distance: &str| {
            format!(
                "=========     Access to 0x7fc33ca003e8 is out of bounds\n\
                 =========     and is {distance} the nearest allocation at 0x7fc33ca00000"
            )
        };
        for (distance, expected) in [
            ("1 bytes after", "overrun"),
            ("1 bytes before", "underrun"),
            ("2,031,617 bytes after", "not-allocated"),
            ("11 bytes after", "not-allocated"),
            ("11 bytes before", "not-allocated"),
            ("inside", "not-allocated"),
        ] {
            assert_eq!(class(sample!("overrun"), &log(distance)), expected, "{distance}");
        }
        assert_eq!(class(sample!("overrun"), ""), "not-allocated");
    }

    #[test]
    fn permissions_have_classes_of_their_own() {
        for (error, expected) in
            [("not writable", "not-writable"), ("not readable", "not-readable")]
        {
            let xml = sample!("overrun").replace("out of bounds", error);
            assert_eq!(class(&xml, ""), expected);
        }
    }

    #[test]
    fn what_is_not_known_is_a_finding_too() {
        let xml = "<ComputeSanitizerOutput><record><kind>New</kind><what><text>odd</text></what>\
                   </record></ComputeSanitizerOutput>";
        assert_eq!(class(xml, ""), "other");
        assert_eq!(report(xml).findings[0].text, "New: odd");
    }

    #[test]
    fn results_of_another_shape_are_an_error() {
        let whole = sample!("overrun");
        let record =
            &whole[whole.find("<record>").unwrap()..].replace("</ComputeSanitizerOutput>", "");
        for xml in [
            whole.replace("ComputeSanitizerOutput", "Output"),
            whole.replace("record>", "finding>"),
            whole.replace("record>", "Record>"),
            format!("<ComputeSanitizerOutput/>{whole}"),
            format!("{whole}{record}"),
            format!("<ComputeSanitizerOutput>{record}text</ComputeSanitizerOutput>"),
            "<ComputeSanitizerOutput><record/></ComputeSanitizerOutput>".to_owned(),
        ] {
            assert!(Report::parse(&xml, "").is_err(), "{xml}");
        }
    }

    #[test]
    fn a_fault_of_another_kernel_beside_the_canary_is_a_finding() {
        let xml = sample!("shared-race").replacen("shared_race", "dmr_canary_race", 1);
        assert_eq!(report(&xml).findings.len(), 1);
        let xml = sample!("overrun").replace("write_at", "copy_of_dmr_canary");
        assert_eq!(report(&xml).findings.len(), 1);
    }

    #[test]
    fn launches_are_counted_and_are_no_findings() {
        let report = report(sample!("graph"));
        assert_eq!((report.kernels, report.findings.len()), (6, 0));
        let filtered = sample!("graph").replacen("<what>", "<what><filtered>x</filtered>", 1);
        assert_eq!(super::tests::report(&filtered).kernels, 5);
    }

    #[test]
    fn what_the_canary_does_is_kept_apart() {
        let xml = sample!("overrun").replace("write_at", "dmr_canary_write");
        let report = report(&xml);
        assert_eq!((report.kernels, report.findings.len()), (0, 0));
        assert_eq!(report.canary, ["not-allocated"]);
        let xml = sample!("shared-race").replace("shared_race", "dmr_canary_race");
        assert_eq!(super::tests::report(&xml).canary, ["shared-race"]);
    }

    #[test]
    fn errors_of_driver_calls_have_the_call_without_its_version() {
        let report = report(sample!("api-errors"));
        let errors: Vec<_> = report.findings.iter().filter_map(|it| it.api_error.clone()).collect();
        assert_eq!(errors.len(), report.findings.len());
        let expected = ApiError::new("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(errors.iter().filter(|it| **it == expected).count(), 2);
    }

    #[test]
    fn a_report_without_records_is_empty() {
        let xml = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<ComputeSanitizerOutput/>\n";
        assert_eq!(report(xml), Report::default());
    }

    #[test]
    fn a_report_that_is_cut_off_is_an_error() {
        let whole = sample!("overrun").trim_end();
        for length in 0..whole.len() {
            assert!(Report::parse(&whole[..length], "").is_err(), "{length}");
        }
        assert!(Report::parse(whole, "").is_ok());
    }
}
