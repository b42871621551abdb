//! Writes recordings of made-up programs, which the guide's pictures and the page's tests show.
//!
//! `cargo run --release -p dmr-report --example situations -- FOLDER [EVENTS]` writes a fragmented
//! heap, a budget that refuses, streams that wait for each other, and one of `EVENTS` events.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use dmr_recording::{
    Block, Event, LabelId, Record, Refusal, SpanChange, Start, StreamChange, StreamNumber,
    StringId, Writer,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The address of the first span.
const BASE: u64 = 0x7F20_0000_0000;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: situations FOLDER [EVENTS]")?;
    let events = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    fragmented(folder)?;
    budget(folder)?;
    waits(folder)?;
    many(folder, events)
}

/// A program that allocates from spans of its own, and records it.
struct Program {
    writer: Writer<BufWriter<File>>,
    record: Record,
    /// The free ranges by their start.
    holes: BTreeMap<u64, u64>,
    reserved: u64,
    generation: u64,
    random: u64,
    tags: BTreeMap<&'static str, StringId>,
}

impl Program {
    fn new(folder: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let file = BufWriter::new(File::create(folder.join(name))?);
        Ok(Self {
            writer: Writer::with_names(file, &Start::default(), "exact", "example")?,
            record: Record::new(Event::LabelEnd),
            holes: BTreeMap::new(),
            reserved: 0,
            generation: 0,
            random: 0x2545_F491_4F6C_DD1D,
            tags: BTreeMap::new(),
        })
    }

    fn text(&mut self, text: &'static str) -> StringId {
        if let Some(known) = self.tags.get(text) {
            return *known;
        }
        let id = self.writer.intern(text);
        self.tags.insert(text, id);
        id
    }

