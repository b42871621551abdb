//! Reads a snapshot as PyTorch's viewer does, which is less than Python reads, and follows its
//! trace backwards from its segments.

use std::collections::BTreeMap;

/// The most values that the viewer can append at once: they are arguments of a call.
const MOST_ARGUMENTS: usize = 60_000;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(i64),
    Text(String),
    List(Vec<Value>),
    Dict(BTreeMap<String, Value>),
}

impl Value {
    pub(crate) fn get(&self, key: &str) -> &Value {
        match self {
            Self::Dict(items) => items.get(key).unwrap_or_else(|| panic!("no {key}: {items:?}")),
            other => panic!("{key} of {other:?}"),
        }
    }

    pub(crate) fn list(&self) -> &[Value] {
        match self {
            Self::List(values) => values,
            other => panic!("no list: {other:?}"),
        }
    }

    pub(crate) fn number(&self, key: &str) -> i64 {
        match self.get(key) {
            Self::Number(number) => *number,
            other => panic!("no number: {key} is {other:?}"),
        }
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        match self.get(key) {
            Self::Text(text) => text,
            other => panic!("no text: {key} is {other:?}"),
        }
    }
}

/// Reads a pickle of the opcodes that the viewer has.
pub(crate) fn unpickle(mut bytes: &[u8]) -> Value {
    let mut stack: Vec<Value> = Vec::new();
    let mut marks = Vec::new();
    let mut memo = BTreeMap::new();
    loop {
        let [code] = take(&mut bytes);
        match code {
            0x80 => assert!((2..=4).contains(&take::<1>(&mut bytes)[0])),
            b'(' => marks.push(stack.len()),
            b']' => stack.push(Value::List(Vec::new())),
            b'}' => stack.push(Value::Dict(BTreeMap::new())),
            b'K' => stack.push(Value::Number(take::<1>(&mut bytes)[0].into())),
            b'M' => stack.push(Value::Number(u16::from_le_bytes(take(&mut bytes)).into())),
            b'J' => stack.push(Value::Number(i32::from_le_bytes(take(&mut bytes)).into())),
            0x8a => {
                let length = usize::from(take::<1>(&mut bytes)[0]);
                assert!(
                    length <= 8,
                    "an integer of {length} bytes, which cannot be added to others"
                );
                let mut number = [0; 8];
                number[..length].copy_from_slice(&bytes[..length]);
                bytes = &bytes[length..];
                let number = i64::from_le_bytes(number) << (64 - 8 * length) >> (64 - 8 * length);
                assert!(number < 1 << 53, "{number} is rounded");
                stack.push(Value::Number(number));
            }
            b'X' => {
                let length = u32::from_le_bytes(take(&mut bytes)) as usize;
                stack.push(Value::Text(String::from_utf8(bytes[..length].to_vec()).unwrap()));
                bytes = &bytes[length..];
            }
            b'r' => drop(memo.insert(take::<4>(&mut bytes), stack.last().unwrap().clone())),
            b'j' => stack.push(memo[&take::<4>(&mut bytes)].clone()),
            b'e' => {
                let values = stack.split_off(marks.pop().unwrap());
                assert!(values.len() <= MOST_ARGUMENTS, "{} values at once", values.len());
                let Some(Value::List(list)) = stack.last_mut() else { panic!("no list") };
                list.extend(values);
            }
            b'u' => {
                let values = stack.split_off(marks.pop().unwrap());
                let Some(Value::Dict(items)) = stack.last_mut() else { panic!("no dictionary") };
                for pair in values.chunks_exact(2) {
                    let Value::Text(key) = &pair[0] else { panic!("a key that is no text") };
                    items.insert(key.clone(), pair[1].clone());
                }
            }
            b'.' => return stack.pop().unwrap(),
            code => panic!("opcode {code:#04x}, which the viewer does not read"),
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = bytes.split_first_chunk().unwrap();
    *bytes = rest;
    *taken
}

/// A reserved range: its end and its stream, by its first byte.
type Segments = BTreeMap<i64, [i64; 2]>;

#[derive(Debug)]
struct Block {
    end: i64,
    is_pending: bool,
}

/// Follows the trace of a device back to its start, as the viewer does to show what was there at an
/// event. Asserts after each that a segment has each block. Returns the bytes that were in use at
/// most.
pub(crate) fn follow(snapshot: &Value, device: usize) -> i64 {
    let mut segments = Segments::new();
    let mut blocks = BTreeMap::new();
    for segment in snapshot.get("segments").list() {
        assert_eq!(segment.number("device"), device as i64);
        let start = segment.number("address");
        let end = start + segment.number("total_size");
        segments.insert(start, [end, segment.number("stream")]);
        let mut next = start;
        for block in segment.get("blocks").list() {
            assert_eq!(block.number("address"), next, "blocks follow each other");
            next += block.number("size");
            let state = block.text("state");
            if state != "inactive" {
                let is_pending = state == "active_pending_free";
                assert!(!block.get("frames").list().is_empty(), "{block:?} has no name");
                blocks.insert(block.number("address"), Block { end: next, is_pending });
            }
        }
        assert_eq!(next, end, "blocks fill a segment");
    }
    let mut most = check(&segments, &blocks);
    for event in snapshot.get("device_traces").list()[device].list().iter().rev() {
        undo(event, &mut segments, &mut blocks);
        most = most.max(check(&segments, &blocks));
    }
    most
}

fn undo(event: &Value, segments: &mut Segments, blocks: &mut BTreeMap<i64, Block>) {
    let action = event.text("action");
    assert!(event.number("time_us") >= 0 && event.number("stream") >= 0);
    if action == "oom" {
        assert!(event.number("device_free") >= 0);
        return;
    }
    let start = event.number("addr");
    let end = start + event.number("size");
    match action {
        "alloc" => assert!(blocks.remove(&start).is_some(), "{event:?} of no block"),
        "free_requested" => {
            let block = blocks.get_mut(&start).unwrap_or_else(|| panic!("{event:?} of no block"));
            assert!(block.is_pending, "{block:?} is freed twice");
            block.is_pending = false;
        }
        "free_completed" => {
            assert!(!event.get("frames").list().is_empty(), "{event:?} has no name");
            assert!(blocks.insert(start, Block { end, is_pending: true }).is_none(), "{event:?}");
        }
        "segment_free" => {
            assert!(segments.insert(start, [end, event.number("stream")]).is_none(), "{event:?}");
        }
        "segment_alloc" => {
            let removed = segments.remove(&start).map(|[end, _]| end);
            assert_eq!(removed, Some(end), "{event:?}");
        }
        "segment_unmap" => join(segments, start, [end, event.number("stream")]),
        "segment_map" => {
            let (&from, &[to, stream]) = segments.range(..=start).next_back().expect("a segment");
            assert!(end <= to, "{event:?} is not within {from:x}..{to:x}");
            segments.remove(&from);
            for [from, to] in [[from, start], [end, to]] {
                if from < to {
                    segments.insert(from, [to, stream]);
                }
            }
        }
        other => panic!("action {other}"),
    }
}

fn join(segments: &mut Segments, mut start: i64, [mut end, stream]: [i64; 2]) {
    if let Some(&[next_end, of]) = segments.get(&end)
        && of == stream
    {
        segments.remove(&end);
        end = next_end;
    }
    if let Some((&before, &[touches, of])) = segments.range(..start).next_back()
        && touches == start
        && of == stream
    {
        start = before;
    }
    segments.insert(start, [end, stream]);
}

fn check(segments: &Segments, blocks: &BTreeMap<i64, Block>) -> i64 {
    let mut next = 0;
    for (&start, &[end, _]) in segments {
        assert!(start >= next, "segments share {start:x}");
        next = end;
    }
    for (&start, block) in blocks {
        let segment = segments.range(..=start).next_back();
        let end = segment.map_or(0, |(_, [end, _])| *end);
        assert!(block.end <= end, "{start:x}..{:x} is outside of {segments:x?}", block.end);
    }
    blocks.iter().map(|(start, block)| block.end - start).sum()
}
