// The page: loads the data, connects the views, and fills the tables.
import { Chart } from "./chart.js";
import { Pyramid, RESERVED, RETIRED, STRANDED } from "./curves.js";
import { show as showFindings } from "./findings.js";
import { bytes, count, counted, time } from "./format.js";
import { blockAt, HeapIndex } from "./heap.js";
import { frames, isBusy, later, opened, painter, repaint, resetFrames, start } from "./jobs.js";
import { eventAt, holders, KEYS, load, neighbours, NONE, Selection, timeOf } from "./model.js";
import { swatch } from "./palette.js";
import { MOST, Rects, renderer } from "./rects.js";
import { sizeTicks, timeTicks } from "./ticks.js";
import { Lanes, pairLengths, pairs, pairTags, waitsOf, waitText } from "./streams.js";

const get = (id) => document.getElementById(id);
const begun = performance.now();
const state = { unit: 1e9, format: time, times: () => model.time, t0: 0, t1: 1, p0: 0, p1: 1, failed: [], moment: undefined, budgets: [], selected: -1, holder: undefined };
const page = { isReady: false, shown: {} };
let model;
let selection;
let pyramid;
let index;
let chart;
let lanes;
let drawing;
let rects = new Rects();
let curve;
let all;

function theme(name) {
  document.documentElement.dataset.theme = name;
  chart?.redraw();
  ["heap", "lanes"].forEach(repaint);
}

theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
get("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
addEventListener("beforeprint", () => theme("light"));

/** Fills a table. A row is an array of cells: texts, elements, or `{ number }`. */
function fill(id, titles, rows, onRow) {
  const table = get(id);
  table.replaceChildren();
  const cell = (tag, value) => {
    const it = document.createElement(tag);
    if (value !== null && typeof value === "object" && "number" in value) {
      it.className = "number";
      it.append(value.number);
    } else if (Array.isArray(value)) it.append(...value);
    else it.append(value);
    return it;
  };
  const head = table.createTHead().insertRow();
  titles.forEach((title) => head.append(cell("th", title)));
  const body = table.createTBody();
  rows.forEach((cells, at) => {
    const row = body.insertRow();
    cells.forEach((value) => row.append(cell("td", value)));
    if (!onRow) return;
    row.tabIndex = 0;
    const act = () => {
      for (const other of body.rows) other.removeAttribute("aria-selected");
      row.setAttribute("aria-selected", "true");
      onRow(at);
    };
    row.addEventListener("click", act);
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        act();
      }
    });
  });
}

function blockName(block) {
  return model.names[model.tag[block]] || "no tag";
}

function lifetime(block) {
  const from = model.allocated[block] === NONE ? "before the first event" : time(model.clock[model.allocated[block]]);
  const until = model.freed[block] === NONE ? "never freed" : time(model.clock[model.freed[block]]);
  return `${from} – ${until}`;
}

function blockPlace(block) {
  return [model.names[model.label[block]], model.names[model.site[block]]].filter(Boolean).join("\n");
}

function address(position) {
  for (const segment of [...model.file.segments].reverse()) {
    if (position >= segment.position) {
      return `0x${(BigInt(segment.address) + BigInt(position - segment.position)).toString(16)}`;
    }
  }
  return "";
}

function describe(block) {
  const lines = [
    `${blockName(block)}, ${bytes(model.size[block])}`,
    `${model.streams[model.stream[block]]}, ${lifetime(block)}`,
  ];
  const isRetired = model.freed[block] !== NONE && model.ready[block] !== model.freed[block];
  if (isRetired) {
    const ready = model.ready[block] === NONE ? "not ready" : `ready at ${time(model.clock[model.ready[block]])}`;
    lines.push(`freed while still used, ${ready}`);
  }
  if (model.file.hasAddresses) lines.push(address(model.position[block]));
  const place = blockPlace(block);
  if (place) lines.push(place);
  return lines.join("\n");
}

