// The streams as lanes, and their waits as arrows.
import { bytes, count, counted, time } from "./format.js";
import { eventAt, NONE, placeOf } from "./model.js";
import { css } from "./palette.js";
import { timeTicks } from "./ticks.js";

const LANE = 46;
const LEFT = 110;
/** The pixels that a column of the density has. */
const PIXELS = 3;
/** The most arrows that are drawn. */
const ARROWS = 800;
/** The pixels of a bin in which arrows of a pair are one. */
const BIN = 10;
/** The most lanes; the streams of the most waits have one. */
const LANES = 24;
/** The most lanes of threads of the host, those that have waited for the longest time. */
const HOSTS = 8;
/** The most bars of measured waits that are drawn, the longest ones. */
const BARS = 800;

/** Returns the first wait that is not before a time. */
function waitAt(model, at) {
  const { event } = model.waits;
  const first = eventAt(model, at);
  let low = 0;
  let high = event.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (event[middle] < first) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Counts the waits by pair of streams and by tag of the block. */
export function* pairs(model, found) {
  const { waiting, awaited, block } = model.waits;
  const all = new Map();
  for (let wait = 0; wait < waiting.length; wait += 1) {
    const key = waiting[wait] * 65536 + awaited[wait];
    let pair = all.get(key);
    if (!pair) {
      pair = { waiting: waiting[wait], awaited: awaited[wait], count: 0, tags: new Map(), first: wait };
      all.set(key, pair);
    }
    pair.count += 1;
    const tag = block[wait] === NONE ? -1 : model.tag[block[wait]];
    pair.tags.set(tag, (pair.tags.get(tag) ?? 0) + 1);
    if (wait % 8192 === 8191) yield;
  }
  for (let at = 0; at < model.lengths.ns.length; at += 1) {
    const key = model.lengths.waiting[at] * 65536 + model.lengths.awaited[at];
    const pair = all.get(key)
      ?? { waiting: model.lengths.waiting[at], awaited: model.lengths.awaited[at], count: 0, tags: new Map(), first: NONE };
    all.set(key, pair);
    (pair.lengths ??= []).push(model.lengths.ns[at]);
    if (at % 8192 === 8191) yield;
  }
  const rows = [...all.values()].sort((a, b) => b.count - a.count);
  for (const pair of rows) if (pair.lengths) pair.lengths = Float64Array.from(pair.lengths).sort();
  for (const pair of rows) pair.tags = [...pair.tags.entries()].sort((a, b) => b[1] - a[1]);
  found(rows);
}

/** Finds the waits of a pair because of each block, the most frequent ones. */
export function* waitsOf(model, pair, found) {
  const { waiting, awaited, block, reason, event } = model.waits;
  const all = new Map();
  for (let wait = 0; wait < waiting.length; wait += 1) {
    if (wait % 8192 === 8191) yield;
    if (waiting[wait] !== pair.waiting || awaited[wait] !== pair.awaited) continue;
    const row = all.get(block[wait]);
    if (row) row.count += 1;
    else all.set(block[wait], { block: block[wait], count: 1, reason: reason[wait], event: event[wait], wait });
  }
  const rows = [...all.values()].sort((a, b) => b.count - a.count || a.event - b.event);
  found(rows.slice(0, 100), rows.filter((row) => row.block !== NONE).length);
}

/** Describes a wait in a sentence. */
export function waitText(model, wait) {
  const { waiting, awaited, block, reason, event } = model.waits;
  const of = block[wait];
  const because = of === NONE
    ? "the recording does not name a block"
    : `because of block ${model.names[model.tag[of]] || "without a tag"}, ${bytes(model.size[of])}, `
      + `allocated on ${model.streams[model.stream[of]]}`;
  const why = model.names[reason[wait]];
  return `${model.streams[waiting[wait]]} waits for ${model.streams[awaited[wait]]} at `
    + `${time(model.clock[event[wait]])}, ${because}${why ? ` (${why})` : ""}`;
}

/** Describes a wait with a length. */
function lengthText(model, { length, host, ns }) {
  if (host !== undefined) {
    const { thread, stream, begin } = model.hosts;
    const what = stream[host] === NONE ? "the device" : model.streams[stream[host]];
    return `host thread ${thread[host]} waited for ${what} for ${time(ns)}, from ${time(begin[host])} on`;
  }
  const { waiting, awaited, begin, block } = model.lengths;
  const because = block[length] === NONE ? "" : `, because of block ${model.names[model.tag[block[length]]] || "without a tag"}`;
  return `${model.streams[waiting[length]]} was held up by ${model.streams[awaited[length]]} for ${time(ns)}${because}; `
    + `the wait was queued at ${time(begin[length])}`;
}

/** Describes the measured lengths of a pair. */
export function pairLengths(pair) {
  if (!pair.lengths) return "";
  const { lengths } = pair;
  return `${count(lengths.length)}: median ${time(lengths[lengths.length >> 1])}, longest ${time(lengths.at(-1))}`;
}

/** The lanes of streams. */
export class Lanes {
  constructor(element, canvas, model, state) {
    Object.assign(this, { element, canvas, model, state });
    this.arrows = [];
    this.hidden = 0;
    this.pair = null;
    this.lanes = [];
    this.bars = [];
    this.hosts = new Map();
  }

  /** Chooses the streams that have a lane. */
  choose(rows) {
    const { model } = this;
    const streams = new Map(model.streams.map((_, at) => [at, 0]));
    for (const { waiting, awaited, count: waits } of rows) {
      streams.set(waiting, (streams.get(waiting) ?? 0) + waits);
      streams.set(awaited, (streams.get(awaited) ?? 0) + waits);
    }
    const most = [...streams.entries()].sort((a, b) => b[1] - a[1]).slice(0, LANES);
    this.lanes = most.map(([stream]) => stream).sort((a, b) => a - b);
    this.of = new Map(this.lanes.map((stream, at) => [stream, at]));
    this.names = this.lanes.map((stream) => model.streams[stream]);
    const threads = new Map();
    model.hosts.thread.forEach((thread, at) => threads.set(thread, (threads.get(thread) ?? 0) + model.hosts.ns[at]));
    const longest = [...threads.entries()].sort((a, b) => b[1] - a[1]).slice(0, HOSTS);
    for (const thread of longest.map(([it]) => it).sort((a, b) => a - b)) {
      this.hosts.set(thread, this.lanes.length);
      this.lanes.push(NONE);
      this.names.push(`host thread ${thread}`);
    }
    this.element.style.height = `${Math.max(1, this.lanes.length) * LANE + 26}px`;
  }

  y(lane) {
    return lane * LANE + LANE / 2 + 4;
  }

  x(at) {
    const { t0, t1 } = this.state;
    return LEFT + (at - t0) / (t1 - t0) * (this.element.clientWidth - LEFT - 12);
  }

  /** Finds the arrows of the range of time that is shown: one by one, or in bins. */
  *build(found) {
    const { model, state } = this;
    const { waiting, awaited, event } = model.waits;
    const first = waitAt(model, state.t0);
    const last = waitAt(model, state.t1 + 1);
    const bins = new Map();
    const binsIn = (this.element.clientWidth - LEFT - 12) / BIN / (state.t1 - state.t0);
    for (let wait = first; wait < last; wait += 1) {
      if (wait % 512 === 511) yield;
      const from = this.of.get(awaited[wait]);
      const to = this.of.get(waiting[wait]);
      if (from === undefined || to === undefined) continue;
      const isHidden = this.pair
        && (this.pair.waiting !== waiting[wait] || this.pair.awaited !== awaited[wait]);
      if (isHidden) continue;
      const at = model.time[event[wait]];
      const key = (Math.floor((at - state.t0) * binsIn) * LANES + from) * LANES + to;
      const bin = bins.get(key);
      if (bin) bin.count += 1;
      else bins.set(key, { from, to, at, wait, count: 1 });
    }
    let arrows = [...bins.values()];
    this.hidden = Math.max(0, arrows.length - ARROWS);
    if (this.hidden) {
      arrows.sort((a, b) => b.count - a.count);
      arrows = arrows.slice(0, ARROWS);
    }
    this.density = yield* this.#density();
    this.bars = yield* this.#lengths();
    found(arrows);
  }

  /** Finds the waits with a length in the range that is shown, the longest ones. */
  *#lengths() {
    const { model, state, pair } = this;
    const bars = [];
    const add = (lane, begin, ns, what) => {
      const t0 = placeOf(model, begin);
      const t1 = placeOf(model, begin + ns);
      if (lane !== undefined && t1 >= state.t0 && t0 <= state.t1) bars.push({ lane, t0, t1, ns, ...what });
    };
    const { begin, ns, waiting, awaited } = model.lengths;
    for (let at = 0; at < ns.length; at += 1) {
      if (at % 2048 === 2047) yield;
      const isHidden = pair && (pair.waiting !== waiting[at] || pair.awaited !== awaited[at]);
      if (!isHidden) add(this.of.get(waiting[at]), begin[at], ns[at], { length: at });
    }
    const { hosts } = model;
    for (let at = 0; at < hosts.ns.length; at += 1) {
      if (at % 2048 === 2047) yield;
      if (!pair) add(this.hosts.get(hosts.thread[at]), hosts.begin[at], hosts.ns[at], { host: at });
    }
    return bars.length > BARS ? bars.sort((a, b) => b.ns - a.ns).slice(0, BARS) : bars;
  }

  /** Counts the events of each lane by pixel. */
  *#density() {
    const { model, state } = this;
    const width = Math.max(1, Math.floor((this.element.clientWidth - LEFT - 12) / PIXELS));
    const sums = new Float32Array(this.lanes.length * width);
    const first = eventAt(model, state.t0);
    const last = eventAt(model, state.t1 + 1);
    // A sample of a large range is enough for a picture.
    const step = Math.max(1, Math.floor((last - first) / 400_000));
    let seen = 0;
    for (let event = first; event < last; event += step) {
      seen += 1;
      if (seen % 2048 === 2047) yield;
      if (model.kind[event] > 3) continue;
      const lane = this.of.get(model.stream[model.subject[event]]);
      if (lane === undefined) continue;
      const pixel = Math.floor((model.time[event] - state.t0) / (state.t1 - state.t0) * width);
      if (pixel >= 0 && pixel < width) sums[lane * width + pixel] += 1;
    }
    return { sums, width };
  }

  draw() {
    const { canvas, element, model, state } = this;
    const scale = devicePixelRatio;
    const width = element.clientWidth;
    const height = element.clientHeight;
    if (canvas.width !== width * scale || canvas.height !== height * scale) {
      canvas.width = width * scale;
      canvas.height = height * scale;
    }
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const front = style.getPropertyValue("--front");
    const soft = style.getPropertyValue("--soft");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "13px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.lanes.forEach((_, lane) => {
      const y = this.y(lane);
      context.strokeStyle = soft;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - 12, y);
      context.stroke();
      context.fillStyle = front;
      context.textAlign = "right";
      context.fillText(this.names[lane], LEFT - 10, y, LEFT - 16);
    });
    if (this.density) {
      const { sums, width: columns } = this.density;
      let most = 1;
      for (const value of sums) most = Math.max(most, value);
      context.fillStyle = css(0, 0.6);
      context.beginPath();
      for (let lane = 0; lane < this.lanes.length; lane += 1) {
        for (let column = 0; column < columns; column += 1) {
          const value = sums[lane * columns + column];
          if (value === 0) continue;
          const tall = 3 + 9 * Math.log1p(value) / Math.log1p(most);
          context.rect(LEFT + column * PIXELS, this.y(lane) - tall / 2, PIXELS * 0.6, tall);
        }
      }
      context.fill();
    }
    for (const bar of this.bars) {
      const [left, top, wide, tall] = this.box(bar);
      context.fillStyle = css(bar.host === undefined ? 1 : 4, bar === this.marked ? 1 : 0.6);
      context.fillRect(left, top, wide, tall);
      context.strokeStyle = front;
      context.lineWidth = bar === this.marked ? 2 : 0.7;
      context.strokeRect(left, top, wide, tall);
    }
    const alpha = this.arrows.length > 300 ? 0.45 : 0.8;
    const thin = this.arrows.filter((arrow) => arrow.count < 10 && arrow !== this.marked);
    const thick = this.arrows.filter((arrow) => arrow.count >= 10 && arrow !== this.marked);
    this.#draw(context, thin, css(5, alpha), 1.2);
    this.#draw(context, thick, css(5, alpha), 2.4);
    if (this.arrows.includes(this.marked)) this.#draw(context, [this.marked], "#d1242f", 3);
    context.fillStyle = soft;
    context.textAlign = "center";
    for (const { at, text } of timeTicks(state.t0, state.t1, width - LEFT - 12, state.format)) {
      const right = width - 4 - context.measureText(text).width / 2;
      context.fillText(text, Math.min(right, this.x(at)), height - 12);
    }
  }

  /** Draws arrows of one look in two strokes of the pen: one for each would take its time. */
  #draw(context, arrows, color, width) {
    context.strokeStyle = color;
    context.fillStyle = color;
    context.lineWidth = width;
    context.beginPath();
    for (const { from, to, at } of arrows) {
      const x = this.x(at);
      const down = to > from ? 1 : -1;
      if (from === to) {
        context.moveTo(x + 6, this.y(from) - 8);
        context.arc(x, this.y(from) - 8, 6, 0, Math.PI * 2);
      } else {
        context.moveTo(x - 4, this.y(from));
        context.lineTo(x, this.y(to) - down * 7);
      }
    }
    context.stroke();
    context.beginPath();
    for (const { from, to, at } of arrows) {
      if (from === to) continue;
      const x = this.x(at);
      const down = to > from ? 1 : -1;
      context.moveTo(x, this.y(to) - down);
      context.lineTo(x - 4, this.y(to) - down * 9);
      context.lineTo(x + 4, this.y(to) - down * 9);
    }
    context.fill();
  }

  /** Returns the place of a bar: below the line of its stream, and at least two pixels wide. */
  box(bar) {
    const left = Math.max(LEFT, this.x(bar.t0));
    const right = Math.max(left + 2, Math.min(this.element.clientWidth - 12, this.x(bar.t1)));
    return [left, this.y(bar.lane) + 8, right - left, 9];
  }

  /** Returns the bar at a place, if there is one: the shortest of several. */
  barAt(x, y) {
    const isThere = (bar) => {
      const [left, top, wide, tall] = this.box(bar);
      return x >= left - 2 && x <= left + wide + 2 && y >= top - 1 && y <= top + tall + 1;
    };
    return this.bars.filter(isThere).sort((a, b) => a.ns - b.ns)[0] ?? null;
  }

  /** Returns the arrow at a place, if there is one. */
  arrowAt(x, y) {
    let best = null;
    let nearest = 8;
    for (const arrow of this.arrows) {
      const low = Math.min(this.y(arrow.from), this.y(arrow.to)) - 8;
      const high = Math.max(this.y(arrow.from), this.y(arrow.to)) + 8;
      const away = Math.abs(this.x(arrow.at) - x);
      if (away < nearest && y >= low && y <= high) {
        nearest = away;
        best = arrow;
      }
    }
    return best;
  }

  /** Describes an arrow or a bar. */
  describe(arrow) {
    if (arrow.ns !== undefined) return lengthText(this.model, arrow);
    const more = arrow.count > 1 ? `\nand ${counted(arrow.count - 1, "more wait")} of this pair here` : "";
    return waitText(this.model, arrow.wait) + more;
  }
}

/** Describes the tags of a pair: `812 because of batch`. */
export function pairTags(model, pair) {
  const named = pair.tags.slice(0, 3).map(([tag, waits]) =>
    (tag < 0 ? `${count(waits)} without a block` : `${count(waits)} because of ${model.names[tag] || "no tag"}`));
  return named.join(", ");
}
