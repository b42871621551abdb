//! The findings of the simulated driver, as `DMR_SIM_REPORT` writes them: CSV, a row for each
//! operation of a finding.

use csv_core::ReadFieldResult;
use serde::Serialize;

use crate::error::ReportError;

/// The start of a file of findings: its first column.
pub(crate) const START: &[u8] = b"finding,";

/// The columns, in the order in which the simulator writes them.
const COLUMNS: [&str; 15] = [
    "finding",
    "kind",
    "race",
    "message",
    "device",
    "address",
    "bytes",
    "tag",
    "side",
    "operation",
    "stream",
    "number",
    "place",
    "label",
    "calls",
];

/// A finding: a race of two operations, or an error of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind: `write-after-read`.
    pub kind: String,
    /// `true` if it is about the order of two operations.
    pub race: bool,
    /// The sentence.
    pub message: String,
    /// The first byte; 0 if the finding is about no memory.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The name of the block.
    pub tag: String,
    /// The operations, the earlier one first.
    pub sides: Vec<Side>,
}

/// An operation of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The operation: `kernel saxpy`.
    pub operation: String,
    /// The stream; `None` for a call that names no stream.
    pub stream: Option<u32>,
    /// Its number on the stream, from 1.
    pub number: u64,
    /// The place in the kernel, with its source line.
    pub place: String,
    /// The label, or the name of the thread.
    pub label: String,
    /// The lines of the program that have submitted it, the innermost first.
    pub calls: Vec<String>,
}

/// Reads the findings of a file.
///
/// # Errors
///
/// A line that is not what the simulator writes; the error names it.
pub fn parse(file: &str, text: &[u8]) -> Result<Vec<Finding>, ReportError> {
    let rows = Rows::split(text);
    let error = |line: usize, problem: String| ReportError::Finding {
        file: file.to_owned(),
        line,
        problem,
    };
    let mut rows = rows.into_iter();
    let header = rows.next().ok_or_else(|| error(1, "empty".to_owned()))?;
    if header.fields != COLUMNS {
        return Err(error(1, format!("the columns are {}", COLUMNS.join(","))));
    }
    let mut findings: Vec<Finding> = Vec::new();
    for row in rows {
        let Ok(fields) = <[String; COLUMNS.len()]>::try_from(row.fields) else {
            return Err(error(row.line, format!("has not {} fields", COLUMNS.len())));
        };
        let [
            number,
            kind,
            race,
            message,
            _,
            address,
            bytes,
            tag,
            _,
            operation,
            stream,
            op,
            place,
            label,
            calls,
        ] = fields;
        let parsed = |name: &str, text: &str| {
            parse_number(text)
                .ok_or_else(|| error(row.line, format!("{name} is {text:?}, not a number")))
        };
        let number = parsed("finding", &number)?;
        if number == findings.len() as u64 + 1 {
            findings.push(Finding {
                kind,
                race: race == "yes",
                message,
                address: parsed("address", &address)?,
                bytes: parsed("bytes", &bytes)?,
                tag,
                sides: Vec::new(),
            });
        } else if number != findings.len() as u64 || number == 0 {
            return Err(error(row.line, format!("finding {number} is not the next one")));
        }
        let stream = match stream.as_str() {
            "" => None,
            text => Some(parsed("stream", text)?.min(u32::MAX.into()) as u32),
        };
        let number = parsed("number", &op)?;
        let calls = calls.lines().map(str::to_owned).collect();
        if let Some(finding) = findings.last_mut() {
            finding.sides.push(Side { operation, stream, number, place, label, calls });
        }
    }
    Ok(findings)
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

struct Row {
    /// The line on which it begins, from 1.
    line: usize,
    fields: Vec<String>,
}

struct Rows;

impl Rows {
    /// Splits CSV into rows. Memory is at most that of the text, several times.
    fn split(text: &[u8]) -> Vec<Row> {
        let mut reader = csv_core::Reader::new();
        let mut rows = Vec::new();
        let mut field = Vec::new();
        let mut fields = Vec::new();
        let mut buffer = [0; 512];
        let mut rest = text;
        let mut begin = 1;
        loop {
            let (result, read, written) = reader.read_field(rest, &mut buffer);
            rest = &rest[read..];
            field.extend_from_slice(&buffer[..written]);
            match result {
                ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull => {}
                ReadFieldResult::Field { record_end } => {
                    fields.push(String::from_utf8_lossy(&field).into_owned());
                    field.clear();
                    if record_end {
                        rows.push(Row { line: begin, fields: std::mem::take(&mut fields) });
                        begin = reader.line() as usize;
                    }
                }
                ReadFieldResult::End => return rows,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "finding,kind,race,message,device,address,bytes,tag,side,operation,\
                          stream,number,place,label,calls\n";

    #[test]
    fn a_race_has_two_operations_with_their_lines() {
        let text = format!(
            "{HEADER}1,write-after-read,yes,\"not ordered, at all\",0,0x1000,256,batch,first,\
             kernel sum,1,4,\"line 7, block 0, thread 0\",worker,\"a.rs:1\nb.rs:2\"\n\
             1,write-after-read,yes,\"not ordered, at all\",0,0x1000,256,batch,second,memset,2,1,,,\n"
        );
        let found = parse("f", text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].race);
        assert_eq!(found[0].sides.len(), 2);
        assert_eq!(found[0].sides[0].calls, ["a.rs:1", "b.rs:2"]);
        assert_eq!(found[0].sides[1].stream, Some(2));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (row, problem) in [
            ("1,leak\n", "line 2: has not 15 fields"),
            ("2,leak,no,,0,0,0,,only,free,,0,,,\n", "line 2: finding 2 is not the next one"),
            ("1,leak,no,,0,x,0,,only,free,,0,,,\n", "line 2: address is \"x\", not a number"),
        ] {
            let error = parse("f", format!("{HEADER}{row}").as_bytes()).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
        assert!(parse("f", b"finding,x\n").unwrap_err().to_string().contains("line 1"));
    }
}