/** Shows who held memory after an event. */
function showHolders(event, isPeak) {
  state.moment = event === NONE ? 0 : model.time[event];
  const at = time(event === NONE ? 0 : model.clock[event]);
  state.momentText = at;
  chart.redraw();
  start("holders", holders(selection, event, undefined, ({ rows, total, largest }) => {
    const name = (row) => [swatch(row.group), KEYS[selection.key].name(model, row.id)];
    get("holders-title").textContent = isPeak
      ? `Who held the peak: ${bytes(total)} at ${at}`
      : `Who held memory at ${at}: ${bytes(total)}`;
    get("holders-note").textContent = notes(event);
    const cells = rows.slice(0, 50).map((row) => [
      name(row), { number: bytes(row.bytes) },
      { number: `${(row.bytes * 100 / Math.max(1, total)).toFixed(1)} %` }, { number: count(row.blocks) },
    ]);
    fill("holders", [selection.key, { number: "bytes" }, { number: "share" }, { number: "blocks" }], cells, (at) => {
      state.holder = rows[at].id;
      showBlocksOf(event, rows[at].id);
    });
    page.shown.holders = rows;
    later("blocks", () => showBlocks(largest, "The largest blocks then"));
  }));
}

/** Describes the memory without live blocks after an event. */
function notes(event) {
  const sums = pyramid.sumsAt(event);
  const parts = [];
  if (sums[RETIRED] > 0) parts.push(`${bytes(sums[RETIRED])} freed and still used`);
  if (chart.has[RESERVED]) parts.push(`${bytes(sums[RESERVED])} reserved`);
  if (chart.has[STRANDED]) parts.push(`${bytes(sums[STRANDED])} stranded`);
  return parts.join(", ");
}

function showBlocksOf(event, id) {
  const name = KEYS[selection.key].name(model, id);
  start("holders", holders(selection, event, id, ({ largest }) => {
    showBlocks(largest, `The largest blocks of ${name} then`);
  }));
}

function showBlocks(blocks, title) {
  get("blocks-title").textContent = title;
  const cells = blocks.map((block) => [
    { number: bytes(model.size[block]) }, blockName(block), model.streams[model.stream[block]],
    lifetime(block), blockPlace(block).split("\n").slice(0, 2).join(" · "),
  ]);
  fill("blocks", [{ number: "bytes" }, "tag", "stream", "lived", "place"], cells, (at) => select(blocks[at], true));
  page.shown.blocks = blocks;
}

/** Selects a block: its details, what was at its place before and after. */
function select(block, isRevealed) {
  state.selected = block;
  if (isRevealed) reveal(block);
  repaint("heap");
  start("neighbours", neighbours(model, block, ({ before, after }) => {
    const box = get("block");
    box.replaceChildren();
    const table = document.createElement("table");
    table.id = "chunk";
    box.append(table);
    const line = (word, of) => (of < 0
      ? [word, "nothing in this file", "", ""]
      : [word, `${blockName(of)}, ${bytes(model.size[of])}`, `${model.streams[model.stream[of]]}, ${lifetime(of)}`,
        [model.file.hasAddresses ? address(model.position[of]) : "", ` ${blockPlace(of)}`]]);
    const rows = [["before", before], ["block", block], ["after", after]];
    fill("chunk", ["there", "", "", ""], rows.map(([word, of]) => line(word, of)), (at) => {
      if (rows[at][1] >= 0) select(rows[at][1], true);
    });
    page.shown.chunk = { before, block, after };
  }));
}

/** Moves the views so that a block can be seen. */
function reveal(block) {
  const begin = timeOf(model, model.allocated[block], all.t0);
  const end = timeOf(model, model.ready[block], all.t1);
  if (end < state.t0 || begin > state.t1) setRange(begin - (end - begin) * 0.5, end + (end - begin) * 0.5);
  const low = model.position[block];
  const high = low + model.size[block];
  if (low < state.p0 || high > state.p1) {
    const tall = Math.max(state.p1 - state.p0, (high - low) * 2);
    setPlaces((low + high) / 2 - tall / 2, (low + high) / 2 + tall / 2);
  }
}

