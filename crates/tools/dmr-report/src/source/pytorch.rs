//! A snapshot of PyTorch's allocator: the pickle of `torch.cuda.memory._snapshot()`.

use rustc_hash::{FxHashMap, FxHashSet};

use super::pickle::{Pickle, PickleProblem, Value};
use crate::builder::{Allocation, Builder, Reserved};
use crate::error::ReportError;
use crate::export::pytorch::{LABEL, TAG};
use crate::model::{Model, NONE, Refusal, Source, Units};

/// The bytes that PyTorch's allocator cuts its segments in.
const GRAIN: u64 = 512;

/// The folders whose frames say nothing about the program.
const LIBRARIES: [&str; 3] = ["/torch/", "site-packages", "<frozen"];

/// The functions of PyTorch that allocate, and that record the call stack.
const OF_ALLOCATOR: [&str; 5] = [
    "torch::unwind::",
    "torch::CapturedTraceback",
    "torch::cuda::(anonymous namespace)::gather",
    "c10::cuda::CUDACachingAllocator::",
    "at::detail::empty_",
];

/// The bytes of all call stacks as they are shown: at least these, and these for each byte of the
/// file. A file names a frame by two bytes, and could have any number of stacks of long names.
const ROOM: usize = 4 << 20;
const ROOM_BY_BYTE: usize = 8;

/// Reads a snapshot.
pub(super) fn read(bytes: &[u8], source: Source) -> Result<Model, ReportError> {
    let file = source.name.clone();
    let pickle = Pickle::parse(bytes).map_err(|PickleProblem { at, problem }| {
        ReportError::Pickle { file: file.clone(), at, problem }
    })?;
    let root = pickle.root;
    let not_a_snapshot = |problem: &str| ReportError::Pickle {
        file: file.clone(),
        at: 0,
        problem: problem.to_owned(),
    };
    // `memory_snapshot()` returns the segments alone.
    let segments = match root {
        Value::List(_) => root,
        _ => pickle.get(root, "segments").ok_or_else(|| {
            not_a_snapshot("a pickle of something else: there is no key `segments`")
        })?,
    };
    let traces = pickle.get(root, "device_traces").unwrap_or(Value::None);
    let traces = pickle.list(traces);
    let most = (0..traces.len()).max_by_key(|at| (pickle.list(traces[*at]).len(), usize::MAX - at));
    let device = most.unwrap_or(0);
    let mut reading = Reading {
        pickle: &pickle,
        builder: Builder::new(Source {
            has_addresses: true,
            device: u32::try_from(device).ok(),
            ..source
        }),
        sites: FxHashMap::default(),
        room: ROOM + ROOM_BY_BYTE * bytes.len(),
        stacks_left_out: 0,
        blocks: FxHashSet::default(),
    };
    let entries = traces.get(device).map_or(&[][..], |trace| pickle.list(*trace));
    reading.entries(entries)?;
    reading.segments(pickle.list(segments), device)?;
    if !reading.builder.model().spans.is_empty() {
        reading.builder.model().units = Units::Spans { grain: GRAIN };
    }
    let others = (0..traces.len()).filter(|at| *at != device);
    let left_out: usize = others.map(|at| pickle.list(traces[at]).len()).sum();
    let mut flaws = Vec::new();
    if left_out > 0 {
        flaws.push(format!("{left_out} events of other devices are left out"));
    }
    if reading.stacks_left_out > 0 {
        flaws.push(format!("{} long call stacks are left out", reading.stacks_left_out));
    }
    reading.builder.model().flaws.broken_off = flaws.join("; ");
    Ok(reading.builder.finish())
}

/// The tag, the label and the call stack of a block.
#[derive(Clone, Debug, Default)]
struct Site {
    tag: String,
    /// The label, which only our own exports have.
    label: String,
    stack: String,
}

