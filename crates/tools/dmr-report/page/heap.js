// The heap map: address by time. Builds the rectangles of a view, and finds the block at a place.
import { NONE } from "./model.js";
import { GROUPS } from "./palette.js";
import { between, Rects } from "./rects.js";

/** The blocks that a look at the index can leave out at once. */
const CHUNK = 2048;
/** The most rectangles that are one block each; the rest stands for many. */
const SINGLE = 10_000;
/** The cells that blocks too small to be seen are summed up in. */
const COLUMNS = 150;
const ROWS = 64;

/** For each chunk of blocks the range of its events and places. */
export class HeapIndex {
  constructor(model) {
    this.model = model;
    const chunks = Math.ceil(model.blocks / CHUNK);
    this.chunks = chunks;
    this.begin = new Float64Array(chunks).fill(Infinity);
    this.end = new Float64Array(chunks).fill(-Infinity);
    this.low = new Float64Array(chunks).fill(Infinity);
    this.high = new Float64Array(chunks).fill(-Infinity);
    /** What the next view is built in: a new one for each would be half a megabyte of garbage. */
    this.spare = new Rects();
    this.cells = new Cells();
  }

  *build() {
    const { model } = this;
    const last = model.events ? model.time[model.events - 1] : 0;
    for (let block = 0; block < model.blocks; block += 1) {
      const at = Math.floor(block / CHUNK);
      const begin = model.allocated[block] === NONE ? 0 : model.time[model.allocated[block]];
      const end = model.ready[block] === NONE ? last : model.time[model.ready[block]];
      this.begin[at] = Math.min(this.begin[at], begin);
      this.end[at] = Math.max(this.end[at], end);
      this.low[at] = Math.min(this.low[at], model.position[block]);
      this.high[at] = Math.max(this.high[at], model.position[block] + model.size[block]);
      if (block % 8192 === 8191) yield;
    }
  }

  /** Calls `see` with the place of each block that a view shows, in pixels. */
  *visible(selection, view, see) {
    const { model } = this;
    const { allocated, ready, time, position, size } = model;
    const last = model.events ? time[model.events - 1] : 0;
    const perTime = view.width / (view.t1 - view.t0);
    const perByte = view.height / (view.p1 - view.p0);
    for (let chunk = 0; chunk < this.chunks; chunk += 1) {
      const isApart = this.begin[chunk] > view.t1 || this.end[chunk] < view.t0
        || this.low[chunk] > view.p1 || this.high[chunk] < view.p0;
      if (isApart) continue;
      const end = Math.min(model.blocks, (chunk + 1) * CHUNK);
      for (let block = chunk * CHUNK; block < end; block += 1) {
        const group = selection.group[block];
        if (group === 0) continue;
        const begins = allocated[block] === NONE ? 0 : time[allocated[block]];
        const ends = ready[block] === NONE ? last : time[ready[block]];
        const low = position[block];
        const high = low + size[block];
        if (begins > view.t1 || ends < view.t0 || low > view.p1 || high < view.p0) continue;
        see(
          block, group - 1,
          Math.max(0, (begins - view.t0) * perTime),
          Math.max(0, (view.p1 - high) * perByte),
          Math.min(view.width, (ends - view.t0) * perTime),
          Math.min(view.height, (view.p1 - low) * perByte),
        );
      }
      yield;
    }
  }