function setRange(begin, end) {
  const least = Math.max(1, (all.t1 - all.t0) * 1e-9);
  const wide = Math.min(all.t1 - all.t0, Math.max(least, end - begin));
  state.t0 = Math.min(Math.max(all.t0, begin), all.t1 - wide);
  state.t1 = state.t0 + wide;
  refresh();
}

function setPlaces(low, high) {
  const tall = Math.min(all.p1 - all.p0, Math.max(512, high - low));
  state.p0 = Math.min(Math.max(all.p0, low), all.p1 - tall);
  state.p1 = state.p0 + tall;
  refresh();
}

function heapView() {
  const map = get("map");
  return {
    t0: state.t0, t1: state.t1, p0: state.p0, p1: state.p1,
    width: Math.max(1, map.clientWidth), height: Math.max(1, map.clientHeight),
  };
}

/** Builds all views for the range that is shown. */
function refresh() {
  const wide = Math.max(100, get("chart").clientWidth);
  start("curve", pyramid.samples(state.t0, state.t1, Math.floor(wide / 2), (samples) => {
    const peak = pyramid.peakBetween(state.t0, state.t1);
    page.shown.peak = { ...peak, time: peak.event === NONE ? 0 : model.time[peak.event] };
    curve = samples;
    page.shown.curve = samples;
    repaint("chart");
  }));
  const view = heapView();
  start("rects", index.rects(selection, view, look(), (built) => {
    const old = rects;
    rects = built;
    page.shown.rects = built.count;
    repaint("heap");
    return old;
  }));
  start("arrows", lanes.build((arrows) => {
    lanes.arrows = arrows;
    page.shown.arrows = arrows.length;
    repaint("lanes");
  }));
  repaint("heap");
  repaint("lanes");
  const digits = state.unit === 1 ? 0 : 6;
  get("from").placeholder = (state.t0 / state.unit).toFixed(digits);
  get("to").placeholder = (state.t1 / state.unit).toFixed(digits);
}

/** Returns what colours a block on the heap map, if that is not its group. */
function look() {
  switch (get("look").value) {
    case "stream": return (block) => Math.min(8, model.stream[block]);
    case "age": return (block) => {
      const begin = timeOf(model, model.allocated[block], all.t0);
      const age = timeOf(model, model.ready[block], all.t1) - begin;
      return Math.max(0, Math.min(7, Math.floor(8 + Math.log10(Math.max(1e-8, age / (all.t1 - all.t0))) * 2)));
    };
    default: return null;
  }
}

