// Work in slices: no frame runs script for longer than its budget, however large the file is.

/** The milliseconds that slices may use of a frame: 8 are meant to be all of its script. */
const SLICES_MS = 5;
/** The same while the page opens, when there is nothing to look at. */
const OPENING_MS = 40;
/** The part of an expected cost that stays when a slice was cheaper. */
const DECAY = 0.8;

/** What is to be done: each entry runs one slice, and returns whether it is done. The first has waited longest. */
const queue = new Map();
const painters = new Map();
/** For each name the milliseconds that its next slice is expected to take. */
const costs = new Map();
let requested = false;
let budget = OPENING_MS;
let isShown = false;

/** What frames have cost so far, and what the longest one did. */
export const frames = { count: 0, last: 0, max: 0, over: 0, longest: "" };

/** Forgets what frames have cost. */
export function resetFrames() {
  Object.assign(frames, { count: 0, last: 0, max: 0, over: 0, longest: "" });
}

/** Ends the opening, once all views have been drawn: from then on a frame stays short. */
export function opened() {
  isShown = true;
}

/** Runs a generator in slices, instead of the one that had this name. */
export function start(name, generator) {
  queue.set(name, () => generator.next().done);
  request();
}

/** Returns whether work is waiting for a frame. */
export function isBusy() {
  return queue.size > 0;
}

/** Sets what draws a view. */
export function painter(name, paint) {
  painters.set(name, paint);
}

/** Draws a view in one of the next frames. */
export function repaint(name) {
  later(`draw ${name}`, () => painters.get(name)?.());
}

/** Does something in one of the next frames, instead of what had this name. */
export function later(name, act) {
  queue.set(name, () => {
    act();
    return true;
  });
  request();
}

function request() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(frame);
}

/** Runs slices, each that has waited longest, until the next one would exceed the budget. */
function frame() {
  requested = false;
  const begin = performance.now();
  let now = begin;
  let longest = 0;
  let name = "";
  while (queue.size > 0) {
    const [next, slice] = queue.entries().next().value;
    // What has not run so far may take all of a frame.
    const isFirst = now === begin;
    if (!isFirst && now - begin + (costs.get(next) ?? budget) > budget) break;
    const isDone = slice();
    const from = now;
    now = performance.now();
    const cost = Math.min(budget, now - from);
    costs.set(next, Math.max(cost, (costs.get(next) ?? 0) * DECAY));
    if (now - from > longest) {
      longest = now - from;
      name = next;
    }
    if (queue.get(next) !== slice) continue;
    queue.delete(next);
    if (!isDone) queue.set(next, slice);
  }
  frames.last = now - begin;
  frames.count += 1;
  if (frames.last > 8) frames.over += 1;
  if (frames.last > frames.max) {
    frames.max = frames.last;
    frames.longest = `${name} ${longest.toFixed(1)}`;
  }
  if (isBusy()) {
    request();
  } else if (isShown && budget === OPENING_MS) {
    budget = SLICES_MS;
    resetFrames();
  }
}