struct Reading<'p, 'b> {
    pickle: &'p Pickle<'b>,
    builder: Builder,
    /// Frames that were formatted already, by the row of their list.
    sites: FxHashMap<u32, Site>,
    /// The bytes that call stacks may still have.
    room: usize,
    /// The call stacks for which there was no room.
    stacks_left_out: usize,
    /// The rows of the lists of blocks that were read.
    blocks: FxHashSet<u32>,
}

impl Reading<'_, '_> {
    fn entries(&mut self, entries: &[Value]) -> Result<(), ReportError> {
        let mut freed = None;
        for (at, entry) in entries.iter().enumerate() {
            let entry = *entry;
            let action = self.pickle.get(entry, "action");
            let action = action.and_then(|action| self.pickle.text(action)).unwrap_or_default();
            let time = self.pickle.number(entry, "time_us").saturating_mul(1000);
            let address = self.pickle.number(entry, "addr");
            let bytes = self.pickle.number(entry, "size");
            let stream = self.pickle.number(entry, "stream");
            match action {
                "alloc" => {
                    let site = self.site(entry);
                    let block = allocation(address, bytes, stream, &site);
                    self.builder.allocate(time, &block)?;
                }
                "free_requested" => {
                    let block = allocation(address, bytes, stream, &NO_SITE);
                    let is_at_once = entries.get(at + 1).is_some_and(|next| {
                        let completed = self.pickle.get(*next, "action");
                        completed.and_then(|it| self.pickle.text(it)) == Some("free_completed")
                            && self.pickle.number(*next, "addr") == address
                    });
                    if is_at_once {
                        self.builder.free(time, &block)?;
                        freed = Some(at + 1);
                    } else {
                        self.builder.retire(time, &block)?;
                    }
                }
                "free_completed" if freed != Some(at) => {
                    if self.builder.block(address) == NONE {
                        self.builder.free(time, &allocation(address, bytes, stream, &NO_SITE))?;
                    } else {
                        self.builder.ready(time, address)?;
                    }
                }
                "segment_alloc" | "segment_map" => {
                    self.builder
                        .reserve(time, Reserved { address, bytes, stream: Some(stream) })?;
                }
                "segment_free" | "segment_unmap" => {
                    self.builder
                        .release(time, Reserved { address, bytes, stream: Some(stream) })?;
                }
                "oom" => self.out_of_memory(time, entry, bytes, stream)?,
                "snapshot" => self.builder.mark(time, "snapshot", NONE)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn out_of_memory(
        &mut self,
        time: u64,
        entry: Value,
        bytes: u64,
        stream: u64,
    ) -> Result<(), ReportError> {
        let site = self.site(entry);
        let stream = self.builder.stream(stream);
        let tag = self.builder.model().names.intern(&site.tag);
        let refusal = Refusal {
            bytes,
            stream,
            tag,
            refused_by: "device memory".to_owned(),
            limit: 0,
            device_free: self
                .pickle
                .get(entry, "device_free")
                .map(|_| self.pickle.number(entry, "device_free")),
        };
        self.builder.refuse(time, refusal)
    }

    /// Adds what the snapshot has at its end and the events have not: it was there before them.
    fn segments(&mut self, segments: &[Value], device: usize) -> Result<(), ReportError> {
        for segment in segments {
            if self.pickle.number(*segment, "device") != device as u64 {
                continue;
            }
            let stream = self.pickle.number(*segment, "stream");
            let start = self.pickle.number(*segment, "address");
            let bytes = self.pickle.number(*segment, "total_size");
            self.builder.held(Reserved { address: start, bytes, stream: Some(stream) })?;
            let mut next = start;
            let blocks = self.pickle.get(*segment, "blocks").unwrap_or(Value::None);
            // Each segment has a list of its own.
            if let Value::List(list) = blocks
                && !self.blocks.insert(list)
            {
                continue;
            }
            for block in self.pickle.list(blocks) {
                let block = *block;
                let size = self.pickle.number(block, "size");
                // Older snapshots have no address in a block: they follow each other.
                let address = match self.pickle.number(block, "address") {
                    0 => next,
                    address => address,
                };
                next = address.saturating_add(size);
                let state = self.pickle.get(block, "state");
                let state = state.and_then(|state| self.pickle.text(state)).unwrap_or_default();
                if !state.starts_with("active") || self.builder.block(address) != NONE {
                    continue;
                }
                let bytes = match self.pickle.number(block, "requested_size") {
                    0 => size,
                    requested => requested,
                };
                let site = self.site(block);
                self.builder.allocated_before(&allocation(address, bytes, stream, &site))?;
            }
        }
        Ok(())
    }

    /// Returns the tag and the call stack of an entry or a block: its metadata, or the innermost
    /// frame of the program.
    fn site(&mut self, of: Value) -> Site {
        let frames = self.pickle.get(of, "frames");
        let mut site = match frames {
            Some(Value::List(list)) => {
                if !self.sites.contains_key(&list) {
                    let site = frames_of(self.pickle, Value::List(list), &mut self.room);
                    self.stacks_left_out += usize::from(site.is_none());
                    self.sites.insert(list, site.unwrap_or_default());
                }
                self.sites[&list].clone()
            }
            _ => Site::default(),
        };
        let metadata = self.pickle.get(of, "user_metadata");
        if let Some(text) = metadata.and_then(|text| self.pickle.text(text))
            && !text.is_empty()
        {
            text.clone_into(&mut site.tag);
        }
        site
    }
}

static NO_SITE: Site = Site { tag: String::new(), label: String::new(), stack: String::new() };

fn allocation(address: u64, bytes: u64, stream: u64, site: &Site) -> Allocation<'_> {
    Allocation {
        key: address,
        address,
        bytes,
        stream,
        tag: &site.tag,
        label: &site.label,
        site: &site.stack,
        ..Allocation::default()
    }
}

/// Returns the call stack of an entry, without what has allocated and recorded it. The tag is the
/// one that an export of ours has, or the innermost line of the program; without one, as in a
/// backward pass, the innermost operator; and otherwise the innermost frame.
///
/// Returns `None` if it is longer than `room`, from which it is taken.
fn frames_of(pickle: &Pickle<'_>, frames: Value, room: &mut usize) -> Option<Site> {
    let mut site = Site::default();
    let mut best = None;
    for frame in pickle.list(frames) {
        let text = |key| pickle.get(*frame, key).and_then(|text| pickle.text(text));
        let name = text("name").unwrap_or_default();
        if OF_ALLOCATOR.iter().any(|part| name.starts_with(part)) {
            continue;
        }
        // A frame of C++ whose file is not known has this name.
        let path = text("filename").filter(|path| *path != "??").unwrap_or_default();
        let line = pickle.number(*frame, "line");
        *room = room.checked_sub(path.len() + name.len())?;
        match (path, line) {
            (TAG, 0) => {
                name.clone_into(&mut site.tag);
                best = Some(Rank::Tag);
                continue;
            }
            (LABEL, 0) => {
                name.clone_into(&mut site.label);
                continue;
            }
            _ => {}
        }
        let short = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let is_own = path.ends_with(".py") && !LIBRARIES.iter().any(|part| path.contains(part));
        let operator = name.strip_prefix("at::_ops::").and_then(|name| name.split("::").next());
        let rank = match (is_own, operator) {
            (true, _) => Rank::Program,
            (false, Some(_)) => Rank::Operator,
            (false, None) => Rank::Other,
        };
        if best.is_none_or(|best| rank > best) {
            best = Some(rank);
            site.tag = match operator {
                Some(operator) => operator.to_owned(),
                None if short.is_empty() => name.to_owned(),
                None => format!("{short}:{line} {name}"),
            };
        }
        if !site.stack.is_empty() {
            site.stack.push('\n');
        }
        let place = match (path, name) {
            ("", name) => name.to_owned(),
            (path, "") => format!("{path}:{line}"),
            (path, name) => format!("{path}:{line} {name}"),
        };
        site.stack.push_str(&place);
    }
    Some(site)
}

/// The frames that can name an allocation, the best last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Other,
    Operator,
    Program,
    Tag,
}
