// Memory over time: sums by group, in a pyramid of chunks with their least and greatest moments.
import { eventAt, NONE } from "./model.js";
import { GROUPS } from "./palette.js";

/** The events of a chunk. */
const CHUNK = 1024;
/** The most events that are looked at one by one for a curve. */
const DIRECT = 200_000;
const STEP = 2048;

/** The columns of a sum: the groups, memory that is freed and still used, what is reserved, and what is stranded. */
export const RETIRED = GROUPS + 1;
export const RESERVED = GROUPS + 2;
export const STRANDED = GROUPS + 3;
const SERIES = GROUPS + 4;

/** The sums after each chunk, and at its moments of least and most memory in use. */
export class Pyramid {
  constructor(selection) {
    this.selection = selection;
    this.model = selection.model;
    this.chunks = 0;
    this.peak = { event: NONE, bytes: 0 };
  }

  /** Adds up all events. */
  *build() {
    const { model } = this;
    const chunks = Math.ceil(model.events / CHUNK);
    const ends = new Float64Array((chunks + 1) * SERIES);
    const least = new Float64Array(chunks * SERIES);
    const most = new Float64Array(chunks * SERIES);
    const leastEvent = new Uint32Array(chunks);
    const mostEvent = new Uint32Array(chunks);
    const leastBytes = new Float64Array(chunks);
    const mostBytes = new Float64Array(chunks);
    const sums = yield* this.#before();
    ends.set(sums);
    let peak = { event: NONE, bytes: inUse(sums) };
    for (let chunk = 0; chunk < chunks; chunk += 1) {
      let low = Infinity;
      let high = -1;
      const end = Math.min(model.events, (chunk + 1) * CHUNK);
      for (let event = chunk * CHUNK; event < end; event += 1) {
        this.#add(sums, event);
        const bytes = inUse(sums);
        if (bytes < low) {
          low = bytes;
          leastEvent[chunk] = event;
          least.set(sums, chunk * SERIES);
        }
        if (bytes > high) {
          high = bytes;
          mostEvent[chunk] = event;
          most.set(sums, chunk * SERIES);
        }
      }
      leastBytes[chunk] = low;
      mostBytes[chunk] = high;
      if (high > peak.bytes) peak = { event: mostEvent[chunk], bytes: high };
      ends.set(sums, (chunk + 1) * SERIES);
      if (chunk % 4 === 3) yield;
    }
    Object.assign(this, { chunks, ends, least, most, leastEvent, mostEvent, leastBytes, mostBytes, peak });
  }