function drawHeap() {
  const view = heapView();
  const scale = devicePixelRatio;
  for (const canvas of [get("rects"), get("over")]) {
    if (canvas.width !== Math.round(view.width * scale) || canvas.height !== Math.round(view.height * scale)) {
      canvas.width = Math.round(view.width * scale);
      canvas.height = Math.round(view.height * scale);
    }
  }
  drawing.draw(rects, view);
  const context = get("over").getContext("2d");
  const style = getComputedStyle(document.documentElement);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, view.width, view.height);
  context.font = "12px system-ui, sans-serif";
  const x = (at) => (at - view.t0) / (view.t1 - view.t0) * view.width;
  const y = (at) => (view.p1 - at) / (view.p1 - view.p0) * view.height;
  const label = (text, left, top, align = "left") => {
    context.textAlign = align;
    context.lineWidth = 3;
    context.strokeStyle = style.getPropertyValue("--panel");
    context.strokeText(text, left, top);
    context.fillStyle = style.getPropertyValue("--front");
    context.fillText(text, left, top);
  };
  // A label at the edge would be cut off.
  const isWhole = (at, length) => at > 40 && at < length - 40;
  for (const { at, text } of timeTicks(view.t0, view.t1, view.width, state.format)) {
    if (isWhole(x(at), view.width)) label(text, x(at), view.height - 5, "center");
  }
  for (const { at, text } of sizeTicks(view.p0, view.p1, 6)) {
    if (isWhole(y(at), view.height)) label(text, 4, y(at) + 4);
  }
  for (const segment of model.file.segments.slice(1, 200)) {
    context.fillStyle = style.getPropertyValue("--soft");
    context.fillRect(0, y(segment.position), view.width, 0.5);
  }
  for (const failed of state.failed) {
    const when = model.time[failed.event];
    if (when < view.t0 || when > view.t1) continue;
    context.fillStyle = style.getPropertyValue("--alarm");
    context.fillRect(x(when) - 1, 0, 2, view.height);
    for (const hole of failed.holes) {
      const top = y(hole.position + hole.bytes);
      context.strokeStyle = style.getPropertyValue("--alarm");
      context.lineWidth = 1.5;
      context.strokeRect(x(when) - 9, top, 18, Math.max(2, y(hole.position) - top));
    }
    const isLeft = x(when) > view.width - 130;
    label(`${bytes(failed.bytes)} refused`, x(when) + (isLeft ? -14 : 14), 16, isLeft ? "right" : "left");
  }
  if (state.selected >= 0) {
    const block = state.selected;
    const left = x(timeOf(model, model.allocated[block], all.t0));
    const right = x(timeOf(model, model.ready[block], all.t1));
    const top = y(model.position[block] + model.size[block]);
    context.lineWidth = 2.5;
    context.strokeStyle = style.getPropertyValue("--front");
    context.strokeRect(left, top, Math.max(2, right - left), Math.max(2, y(model.position[block]) - top));
  }
  const many = rects.summed ? `, ${count(rects.summed)} small ones summed up` : "";
  get("heap-note").textContent = rects.view
    ? `${counted(rects.shown, "block")} drawn${many}${model.file.hasAddresses ? "" : " · the file has no addresses: each block is placed where it fits best"}`
    : "";
}

/** Lets time go by the clock, or by the number of the event: then bursts are as wide as pauses. */
function setAxis(name) {
  const isClock = name === "clock";
  model.order ??= Float64Array.from({ length: model.events }, (_, event) => event);
  model.time = isClock ? model.clock : model.order;
  state.unit = isClock ? 1e9 : 1;
  state.format = isClock ? time : (event) => count(Math.round(event));
  get("unit").textContent = isClock ? "s" : "events";
  all.t1 = Math.max(1, model.time[model.events - 1]);
  for (const id of ["from", "to"]) get(id).value = "";
  Object.assign(state, { t0: all.t0, t1: all.t1 });
  index = new HeapIndex(model);
  rects = new Rects();
  start("index", (function* build() {
    yield* index.build();
    apply();
  })());
}

/** Takes the filter and the grouping into all views. */
function apply() {
  const size = (text, otherwise) => {
    const match = /^\s*([\d.]+)\s*([kmgt]?)i?b?\s*$/i.exec(text);
    return match ? Number(match[1]) * 1024 ** " kmgt".indexOf(match[2].toLowerCase() || " ") : otherwise;
  };
  const chosen = (id) => (get(id).value === "" ? undefined : Number(get(id).value));
  const filter = {
    tag: chosen("tag"), stream: chosen("stream"),
    least: size(get("least").value, 0), most: size(get("most").value, Infinity),
  };
  const seconds = (id, otherwise) => (get(id).value.trim() === "" ? otherwise : Number(get(id).value) * state.unit);
  const range = [seconds("from", state.t0), seconds("to", state.t1)];
  if (range[0] < range[1]) Object.assign(state, { t0: Math.max(all.t0, range[0]), t1: Math.min(all.t1, range[1]) });
  if (state.t0 >= state.t1) Object.assign(state, { t0: all.t0, t1: all.t1 });
  get("progress").textContent = "…";
  start("select", (function* run() {
    yield* selection.update(get("key").value, filter);
    yield* pyramid.build();
    refresh();
    showHolders(pyramid.peakBetween(state.t0, state.t1).event, true);
    get("progress").textContent = `${counted(selection.shown, "block")} of ${count(model.blocks)}`;
    if (!page.isReady) {
      page.isReady = true;
      page.readyMs = performance.now() - begun;
      opened();
    }
    status();
  })());
}