  /**
   * Builds the rectangles of a view: large blocks one by one, the others summed up in cells. `found` returns what the
   * next ones can be built in.
   */
  *rects(selection, view, look, found) {
    // First the sizes, so that the largest are drawn.
    const sizes = new Uint32Array(64);
    const classOf = (area) => Math.max(0, Math.min(63, Math.floor(Math.log2(area) * 2) + 20));
    yield* this.visible(selection, view, (block, group, x0, y0, x1, y1) => {
      sizes[classOf((x1 - x0) * (y1 - y0) + 1e-9)] += 1;
    });
    let least = 64;
    for (let sum = 0; least > 0 && sum + sizes[least - 1] <= SINGLE; least -= 1) sum += sizes[least - 1];
    const { spare: rects, cells } = this;
    rects.begin(view);
    cells.begin(view);
    let shown = 0;
    let summed = 0;
    yield* this.visible(selection, view, (block, group, x0, y0, x1, y1) => {
      const style = look ? look(block) : group;
      if (classOf((x1 - x0) * (y1 - y0) + 1e-9) >= least) {
        rects.add(x0, y0, x1, y1, style, 1, block);
        shown += 1;
      } else {
        cells.add(x0, y0, x1, y1, style);
        summed += 1;
      }
    });
    if (summed > 0) cells.emit(rects);
    rects.shown = shown;
    rects.summed = summed;
    this.spare = found(rects);
  }
}

/** Sums up the area of small blocks: for each row the changes from one cell to the next. */
class Cells {
  changes = new Float32Array((GROUPS + 1) * ROWS * (COLUMNS + 2));

  begin(view) {
    this.width = view.width / COLUMNS;
    this.height = view.height / ROWS;
    this.changes.fill(0);
  }

  add(x0, y0, x1, y1, group) {
    const { width, height, changes } = this;
    const firstRow = Math.min(ROWS - 1, Math.floor(y0 / height));
    const lastRow = Math.min(ROWS - 1, Math.floor(Math.max(y0, y1 - 1e-9) / height));
    const first = Math.min(COLUMNS - 1, Math.floor(x0 / width));
    const last = Math.min(COLUMNS - 1, Math.floor(Math.max(x0, x1 - 1e-9) / width));
    for (let row = firstRow; row <= lastRow; row += 1) {
      const tall = (Math.min(y1, (row + 1) * height) - Math.max(y0, row * height)) / height;
      const at = (group * ROWS + row) * (COLUMNS + 2);
      if (first === last) {
        const part = tall * (x1 - x0) / width;
        changes[at + first] += part;
        changes[at + first + 1] -= part;
        continue;
      }
      const begin = ((first + 1) * width - x0) / width;
      const end = (x1 - last * width) / width;
      changes[at + first] += tall * begin;
      changes[at + first + 1] += tall * (1 - begin);
      changes[at + last] += tall * (end - 1);
      changes[at + last + 1] -= tall * end;
    }
  }

  emit(rects) {
    const { width, height, changes } = this;
    const sums = new Float32Array(GROUPS + 1);
    for (let row = 0; row < ROWS; row += 1) {
      sums.fill(0);
      for (let column = 0; column < COLUMNS; column += 1) {
        let most = 0;
        let all = 0;
        for (let group = 0; group <= GROUPS; group += 1) {
          sums[group] += changes[(group * ROWS + row) * (COLUMNS + 2) + column];
          all += Math.max(0, sums[group]);
          if (sums[group] > sums[most]) most = group;
        }
        if (all < 0.002) continue;
        const alpha = Math.max(0.08, Math.min(1, all ** 0.7));
        rects.add(column * width, row * height, (column + 1) * width, (row + 1) * height, most, alpha, -1);
      }
    }
  }
}

/** Returns the block that a view shows at a place, -1 for none, -2 for a cell of many. */
export function blockAt(rects, view, x, y) {
  const [scaleX, scaleY, left, top] = between(rects.view, view);
  let found = -1;
  for (let at = 0; at < rects.count; at += 1) {
    const x0 = rects.boxes[at * 4] * scaleX + left;
    const y0 = rects.boxes[at * 4 + 1] * scaleY + top;
    const x1 = Math.max(x0 + 1, rects.boxes[at * 4 + 2] * scaleX + left);
    const y1 = Math.max(y0 + 1, rects.boxes[at * 4 + 3] * scaleY + top);
    if (x < x0 || x > x1 || y < y0 || y > y1) continue;
    if (rects.blocks[at] >= 0) return rects.blocks[at];
    found = -2;
  }
  return found;
}