  *#before() {
    const { model, selection } = this;
    const sums = new Float64Array(SERIES);
    sums[STRANDED] = model.file.occupiedBefore ?? 0;
    for (let block = 0; block < model.blocks; block += 1) {
      if (model.allocated[block] === NONE) {
        if (selection.group[block]) sums[selection.group[block] - 1] += model.size[block];
        if (model.occupied) sums[STRANDED] -= this.#rounded(block);
      }
      if (block % STEP === STEP - 1) yield;
    }
    const { bytes, reserved } = model.spans;
    for (let span = 0; span < bytes.length; span += 1) {
      if (reserved[span] === NONE) sums[RESERVED] += bytes[span];
    }
    return sums;
  }

  /** Returns the bytes that a block takes. */
  #rounded(block) {
    const { grain } = this.model.file;
    return Math.max(1, Math.ceil(this.model.size[block] / grain)) * grain;
  }

  #add(sums, event) {
    const { model, selection } = this;
    const kind = model.kind[event];
    const of = model.subject[event];
    if (kind >= 6) return;
    // All blocks count, also those that the filter leaves out: others cannot have what is stranded.
    if (model.occupied) {
      sums[STRANDED] += model.occupied[event] - (event ? model.occupied[event - 1] : model.file.occupiedBefore);
      if (kind === 0) sums[STRANDED] -= this.#rounded(of);
      else if (kind < 3) sums[STRANDED] += this.#rounded(of);
    }
    if (kind >= 4) {
      sums[RESERVED] += kind === 4 ? model.spans.bytes[of] : -model.spans.bytes[of];
      return;
    }
    const group = selection.group[of];
    if (group === 0) return;
    const size = model.size[of];
    if (kind === 0) sums[group - 1] += size;
    else if (kind === 3) sums[RETIRED] -= size;
    else {
      sums[group - 1] -= size;
      if (kind === 2) sums[RETIRED] += size;
    }
  }

  /** Returns the sums after an event; for NONE, those before the first one. */
  sumsAt(event) {
    const end = event === NONE ? 0 : event + 1;
    const chunk = Math.floor(end / CHUNK);
    const sums = this.ends.slice(chunk * SERIES, (chunk + 1) * SERIES);
    for (let at = chunk * CHUNK; at < end; at += 1) this.#add(sums, at);
    return sums;
  }

  /** Makes the samples of a range of time: for each of `bins` its least and its greatest moment. */
  *samples(begin, end, bins, found) {
    const { model } = this;
    const first = eventAt(model, begin);
    const last = Math.min(model.events, eventAt(model, end) + 1);
    const out = new Samples();
    const sums = new Float64Array(SERIES);
    const chunk = Math.floor(first / CHUNK);
    sums.set(this.ends.subarray(chunk * SERIES, (chunk + 1) * SERIES));
    for (let event = chunk * CHUNK; event < first; event += 1) this.#add(sums, event);
    out.add(begin, sums);
    const width = (end - begin) / bins;
    const binOf = (time) => Math.min(bins - 1, Math.max(0, Math.floor((time - begin) / width)));
    const bin = new Bin();
    if (last - first <= DIRECT) {
      for (let event = first; event < last; event += 1) {
        const at = binOf(model.time[event]);
        if (at !== bin.at) bin.next(at, out);
        this.#add(sums, event);
        bin.see(model.time[event], sums, 0, inUse(sums));
        if (event % STEP === STEP - 1) yield;
      }
    } else {
      for (let at = chunk; at * CHUNK < last; at += 1) {
        const of = binOf(model.time[this.mostEvent[at]]);
        if (of !== bin.at) bin.next(of, out);
        // No view of a part of an array: thousands of them would be garbage.
        bin.see(model.time[this.leastEvent[at]], this.least, at * SERIES, this.leastBytes[at]);
        bin.see(model.time[this.mostEvent[at]], this.most, at * SERIES, this.mostBytes[at]);
        if (at % 64 === 63) yield;
      }
      sums.set(this.ends.subarray(Math.min(this.chunks, Math.ceil(last / CHUNK)) * SERIES).subarray(0, SERIES));
    }
    bin.next(-1, out);
    out.add(Math.max(end, out.lastTime()), sums);
    found(out);
  }

  /** Finds the moment of most memory in a range of time. */
  peakBetween(begin, end) {
    const { model } = this;
    let best = { event: NONE, bytes: -1 };
    for (let chunk = 0; chunk < this.chunks; chunk += 1) {
      const event = this.mostEvent[chunk];
      const bytes = this.mostBytes[chunk];
      const time = model.time[event];
      if (time >= begin && time <= end && bytes > best.bytes) best = { event, bytes };
    }
    return best.event === NONE ? this.peak : best;
  }
}

/** Returns the memory in use: all columns but what is reserved. */
function inUse(sums) {
  let sum = 0;
  for (let at = 0; at <= RETIRED; at += 1) sum += sums[at];
  return sum;
}

/** The least and the greatest moment of a bin. */
class Bin {
  at = -1;
  low = { time: 0, bytes: Infinity, sums: new Float64Array(SERIES) };
  high = { time: 0, bytes: -1, sums: new Float64Array(SERIES) };

  see(time, sums, from, bytes) {
    if (bytes < this.low.bytes) Bin.#set(this.low, time, sums, from, bytes);
    if (bytes > this.high.bytes) Bin.#set(this.high, time, sums, from, bytes);
  }

  static #set(moment, time, sums, from, bytes) {
    moment.time = time;
    moment.bytes = bytes;
    for (let at = 0; at < SERIES; at += 1) moment.sums[at] = sums[from + at];
  }

  next(at, out) {
    const [a, b] = this.low.time <= this.high.time ? [this.low, this.high] : [this.high, this.low];
    if (this.high.bytes >= 0) {
      out.add(a.time, a.sums);
      if (b.time !== a.time) out.add(b.time, b.sums);
    }
    this.low.bytes = Infinity;
    this.high.bytes = -1;
    this.at = at;
  }
}

/** Samples by column, as the chart takes them. */
class Samples {
  constructor() {
    this.time = [];
    this.columns = Array.from({ length: SERIES }, () => []);
  }

  add(time, sums) {
    this.time.push(Math.max(time, this.lastTime()));
    for (let at = 0; at < SERIES; at += 1) this.columns[at].push(sums[at]);
  }

  lastTime() {
    return this.time.length ? this.time[this.time.length - 1] : -Infinity;
  }
}