function legend() {
  const more = [];
  if (model.hasRetired) more.push("grey: freed, still used");
  const line = (look, name, size) => {
    more.push(`${size > chart.top ? `above the chart: ${name}` : `${look} line: ${name}`} (up to ${bytes(size)})`);
  };
  if (chart.has[RESERVED]) line("dashed", "reserved", chart.reserved);
  if (chart.has[STRANDED]) line("dotted", "stranded", chart.stranded);
  if (state.budgets.length) more.push("▲ new high mark of a budget");
  const names = selection.groups.map(({ name }) => name);
  // Pictures of patterns take longer than the curves: most views have the same.
  const shown = JSON.stringify([names, more]);
  if (shown === page.legend) return;
  page.legend = shown;
  const items = [...names.map((name, group) => [swatch(group), name]), ...(more.length ? [[more.join(" · ")]] : [])];
  get("legend").replaceChildren(...items.map((parts) => {
    const item = document.createElement("span");
    item.append(...parts);
    return item;
  }));
  if (more.length) get("legend").lastElementChild.className = "more";
}

function showFailed() {
  const { refusals } = model.file;
  if (refusals.length === 0) return;
  const box = get("failed");
  box.hidden = false;
  const title = document.createElement("h2");
  title.textContent = `${counted(model.file.refusalCount, "request")} failed`;
  box.append(title);
  for (const refusal of refusals) {
    const name = model.names[refusal.tag] || "no tag";
    const text = document.createElement("p");
    const strong = document.createElement("strong");
    strong.textContent = `${bytes(refusal.bytes)} of ${name} for ${model.streams[refusal.stream]} at ${time(refusal.time)}: `;
    text.append(strong, refusal.sentence);
    const by = document.createElement("p");
    by.className = "more";
    by.textContent = `Refused by: ${refusal.by}. In use ${bytes(refusal.inUse)}`
      + `${refusal.reserved ? `, reserved ${bytes(refusal.reserved)}` : ""}.`;
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = `The largest of ${counted(refusal.holeCount, "hole")}, and why they could not serve it`;
    const table = document.createElement("table");
    table.id = `holes-${refusal.event}`;
    details.append(summary, table);
    box.append(text, by, details);
    const near = (block, edge) => (block === NONE
      ? `the ${edge} of reserved memory`
      : `${blockName(block)}, ${bytes(model.size[block])}`);
    fill(table.id, [{ number: "hole" }, "why not", "below it", "above it"], refusal.holes.map((hole) => [
      { number: bytes(hole.bytes) }, hole.reason, near(hole.before, "start"), near(hole.after, "end"),
    ]), (at) => {
      const hole = refusal.holes[at];
      setPlaces(hole.position - hole.bytes * 2, hole.position + hole.bytes * 3);
      get("map").scrollIntoView({ block: "center" });
    });
    const go = document.createElement("button");
    go.type = "button";
    go.textContent = "Who held memory then";
    go.addEventListener("click", () => {
      showHolders(refusal.event, false);
      get("memory").scrollIntoView();
    });
    box.append(go);
    state.failed.push(refusal);
  }
}

