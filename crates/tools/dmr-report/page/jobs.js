// Work in slices: no frame runs script for longer than its budget, however large the file is.

/** The milliseconds that jobs may use of a frame: 8 are meant to be all of its script. */
const JOBS_MS = 4;
/** The same while the page opens, when there is nothing to look at. */
const OPENING_MS = 40;

const jobs = new Map();
const painters = new Map();
const dirty = new Set();
let requested = false;
let budget = OPENING_MS;
let isShown = false;

/** What frames have cost so far, and what the longest one did. */
export const frames = { count: 0, last: 0, max: 0, over: 0, longest: "", times: [] };

/** Forgets what frames have cost. */
export function resetFrames() {
  Object.assign(frames, { count: 0, last: 0, max: 0, over: 0, longest: "", times: [] });
}

/** Ends the opening, once all views have been drawn: from then on a frame stays short. */
export function opened() {
  isShown = true;
}

/** Runs a generator in slices, instead of the one that had this name. */
export function start(name, generator) {
  jobs.set(name, generator);
  request();
}

/** Returns whether work is waiting for a frame. */
export function isBusy() {
  return jobs.size > 0 || dirty.size > 0;
}

/** Sets what draws a view. */
export function painter(name, paint) {
  painters.set(name, paint);
}

/** Draws a view in the next frame. */
export function repaint(name) {
  dirty.add(name);
  request();
}

function request() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(frame);
}

function frame() {
  requested = false;
  const begin = performance.now();
  const steps = [];
  const timed = (name, step) => {
    const from = performance.now();
    const result = step();
    steps.push([name, performance.now() - from]);
    return result;
  };
  // A view that does not fit into this frame is drawn in the next one.
  for (const name of dirty) {
    dirty.delete(name);
    timed(`draw ${name}`, () => painters.get(name)?.());
    if (performance.now() - begin > budget) break;
  }
  while (jobs.size > 0 && performance.now() - begin < budget) {
    for (const [name, job] of jobs) {
      const isDone = timed(name, () => job.next().done);
      if (isDone && jobs.get(name) === job) jobs.delete(name);
      if (performance.now() - begin >= budget) break;
    }
  }
  frames.last = performance.now() - begin;
  frames.count += 1;
  if (frames.times.length < 10_000) frames.times.push(frames.last);
  if (frames.last > 8) frames.over += 1;
  if (frames.last > frames.max) {
    frames.max = frames.last;
    frames.longest = steps.reduce((a, b) => (b[1] > a[1] ? b : a), ["", 0]).join(" ");
  }
  if (isBusy()) {
    request();
  } else if (isShown && budget === OPENING_MS) {
    budget = JOBS_MS;
    resetFrames();
  }
}
