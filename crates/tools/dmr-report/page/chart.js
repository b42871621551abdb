// The chart of memory over time, by uPlot.
/* global uPlot */
import { RESERVED, RETIRED, STRANDED } from "./curves.js";
import { bytes } from "./format.js";
import { css, GROUPS, pattern } from "./palette.js";
import { sizeTicks, timeTicks } from "./ticks.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** What is drawn as a line. */
const LINES = [{ of: RESERVED, dash: [6, 4] }, { of: STRANDED, dash: [2, 3] }];

/** The pixels by which a click may miss the line of the peak. */
const REACH = 4;

/** A chart of stacked groups, with what is retired on top, and lines for what is reserved and stranded. */
export class Chart {
  constructor(element, state, onMoment, onRange) {
    this.element = element;
    this.state = state;
    this.onMoment = onMoment;
    this.onRange = onRange;
    /** Whether the file has a column. */
    this.has = {};
    this.plot = null;
  }

  /** Shows samples. `groups` is the number of groups that have a curve. */
  show(samples, groups, peak) {
    this.peak = peak;
    const columns = samples.columns;
    const order = [];
    for (let group = 0; group < groups; group += 1) order.push(group);
    order.push(RETIRED);
    const stacked = [];
    let below = new Float64Array(samples.time.length);
    for (const at of order) {
      const column = columns[at];
      const sum = new Float64Array(below.length);
      for (let i = 0; i < sum.length; i += 1) sum[i] = below[i] + column[i];
      stacked.unshift(sum);
      below = sum;
    }
    const most = (values) => {
      let found = 1;
      for (let i = 0; i < values.length; i += 1) if (values[i] > found) found = values[i];
      return found;
    };
    const lines = LINES.filter(({ of }) => this.has[of]);
    // Each line is drawn twice: a light one below it shows it on dark colours.
    const data = [samples.time, ...stacked, ...lines.flatMap(({ of }) => [columns[of], columns[of]])];
    this.reserved = this.has[RESERVED] ? most(columns[RESERVED]) : 0;
    this.stranded = this.has[STRANDED] ? most(columns[STRANDED]) : 0;
    // A limit is shown where it is not far above the curves, the same for what is reserved.
    this.top = most(stacked[0]);
    this.top = Math.max(this.top, ...[this.reserved, this.stranded].filter((size) => size <= 4 * this.top));
    const limits = this.state.budgets.map(({ limit }) => limit).filter((limit) => limit <= 2 * this.top);
    this.top = Math.max(this.top, ...limits);
    const shape = `${groups} ${this.element.clientWidth}`;
    if (this.shape !== shape) {
      this.plot?.destroy();
      this.plot = new uPlot(this.#options(order, lines), data, this.element);
      this.shape = shape;
      this.#now(() => {});
    } else {
      this.#now((plot) => plot.setData(data));
    }
  }

  /** Draws again, such as in other colours. */
  redraw() {
    this.#now((plot) => plot.redraw());
  }

  /** Changes the plot and draws it here, in the slice of the frame, and not after it. */
  #now(change) {
    this.plot?.batch(change);
  }

  #options(order, lines) {
    const stepped = uPlot.paths.stepped({ align: 1 });
    const series = [{}];
    for (const at of [...order].reverse()) {
      const group = at === RETIRED ? -1 : at;
      series.push({
        stroke: group < 0 ? "#555" : css(group),
        width: 1,
        fill: (u) => (group < 0 ? "rgb(120 120 120 / 0.55)" : pattern(u.ctx, Math.min(group, GROUPS))),
        paths: stepped,
        points: { show: false },
      });
    }
    for (const { dash } of lines) {
      const line = { paths: stepped, points: { show: false } };
      series.push({ ...line, stroke: () => style("--panel"), width: 3 });
      series.push({ ...line, stroke: () => style("--front"), width: 1.5, dash });
    }
    const axis = { stroke: () => style("--soft"), grid: { stroke: () => style("--line"), width: 0.5 }, ticks: { show: false } };
    return {
      width: this.element.clientWidth - 2,
      height: this.element.clientHeight - 2,
      series,
      scales: {
        x: { time: false, range: () => [this.state.t0, this.state.t1] },
        y: { range: () => [0, this.top * 1.06] },
      },
      axes: [
        {
          ...axis, size: 30,
          splits: (u, at, from, to) => this.#ticks(u, from, to).map((tick) => tick.at),
          values: (u) => this.#ticks(u, u.scales.x.min, u.scales.x.max).map((tick) => tick.text),
        },
        {
          ...axis, size: 76,
          splits: (u, at, from, to) => sizeTicks(from, to, 5).map((tick) => tick.at),
          values: (u) => sizeTicks(u.scales.y.min, u.scales.y.max, 5).map((tick) => tick.text),
        },
      ],
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
      hooks: {
        draw: [(u) => this.#marks(u)],
        setSelect: [(u) => this.#selected(u)],
        ready: [(u) => u.over.addEventListener("click", () => this.#clicked(u))],
      },
    };
  }

  #ticks(u, from, to) {
    return timeTicks(from, to, u.bbox.width / devicePixelRatio, this.state.format);
  }

  #selected(u) {
    if (u.select.width < 4) return;
    const begin = u.posToVal(u.select.left, "x");
    const end = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.wasDragged = true;
    this.onRange(begin, end);
  }

  #clicked(u) {
    const was = this.wasDragged;
    this.wasDragged = false;
    const at = u.posToVal(u.cursor.left, "x");
    if (!was) this.onMoment(at, u.posToVal(u.cursor.left + REACH, "x") - at);
  }

