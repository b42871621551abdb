// The events and blocks of the file as typed arrays, and the filters on them.
import { column, meta } from "./data.js";
import { GROUPS } from "./palette.js";

export const NONE = 0xffffffff;
export const KIND = {
  allocate: 0, free: 1, retire: 2, ready: 3, reserve: 4, release: 5, wait: 6, refuse: 7, mark: 8,
};

/** The number of blocks or events that one step of a job looks at. */
const STEP = 8192;

/** Reads the data of the page. */
export async function load() {
  const file = meta();
  const described = Object.fromEntries(file.columns.map((it) => [it.name, it]));
  const read = (name, Kind) => column(described[name], Kind);
  const [time, kind, subject, position, size, tag, stream, query, label, site] = await Promise.all([
    read("time"), read("kind", Uint8Array), read("subject", Uint32Array), read("position"),
    read("bytes"), read("tag", Uint32Array), read("stream", Uint16Array), read("query"),
    read("label", Uint32Array), read("site", Uint32Array),
  ]);
  const [spanPosition, spanBytes, spanEvents, waiting, awaited, waitBlock, waitReason, markText] =
    await Promise.all([
      read("span_position"), read("span_bytes"), read("span_reserved", Uint32Array),
      read("wait_waiting", Uint16Array), read("wait_awaited", Uint16Array),
      read("wait_block", Uint32Array), read("wait_reason", Uint32Array),
      read("mark_text", Uint32Array),
    ]);
  const [lengthBegin, lengthNs, lengthWaiting, lengthAwaited, lengthBlock, hostBegin, hostNs, hostThread, hostStream] =
    await Promise.all([
      read("length_begin"), read("length_ns"), read("length_waiting", Uint16Array), read("length_awaited", Uint16Array),
      read("length_block", Uint32Array), read("host_begin"), read("host_ns"), read("host_thread", Uint32Array),
      read("host_stream", Uint32Array),
    ]);
  // Not every file says what is returned to the driver as a whole.
  const occupied = described.occupied ? await read("occupied") : null;
  const model = {
    file, names: file.names, streams: file.streams,
    time, kind, subject, events: time.length,
    position, size, tag, stream, query, label, site, blocks: size.length,
    allocated: new Uint32Array(size.length).fill(NONE),
    freed: new Uint32Array(size.length).fill(NONE),
    ready: new Uint32Array(size.length).fill(NONE),
    occupied,
    spans: { position: spanPosition, bytes: spanBytes, reserved: spanEvents },
    waits: { waiting, awaited, block: waitBlock, reason: waitReason, event: new Uint32Array(waiting.length) },
    lengths: { begin: lengthBegin, ns: lengthNs, waiting: lengthWaiting, awaited: lengthAwaited, block: lengthBlock },
    hosts: { begin: hostBegin, ns: hostNs, thread: hostThread, stream: hostStream },
    marks: { text: markText, event: new Uint32Array(markText.length) },
  };
  link(model);
  model.budget = budgets(model);
  return model;
}

/** Returns for each block the budget that is named as its tag or label, NONE without one; null if no block has one. */
function budgets(model) {
  const names = new Set(model.file.budgetPeaks.map((peak) => peak.budget));
  names.delete(0);
  if (names.size === 0) return null;
  const { tag, label } = model;
  const found = new Uint32Array(model.blocks).fill(NONE);
  let hasAny = false;
  for (let block = 0; block < model.blocks; block += 1) {
    if (names.has(tag[block])) found[block] = tag[block];
    else if (names.has(label[block])) found[block] = label[block];
    hasAny ||= found[block] !== NONE;
  }
  return hasAny ? found : null;
}

/** Finds the events of each block, wait and mark. */
function link(model) {
  const { kind, subject, allocated, freed, ready, waits, marks } = model;
  for (let event = 0; event < kind.length; event += 1) {
    const of = subject[event];
    switch (kind[event]) {
      case 0: allocated[of] = event; break;
      case 1: freed[of] = event; ready[of] = event; break;
      case 2: freed[of] = event; break;
      case 3: ready[of] = event; break;
      case 6: waits.event[of] = event; break;
      case 8: marks.event[of] = event; break;
      default:
    }
  }
}

