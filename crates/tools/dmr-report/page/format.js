// Numbers as text: sizes, times, counts.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Formats a size: `4 MiB`, `2.1 GiB`; exactly, if it is a multiple of `step`, a power of two. */
export function bytes(size, step = 0) {
  let unit = 0;
  let scaled = size;
  if (step > 0) {
    while (size !== 0 && scaled >= 1024 && step * 8 >= 1024 ** (unit + 1)) {
      scaled /= 1024;
      unit += 1;
    }
    // An eighth has three digits.
    return `${scaled.toLocaleString("en-US", { maximumFractionDigits: 3 })} ${UNITS[unit]}`;
  }
  while (Math.abs(scaled) >= 1023.95 && unit + 1 < UNITS.length) {
    scaled /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? String(Math.round(scaled)) : scaled.toFixed(1).replace(/\.0$/, "");
  return `${digits} ${UNITS[unit]}`;
}

/** Formats nanoseconds since the first event: with the digits that a step of `step` needs, in the unit of `most`. */
export function time(ns, step = 0, most = 0) {
  const size = Math.max(Math.abs(ns), step, most);
  let unit = ["ns", 1];
  if (size >= 1e9) unit = ["s", 1e9];
  else if (size >= 1e6) unit = ["ms", 1e6];
  else if (size >= 1e3) unit = ["µs", 1e3];
  if (ns === 0) return "0 s";
  const [name, scale] = unit;
  let digits = 3;
  if (step > 0) digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(step / scale))));
  else if (scale === 1) digits = 0;
  const text = (ns / scale).toFixed(digits);
  const isLong = step === 0 && text.includes(".");
  return `${isLong ? text.replace(/\.?0+$/, "") : text} ${name}`;
}

/** Formats a count: `21,039`. */
export function count(number) {
  return number.toLocaleString("en-US");
}

/** Formats a count and its noun: `1 block`, `2 blocks`. */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