  /** Marks the peak, the moment that the tables are about, and the requests that failed. */
  #marks(u) {
    const { ctx, bbox } = u;
    this.#budgets(u);
    const line = (at, text, color, dash, row) => {
      if (at < this.state.t0 || at > this.state.t1) return;
      const x = u.valToPos(at, "x", true);
      ctx.save();
      ctx.strokeStyle = color;
      ctx.fillStyle = color;
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
      const width = ctx.measureText(text).width;
      const isLeft = x + width + 10 > bbox.left + bbox.width;
      ctx.textAlign = isLeft ? "right" : "left";
      const left = x + (isLeft ? -5 : 5) * devicePixelRatio;
      const top = bbox.top + (12 + row * 15) * devicePixelRatio;
      this.#text(ctx, text, left, top);
      ctx.restore();
    };
    if (this.peak) line(this.peak.time, `peak ${bytes(this.peak.bytes)}`, style("--alarm"), [], 0);
    const { moment } = this.state;
    if (moment !== undefined && moment !== this.peak?.time) {
      line(moment, this.state.momentText, style("--accent"), [4, 3], 1);
    }
    for (const failed of this.state.failed.slice(0, 20)) {
      line(this.state.times()[failed.event], `${bytes(failed.bytes)} refused`, style("--alarm"), [2, 3], 2);
    }
  }

  /** Draws the limit of each budget as a line, and each of its new high marks. */
  #budgets(u) {
    const { ctx, bbox } = u;
    const scale = devicePixelRatio;
    this.drawn = { limits: 0, marks: 0 };
    ctx.save();
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    ctx.fillStyle = style("--front");
    ctx.strokeStyle = style("--front");
    for (const { name, limit, marks } of this.state.budgets) {
      const y = u.valToPos(limit, "y", true);
      if (limit <= this.top) {
        this.drawn.limits += 1;
        ctx.lineWidth = 1.2 * scale;
        ctx.setLineDash([9 * scale, 3 * scale, 2 * scale, 3 * scale]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.setLineDash([]);
        const text = `limit of ${name}: ${bytes(limit)}`;
        this.#text(ctx, text, bbox.left + 6 * scale, y - scale);
      }
      for (const mark of marks) {
        const at = this.state.times()[mark.event];
        if (at < this.state.t0 || at > this.state.t1) continue;
        this.drawn.marks += 1;
        const x = u.valToPos(at, "x", true);
        const top = u.valToPos(mark.bytes, "y", true);
        ctx.lineWidth = 2 * scale;
        ctx.beginPath();
        ctx.moveTo(x, top);
        ctx.lineTo(x - 4 * scale, top + 7 * scale);
        ctx.lineTo(x + 4 * scale, top + 7 * scale);
        ctx.closePath();
        ctx.strokeStyle = style("--panel");
        ctx.stroke();
        ctx.strokeStyle = style("--front");
        ctx.fill();
      }
    }
    ctx.restore();
  }

  /** Writes a text that is readable on every colour. */
  #text(ctx, text, x, y) {
    ctx.save();
    ctx.lineWidth = 4 * devicePixelRatio;
    ctx.setLineDash([]);
    ctx.strokeStyle = style("--panel");
    ctx.strokeText(text, x, y);
    ctx.fillText(text, x, y);
    ctx.restore();
  }
}