/** Shows the budgets: those with the highest marks in the chart, or the one that is chosen. */
function showBudgets() {
  const all = new Map();
  for (const peak of model.file.budgetPeaks) {
    const name = model.names[peak.budget] || "a budget without a name";
    const budget = all.get(peak.budget) ?? { name, id: peak.budget, highest: peak, marks: [] };
    budget.marks.push(peak);
    if (peak.bytes >= budget.highest.bytes) budget.highest = peak;
    budget.limit = peak.limit;
    all.set(peak.budget, budget);
  }
  if (all.size === 0) return;
  const rows = [...all.values()].sort((a, b) => b.highest.bytes - a.highest.bytes);
  state.budgets = rows.slice(0, 3);
  page.shown.budgets = rows;
  get("budgets-box").hidden = false;
  const cells = rows.slice(0, 200).map(({ name, highest, limit }) => [
    name, { number: bytes(highest.bytes) }, { number: bytes(limit) },
    { number: `${(highest.bytes * 100 / Math.max(1, limit)).toFixed(0)} %` }, time(model.clock[highest.event]),
  ]);
  fill("budgets", ["budget", { number: "high mark" }, { number: "limit" }, { number: "of it" }, "at"], cells, (at) => {
    state.budgets = [rows[at]];
    showHolders(rows[at].highest.event, false);
    refresh();
  });
  if (model.budget) {
    const option = get("key").querySelector("[value=budget]");
    option.hidden = false;
    option.disabled = false;
  }
}

function showPairs(rows) {
  page.shown.pairs = rows;
  lanes.choose(rows);
  const hasLengths = model.lengths.ns.length > 0;
  const cells = rows.slice(0, 100).map((pair) => [
    model.streams[pair.waiting], model.streams[pair.awaited], { number: count(pair.count) }, pairTags(model, pair),
    ...(hasLengths ? [pairLengths(pair)] : []),
  ]);
  if (rows.length === 0) {
    get("pairs").textContent = "This file has no waits.";
    return;
  }
  const titles = ["stream", "waits for", { number: "times" }, "because of", ...(hasLengths ? ["measured"] : [])];
  fill("pairs", titles, cells, (at) => {
    const pair = rows[at];
    // A second click shows all pairs again.
    lanes.pair = lanes.pair === pair ? null : pair;
    refresh();
    showWaits(pair);
  });
  showWaits(rows[0]);
}

/** Shows the blocks that make a stream wait for another one. */
function showWaits(pair) {
  start("waits", waitsOf(model, pair, (waits, blocks) => {
    get("waits-title").textContent = `${model.streams[pair.waiting]} waits for ${model.streams[pair.awaited]} `
      + `because of ${counted(blocks, "block")}`;
    const lines = waits.map((wait) => (wait.block === NONE
      ? ["no block", "", { number: count(wait.count) }, time(model.clock[wait.event]), model.names[wait.reason]]
      : [blockName(wait.block), bytes(model.size[wait.block]), { number: count(wait.count) },
        time(model.clock[wait.event]), model.names[wait.reason]]));
    fill("waits", ["block", "size", { number: "times" }, "first", "reason"], lines, (row) => {
      get("wait").textContent = waitText(model, waits[row].wait);
      if (waits[row].block !== NONE) select(waits[row].block, true);
    });
    page.shown.waits = waits;
  }));
}

function status() {
  const rendering = `${drawing.name} · ${count(rects.count)} of at most ${count(MOST)} rectangles`;
  const speed = `script of a frame: last ${frames.last.toFixed(1)} ms, longest ${frames.max.toFixed(1)} ms`;
  get("status").textContent = `${rendering} · ${speed} · ready after ${((page.readyMs ?? 0) / 1000).toFixed(2)} s`;
}

