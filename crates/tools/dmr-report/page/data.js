// Decodes the columns that are embedded in the page.

const TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

function text(id) {
  return document.getElementById(id)?.textContent ?? "";
}

/** Returns the small part of the data: names, streams, failed requests, descriptions of columns. */
export function meta() {
  return JSON.parse(text("dmr-meta"));
}

function fromBase64(encoded) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(encoded);
  const binary = atob(encoded);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) out[i] = binary.charCodeAt(i);
  return out;
}

async function inflate(packed, size) {
  const out = new Uint8Array(size);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  let at = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    out.set(value, at);
    at += value.length;
  }
  return out;
}

/** Decodes a column: its values are `min + scale * raw`, summed up if it has differences. */
export async function column(description, Kind = Float64Array) {
  const { name, type, length, min, scale, differences } = description;
  const element = document.getElementById(`dmr-${name}`);
  const packed = fromBase64(element.textContent);
  // The text is as large as the column, and is not needed again.
  element.remove();
  const Raw = TYPES[type];
  const bytes = await inflate(packed, length * Raw.BYTES_PER_ELEMENT);
  const raw = new Raw(bytes.buffer);
  if (Raw === Kind && min === 0 && scale === 1 && !differences) return raw;
  const out = new Kind(length);
  let sum = 0;
  for (let i = 0; i < length; i += 1) {
    const value = min + scale * raw[i];
    sum = differences ? sum + value : value;
    out[i] = sum;
  }
  return out;
}
