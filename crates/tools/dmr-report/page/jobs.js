// Work in slices: no frame runs script for longer than its budget, however large the file is.

/** The milliseconds of script in a frame, and those that jobs may use of them. */
export const FRAME_MS = 8;
const JOBS_MS = 4;

const jobs = new Map();
const painters = new Map();
const dirty = new Set();
let requested = false;

/** What frames have cost so far. */
export const frames = { count: 0, last: 0, max: 0, total: 0 };

/** Forgets what frames have cost. */
export function resetFrames() {
  Object.assign(frames, { count: 0, last: 0, max: 0, total: 0 });
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
  // A view that does not fit into this frame is drawn in the next one.
  for (const name of dirty) {
    dirty.delete(name);
    painters.get(name)?.();
    if (performance.now() - begin > JOBS_MS) break;
  }
  let left = true;
  while (left && performance.now() - begin < JOBS_MS) {
    left = false;
    for (const [name, job] of jobs) {
      left = true;
      const isDone = job.next().done;
      if (isDone && jobs.get(name) === job) jobs.delete(name);
      if (performance.now() - begin >= JOBS_MS) break;
    }
  }
  frames.last = performance.now() - begin;
  frames.count += 1;
  frames.total += frames.last;
  frames.max = Math.max(frames.max, frames.last);
  if (isBusy()) request();
}