/** Zooming and moving, by wheel, pointer and keyboard. */
function connect(id, hasPlaces) {
  const element = get(id);
  const zoom = (factor, at) => {
    const centre = state.t0 + (state.t1 - state.t0) * at;
    setRange(centre - (centre - state.t0) * factor, centre + (state.t1 - centre) * factor);
  };
  const zoomPlaces = (factor, at) => {
    const centre = state.p0 + (state.p1 - state.p0) * at;
    setPlaces(centre - (centre - state.p0) * factor, centre + (state.p1 - centre) * factor);
  };
  element.addEventListener("wheel", (event) => {
    if (document.activeElement !== element && !event.ctrlKey) return;
    event.preventDefault();
    const box = element.getBoundingClientRect();
    const factor = 1.0015 ** (event.deltaY || event.deltaX);
    if (hasPlaces && event.shiftKey) zoomPlaces(factor, 1 - (event.clientY - box.top) / box.height);
    else zoom(factor, (event.clientX - box.left) / box.width);
  }, { passive: false });
  const showAll = () => {
    Object.assign(state, all);
    refresh();
    showHolders(pyramid.peakBetween(state.t0, state.t1).event, true);
  };
  element.addEventListener("keydown", (event) => {
    const wide = state.t1 - state.t0;
    const tall = state.p1 - state.p0;
    const actions = {
      "+": () => zoom(0.7, 0.5), "=": () => zoom(0.7, 0.5), "-": () => zoom(1 / 0.7, 0.5),
      ArrowLeft: () => setRange(state.t0 - wide * 0.2, state.t1 - wide * 0.2),
      ArrowRight: () => setRange(state.t0 + wide * 0.2, state.t1 + wide * 0.2),
      ArrowUp: () => hasPlaces && setPlaces(state.p0 + tall * 0.2, state.p1 + tall * 0.2),
      ArrowDown: () => hasPlaces && setPlaces(state.p0 - tall * 0.2, state.p1 - tall * 0.2),
      "[": () => zoomPlaces(1 / 0.7, 0.5), "]": () => zoomPlaces(0.7, 0.5),
      0: showAll,
      Home: showAll,
      p: () => {
        const { event: peak, time: at } = page.shown.peak;
        setRange(at - wide / 8, at + wide / 8);
        showHolders(peak, true);
      },
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  });
}

function tip(text, event) {
  const box = get("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}

function connectMap() {
  const map = get("map");
  let drag = null;
  map.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, ...state, moved: false };
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", (event) => {
    const view = heapView();
    if (drag) {
      const x = (event.clientX - drag.x) / view.width * (drag.t1 - drag.t0);
      const y = (event.clientY - drag.y) / view.height * (drag.p1 - drag.p0);
      drag.moved ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 3;
      if (!drag.moved) return;
      setRange(drag.t0 - x, drag.t1 - x);
      setPlaces(drag.p0 + y, drag.p1 + y);
      return;
    }
    const block = rects.view ? blockAt(rects, view, event.offsetX, event.offsetY) : -1;
    tip(block >= 0 ? describe(block) : block === -2 ? "many small blocks: zoom in" : "", event);
  });
  map.addEventListener("pointerup", (event) => {
    const wasMoved = drag?.moved;
    drag = null;
    if (wasMoved || !rects.view) return;
    const block = blockAt(rects, heapView(), event.offsetX, event.offsetY);
    if (block >= 0) select(block, false);
  });
  map.addEventListener("pointerleave", () => tip("", null));
}

function connectLanes() {
  const element = get("lanes");
  const at = ({ offsetX, offsetY }) => lanes.barAt(offsetX, offsetY) ?? lanes.arrowAt(offsetX, offsetY);
  element.addEventListener("pointermove", (event) => {
    const arrow = at(event);
    if (arrow !== lanes.marked) {
      lanes.marked = arrow;
      repaint("lanes");
    }
    tip(arrow ? lanes.describe(arrow) : "", event);
  });
  element.addEventListener("pointerleave", () => tip("", null));
  element.addEventListener("click", (event) => {
    const arrow = at(event);
    get("wait").textContent = arrow ? lanes.describe(arrow) : "";
    let block = NONE;
    if (arrow?.length !== undefined) block = model.lengths.block[arrow.length];
    else if (arrow?.wait !== undefined) block = model.waits.block[arrow.wait];
    if (block !== NONE) select(block, false);
  });
}

function options(id, names) {
  const any = new Option("all", "");
  get(id).replaceChildren(any, ...names.map(([value, name]) => new Option(name, value)));
}