/** Returns the first event that is not before a time. */
export function eventAt(model, time) {
  let low = 0;
  let high = model.events;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (model.time[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the place on the axis of a time by the clock. */
export function placeOf(model, clock) {
  if (model.time === model.clock) return clock;
  let low = 0;
  let high = model.events;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (model.clock[middle] < clock) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the time of an event, or of the start for a block that was there before. */
export function timeOf(model, event, otherwise) {
  return event === NONE ? otherwise : model.time[event];
}

/** What blocks are grouped by: their tag, stream, query, budget or label. */
export const KEYS = {
  tag: { of: (model) => model.tag, name: (model, id) => model.names[id] || "no tag" },
  stream: { of: (model) => model.stream, name: (model, id) => model.streams[id] },
  query: { of: (model) => model.query, name: (model, id) => (id ? `query ${id}` : "no query") },
  budget: { of: (model) => model.budget, name: (model, id) => (id === NONE ? "none of these" : model.names[id]) },
  label: { of: (model) => model.label, name: (model, id) => model.names[id] || "no label" },
};

/** The blocks that pass the filter, and their groups. */
export class Selection {
  constructor(model) {
    this.model = model;
    this.key = "tag";
    this.filter = {};
    /** For each block its group plus one; 0 for a block that the filter leaves out. */
    this.group = new Uint8Array(model.blocks);
    this.groups = [];
    this.shown = 0;
  }

  /** Finds the groups: those that hold most when most memory is in use. */
  *update(key, filter) {
    const { model } = this;
    this.key = key;
    this.filter = filter;
    const ids = KEYS[key].of(model);
    const passes = test(model, filter);
    const peaks = new Map();
    const now = new Map();
    const raise = (id, change) => {
      const sum = (now.get(id) ?? 0) + change;
      now.set(id, sum);
      if (sum > (peaks.get(id) ?? 0)) peaks.set(id, sum);
    };
    this.shown = 0;
    for (let block = 0; block < model.blocks; block += 1) {
      const isShown = passes(block);
      this.group[block] = isShown ? 1 : 0;
      if (isShown) this.shown += 1;
      if (isShown && model.allocated[block] === NONE) raise(ids[block], model.size[block]);
      if (block % STEP === STEP - 1) yield;
    }
    for (let event = 0; event < model.events; event += 1) {
      const block = model.subject[event];
      const kind = model.kind[event];
      if (kind < 4 && this.group[block]) {
        if (kind === 0) raise(ids[block], model.size[block]);
        else if (kind === 1 || kind === 3) raise(ids[block], -model.size[block]);
      }
      if (event % STEP === STEP - 1) yield;
    }
    const sorted = [...peaks.entries()].sort((a, b) => b[1] - a[1]);
    const number = new Map(sorted.map(([id], at) => [id, Math.min(at, GROUPS)]));
    this.groups = sorted.slice(0, GROUPS).map(([id]) => ({ id, name: KEYS[key].name(model, id) }));
    if (sorted.length > GROUPS) {
      this.groups.push({ id: -1, name: `${sorted.length - GROUPS} others` });
    }
    for (let block = 0; block < model.blocks; block += 1) {
      if (this.group[block]) this.group[block] = 1 + (number.get(ids[block]) ?? GROUPS);
      if (block % STEP === STEP - 1) yield;
    }
  }
}

/** Makes the test that a filter is. */
function test(model, { tag, stream, query, least = 0, most = Infinity }) {
  const isAny = tag === undefined && stream === undefined && query === undefined;
  if (isAny && least === 0 && most === Infinity) return () => true;
  return (block) => {
    const size = model.size[block];
    return size >= least && size <= most
      && (tag === undefined || model.tag[block] === tag)
      && (stream === undefined || model.stream[block] === stream)
      && (query === undefined || model.query[block] === query);
  };
}

/** Returns whether a block is in use after an event. */
export function isInUse(model, block, event) {
  const { allocated, ready } = model;
  return (allocated[block] === NONE || allocated[block] <= event) && ready[block] > event;
}

/** Finds which groups and which blocks held the memory after an event. */
export function* holders(selection, event, group, found) {
  const { model } = selection;
  const ids = KEYS[selection.key].of(model);
  const sums = new Map();
  const largest = [];
  let least = -1;
  let total = 0;
  for (let block = 0; block < model.blocks; block += 1) {
    if (block % STEP === STEP - 1) yield;
    if (!selection.group[block] || !isInUse(model, block, event)) continue;
    const size = model.size[block];
    const id = ids[block];
    total += size;
    const sum = sums.get(id);
    if (sum) {
      sum.bytes += size;
      sum.blocks += 1;
    } else {
      sums.set(id, { id, bytes: size, blocks: 1, group: selection.group[block] - 1 });
    }
    if ((group === undefined || group === id) && size > least) {
      largest.push(block);
      if (largest.length >= 400) {
        largest.sort((a, b) => model.size[b] - model.size[a] || a - b);
        largest.length = 100;
        least = model.size[largest[99]];
      }
    }
  }
  largest.sort((a, b) => model.size[b] - model.size[a] || a - b);
  largest.length = Math.min(largest.length, 100);
  const rows = [...sums.values()].sort((a, b) => b.bytes - a.bytes);
  found({ event, rows, total, largest });
}

/** Finds the blocks that had the bytes of a block before it, and that had them after it. */
export function* neighbours(model, block, found) {
  const start = model.position[block];
  const end = start + model.size[block];
  const begin = model.allocated[block] === NONE ? -1 : model.allocated[block];
  const until = model.ready[block];
  let before = -1;
  let after = -1;
  for (let other = 0; other < model.blocks; other += 1) {
    if (other % STEP === STEP - 1) yield;
    const isApart = model.position[other] >= end || model.position[other] + model.size[other] <= start;
    if (other === block || isApart) continue;
    if (model.ready[other] <= begin && (before < 0 || model.ready[other] >= model.ready[before])) {
      before = other;
    }
    const allocated = model.allocated[other];
    if (allocated !== NONE && allocated >= until && after < 0) after = other;
  }
  found({ before, after });
}