    /// Returns a number below `limit`.
    fn random(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn pause(&mut self, ns: u64) {
        self.record.time_ns += ns;
    }

    fn write(&mut self, event: Event) -> Outcome {
        self.record.event = event;
        Ok(self.writer.write(&self.record)?)
    }

    /// Names a stream.
    fn stream(&mut self, slot: u32, name: &'static str) -> Result<StreamNumber, Box<dyn Error>> {
        let name = self.text(name);
        let stream = StreamNumber::new(1, slot);
        self.write(Event::Stream { change: StreamChange::Named, stream, name })?;
        Ok(stream)
    }

    fn label(&mut self, name: &'static str, site: &'static str) {
        self.record.label = LabelId { name: self.text(name), site: self.text(site) };
    }

    fn reserve(&mut self, bytes: u64, stream: StreamNumber) -> Outcome {
        let address = BASE + self.reserved;
        self.reserved += bytes;
        self.add_hole(address, bytes);
        self.write(Event::Span { change: SpanChange::Map, address, bytes, stream })
    }

    fn add_hole(&mut self, mut address: u64, mut bytes: u64) {
        if let Some((&before, &size)) = self.holes.range(..address).next_back()
            && before + size == address
        {
            self.holes.remove(&before);
            address = before;
            bytes += size;
        }
        if let Some(size) = self.holes.remove(&(address + bytes)) {
            bytes += size;
        }
        self.holes.insert(address, bytes);
    }

    /// Allocates from the first hole that has room.
    fn allocate(
        &mut self,
        bytes: u64,
        tag: &'static str,
        stream: StreamNumber,
    ) -> Result<Option<Block>, Box<dyn Error>> {
        let room = bytes.next_multiple_of(512);
        let found = self.holes.iter().find(|(_, size)| **size >= room);
        let Some((address, size)) = found.map(|(address, size)| (*address, *size)) else {
            return Ok(None);
        };
        self.holes.remove(&address);
        if size > room {
            self.holes.insert(address + room, size - room);
        }
        self.generation += 1;
        let tag = self.text(tag);
        let block = Block { address, bytes, generation: self.generation, stream, tag };
        self.write(Event::Allocate(block))?;
        Ok(Some(block))
    }

    fn must_allocate(
        &mut self,
        bytes: u64,
        tag: &'static str,
        stream: StreamNumber,
    ) -> Result<Block, Box<dyn Error>> {
        self.allocate(bytes, tag, stream)?.ok_or_else(|| "no room".into())
    }

    fn free(&mut self, block: Block) -> Outcome {
        self.add_hole(block.address, block.bytes.next_multiple_of(512));
        self.write(Event::Free(block))
    }

    /// Frees a block that a stream still uses, for `ns` nanoseconds.
    fn retire(&mut self, block: Block, ns: u64) -> Outcome {
        self.write(Event::Retire(block))?;
        self.pause(ns);
        let bytes = block.bytes.next_multiple_of(512);
        self.add_hole(block.address, bytes);
        self.write(Event::Ready { address: block.address, bytes, stream: block.stream })
    }

    fn wait(&mut self, stream: StreamNumber, awaited: StreamNumber, block: Block) -> Outcome {
        let launch = self.generation;
        self.write(Event::Wait { stream, awaited, block: block.generation, launch, work: 1 })
    }

    /// Tells that a wait of that time has held up its stream.
    fn length(
        &mut self,
        stream: StreamNumber,
        awaited: StreamNumber,
        block: Block,
        age_ns: u64,
        length_ns: u64,
    ) -> Outcome {
        let block = block.generation;
        let launch = block;
        self.write(Event::WaitLength { stream, awaited, block, launch, work: 1, length_ns, age_ns })
    }

    fn refuse(
        &mut self,
        bytes: u64,
        tag: &'static str,
        stream: StreamNumber,
        limit: &'static str,
        limit_bytes: u64,
    ) -> Outcome {
        let free = self.holes.values().sum();
        let largest_free = self.holes.values().max().copied().unwrap_or(0);
        let used = self.reserved;
        let tag = self.text(tag);
        let limit = self.text(limit);
        let refusal = Refusal { bytes, stream, tag, limit, limit_bytes, used, free, largest_free };
        self.write(Event::Refused(refusal))
    }

    fn finish(self) -> Outcome {
        self.writer.finish()?;
        Ok(())
    }
}

/// 5 GiB are free, in holes of at most 1 GiB, and 2 GiB are requested.
fn fragmented(folder: &Path) -> Outcome {
    let mut program = Program::new(folder, "fragmented.rec")?;
    let decode = program.stream(0, "decode")?;
    program.reserve(8 * GIB, decode)?;
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for round in 0..6_u64 {
        for request in 0..8_u64 {
            program.label("prefill", "src/serve.rs:118:21");
            program.pause(2_000_000);
            let bytes = (6 + program.random(20)) * MIB;
            let prompt = program.must_allocate(bytes, "prompt", decode)?;
            program.pause(3_000_000);
            program.label("cache", "src/cache.rs:57:13");
            let bytes = (84 + 2 * program.random(28)) * MIB;
            dropped.push(program.must_allocate(bytes, "kv-cache", decode)?);
            program.pause(500_000 + 100_000 * request);
            program.free(prompt)?;
        }
        program.label("keep session", "src/session.rs:29:9");
        kept.push(program.must_allocate((420 + 16 * round) * MIB, "session", decode)?);
    }
    while !dropped.is_empty() {
        let at = program.random(dropped.len() as u64);
        let block = dropped.swap_remove(at as usize);
        program.pause(900_000);
        program.free(block)?;
    }
    program.label("beam search", "src/beam.rs:203:17");
    program.pause(4_000_000);
    program.refuse(2 * GIB, "beam", decode, "device memory", 8 * GIB)?;
    program.pause(20_000_000);
    for block in kept {
        program.free(block)?;
        program.pause(1_000_000);
    }
    program.finish()
}

/// Three queries share a budget of 6 GiB; a hash table of the third does not fit.
fn budget(folder: &Path) -> Outcome {
    const LIMIT: u64 = 6 * GIB;
    let mut program = Program::new(folder, "budget.rec")?;
    let scan = program.stream(0, "scan")?;
    let join = program.stream(1, "join")?;
    // Those of two operators are shares of the whole.
    let mut queries = Account { name: "queries", limit: LIMIT, ..Account::default() };
    let mut scans = Account { name: "scan", limit: GIB / 4, ..Account::default() };
    let mut joins = Account { name: "hash join", limit: 5 * GIB, ..Account::default() };
    let mut tables: Vec<Block> = Vec::new();
    for round in 0..240_u64 {
        program.record.query = 1 + round / 80;
        program.label("scan", "src/plan/scan.rs:64:9");
        let bytes = (24 + program.random(64)) * MIB;
        let column = program.grow_and_allocate(bytes, "column", scan, LIMIT)?;
        let Some(column) = column else { break };
        scans.charge(&mut program, column.bytes)?;
        program.pause(400_000);
        program.label("hash join", "src/plan/join.rs:141:20");
        program.wait(join, scan, column)?;
        if round % 4 == 0 {
            let bytes = (96 + 4 * (round % 9)) * MIB;
            if let Some(table) = program.grow_and_allocate(bytes, "hash table", join, LIMIT)? {
                joins.charge(&mut program, table.bytes)?;
                tables.push(table);
            }
        }
        let grown = program.reserved - queries.bytes;
        queries.charge(&mut program, grown)?;
        program.pause(300_000);
        program.retire(column, 150_000)?;
        scans.bytes -= column.bytes;
        if round == 79 || round == 159 {
            // A part of the tables is still read by the next query.
            for at in (0..10).rev() {
                program.pause(50_000);
                let table = tables.remove(2 * at);
                joins.bytes -= table.bytes;
                program.free(table)?;
            }
        }
    }
    program.pause(200_000);
    program.label("sort", "src/plan/sort.rs:52:13");
    program.refuse(1800 * MIB, "sort buffer", join, "budget `queries`", LIMIT)?;
    program.pause(5_000_000);
    for table in tables {
        program.pause(100_000);
        program.free(table)?;
    }
    program.finish()
}

/// The bytes that are charged to a budget.
#[derive(Default)]
struct Account {
    name: &'static str,
    limit: u64,
    bytes: u64,
    highest: u64,
}

impl Account {
    /// Charges bytes, and records a high mark that is a 64th above the last one.
    fn charge(&mut self, program: &mut Program, bytes: u64) -> Outcome {
        self.bytes += bytes;
        if self.bytes <= self.highest + self.highest / 64 {
            return Ok(());
        }
        self.highest = self.bytes;
        let budget = program.text(self.name);
        program.write(Event::BudgetPeak { budget, bytes: self.bytes, limit: self.limit })
    }
}

impl Program {
    /// Allocates, and reserves another span if there is no room and the limit allows it.
    fn grow_and_allocate(
        &mut self,
        bytes: u64,
        tag: &'static str,
        stream: StreamNumber,
        limit: u64,
    ) -> Result<Option<Block>, Box<dyn Error>> {
        if let Some(block) = self.allocate(bytes, tag, stream)? {
            return Ok(Some(block));
        }
        let span = 512 * MIB;
        if self.reserved + span > limit {
            return Ok(None);
        }
        self.reserve(span, stream)?;
        self.allocate(bytes, tag, stream)
    }
}

/// Copies, computes and sends: each step waits for the one before because of its block.
fn waits(folder: &Path) -> Outcome {
    let mut program = Program::new(folder, "waits.rec")?;
    let copy = program.stream(0, "copy")?;
    let compute = program.stream(1, "compute")?;
    let send = program.stream(2, "send")?;
    program.reserve(2 * GIB, copy)?;
    let weights = program.must_allocate(600 * MIB, "weights", compute)?;
    for step in 0..200_u64 {
        program.label("load batch", "src/train.rs:31:14");
        let batch = program.must_allocate(48 * MIB, "batch", copy)?;
        program.pause(250_000);
        program.label("forward", "src/train.rs:48:9");
        program.wait(compute, copy, batch)?;
        if step % 4 == 0 {
            program.length(compute, copy, batch, 0, 100_000 + 1_000 * step)?;
        }
        let gradient = program.must_allocate(96 * MIB, "gradient", compute)?;
        program.pause(700_000);
        program.label("all-reduce", "src/train.rs:77:9");
        program.wait(send, compute, gradient)?;
        program.pause(300_000);
        if step % 5 == 4 {
            program.label("step", "src/train.rs:83:9");
            program.wait(compute, send, weights)?;
        }
        if step % 20 == 19 {
            // The loss is read.
            program.record.thread = 1;
            program.pause(400_000);
            program.write(Event::HostWait { stream: compute, length_ns: 400_000 })?;
        }
        program.label("drop batch", "src/train.rs:90:5");
        program.retire(batch, 40_000)?;
        program.retire(gradient, 60_000)?;
    }
    program.free(weights)?;
    program.finish()
}

/// Many small blocks of many streams.
fn many(folder: &Path, events: u64) -> Outcome {
    const STREAMS: u32 = 16;
    const SPAN: u64 = 96 * MIB;
    const TAGS: [&str; 12] = [
        "activation",
        "gradient",
        "weight",
        "workspace",
        "batch",
        "logits",
        "attention",
        "optimizer",
        "embedding",
        "mask",
        "norm",
        "scratch",
    ];
    let mut program = Program::new(folder, "many.rec")?;
    let mut streams = Vec::new();
    for slot in 0..STREAMS {
        let stream = StreamNumber::new(1, slot);
        program.write(Event::Span {
            change: SpanChange::Map,
            address: BASE + u64::from(slot) * SPAN,
            bytes: SPAN,
            stream,
        })?;
        streams.push(stream);
    }
    let mut live = Vec::new();
    let mut next = [0_u64; STREAMS as usize];
    let mut written = u64::from(STREAMS);
    while written < events {
        program.pause(200 + program.random % 1600);
        let phase = written * 40 / events.max(1);
        let most = 2000 + 1500 * (phase % 5) as usize;
        let is_free = live.len() > most || (live.len() > 500 && program.random(5) == 0);
        if is_free {
            let at = program.random(live.len() as u64) as usize;
            let block: Block = live.swap_remove(at);
            program.write(Event::Free(block))?;
        } else {
            let slot = program.random(STREAMS.into()) as usize;
            let bytes = 512 << program.random(9);
            // A ring for each stream: addresses as an arena has them, without its cost.
            let offset = next[slot] % (SPAN - 262_144);
            next[slot] = offset + bytes;
            let tag = program.text(TAGS[(slot + program.random as usize % 3) % TAGS.len()]);
            program.generation += 1;
            let block = Block {
                address: BASE + slot as u64 * SPAN + offset,
                bytes,
                generation: program.generation,
                stream: streams[slot],
                tag,
            };
            program.write(Event::Allocate(block))?;
            live.push(block);
            if program.generation % 50 == 0 {
                program.wait(streams[(slot + 1) % streams.len()], streams[slot], block)?;
                written += 1;
            }
        }
        written += 1;
    }
    program.finish()
}
