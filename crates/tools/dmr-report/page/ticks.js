// Ticks: evenly spaced, at round numbers, and labels that do not repeat.
import { bytes } from "./format.js";

/** Returns the step from one round number to the next: 1, 2 or 5 times a power of ten, at most `most` in a range. */
function roundStep(range, most) {
  const least = range / most;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9));
}

/** Returns the ticks of a range of times, or of numbers of events, one for about 110 pixels: `{ at, text }`. */
export function timeTicks(from, to, pixels, format) {
  // Neither a nanosecond nor an event has parts.
  const step = Math.max(1, roundStep(to - from, Math.max(2, Math.floor(pixels / 110))));
  const ticks = multiples(from, to, step);
  return ticks.map((at) => ({ at, text: format(at, step, ticks.at(-1)) }));
}

/** Returns the ticks of a range of sizes: at most about `most`, at multiples of a power of two. */
export function sizeTicks(from, to, most) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((to - from) / most)));
  return multiples(from, to, step).map((at) => ({ at, text: bytes(at, step) }));
}

function multiples(from, to, step) {
  const ticks = [];
  for (let at = Math.ceil(from / step); at * step <= to; at += 1) ticks.push(at * step);
  return ticks;
}