async function run() {
  model = await load();
  const { file } = model;
  model.hasRetired = model.kind.includes(2);
  const last = model.events ? model.time[model.events - 1] : 1;
  model.clock = model.time;
  all = { t0: 0, t1: Math.max(1, last), p0: 0, p1: Math.max(512, file.mapBytes) };
  Object.assign(state, all);
  if (model.events === 0) get("summary").textContent = counted(file.findings.length, "finding");
  else get("summary").textContent = `${file.format} · ${counted(model.events, "event")} in ${time(last)} · `
    + `${counted(model.blocks, "block")} · ${counted(model.streams.length, "stream")}`
    + `${file.flaws.length ? ` · ${file.flaws.join("; ")}` : ""}`;
  if (file.findings.length) {
    get("findings").hidden = false;
    showFindings(get("found"), file.findings);
  }
  if (model.events === 0) {
    for (const id of ["memory", "heap", "streams", "filters"]) get(id).hidden = true;
    page.isReady = true;
    return;
  }
  selection = new Selection(model);
  pyramid = new Pyramid(selection);
  index = new HeapIndex(model);
  chart = new Chart(get("chart"), state, (at, reach) => {
    const { event: peak, time: peakAt } = page.shown.peak;
    // The peak may have lasted for less than a pixel.
    if (Math.abs(at - peakAt) <= reach) showHolders(peak, true);
    else showHolders(Math.max(0, eventAt(model, at + 1) - 1), false);
  }, setRange);
  chart.has = { [RESERVED]: model.spans.bytes.length > 0, [STRANDED]: model.occupied !== null };
  lanes = new Lanes(get("lanes"), get("arrows"), model, state);
  drawing = renderer(get("rects"));
  painter("chart", () => {
    if (!curve) return;
    chart.show(curve, selection.groups.length, page.shown.peak);
    legend();
  });
  painter("heap", drawHeap);
  painter("lanes", () => lanes.draw());
  showFailed();
  showBudgets();
  const tags = new Set(file.tags);
  options("tag", [...tags].map((tag) => [tag, model.names[tag] || "no tag"]));
  options("stream", model.streams.map((name, at) => [at, name]));
  connect("chart", false);
  connect("map", true);
  connect("lanes", false);
  connectMap();
  connectLanes();
  get("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  get("filters").addEventListener("reset", () => {
    setTimeout(() => setAxis(get("axis").value));
  });
  get("key").addEventListener("change", apply);
  get("axis").addEventListener("change", () => setAxis(get("axis").value));
  get("look").addEventListener("change", refresh);
  new ResizeObserver(() => page.isReady && refresh()).observe(get("map"));
  setInterval(status, 1000);
  start("index", (function* prepare() {
    yield* index.build();
    yield* pairs(model, showPairs);
    apply();
  })());
}

/** What tests of the page look at. */
window.dmrReport = {
  get isReady() { return page.isReady && !isBusy(); },
  get model() { return model; },
  get state() { return state; },
  get shown() { return page.shown; },
  get readyMs() { return page.readyMs; },
  get arrows() { return lanes.arrows.map((arrow) => ({ x: lanes.x(arrow.at), y: (lanes.y(arrow.from) + lanes.y(arrow.to)) / 2 })); },
  get drawn() { return chart.drawn; },
  ticks: (from, to, pixels) => timeTicks(from, to, pixels, state.format), sizeTicks,
  get bars() { return lanes.bars.map((bar) => ({ ...bar, box: lanes.box(bar) })); },
  frames, resetFrames, setRange, setPlaces,
  get series() { return { reserved: page.shown.curve?.columns[RESERVED], stranded: page.shown.curve?.columns[STRANDED] }; },
  holdersAt: (event) => showHolders(event, false),
  get renderer() { return drawing?.name; },
};

run().catch((error) => {
  get("summary").textContent = `This page cannot be shown: ${error.message ?? error}`;
  window.dmrReport.error = String(error.stack ?? error);
});
