// The findings of the simulated driver: two marks on two streams' lines, and the wait that is missing.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function stream(side) {
  return side.stream === null ? "no stream" : `stream ${side.stream}`;
}

/** Draws one finding. */
function draw(finding) {
  const { sides } = finding;
  const names = [...new Set(sides.map(stream))];
  const rows = sides.map((side) => {
    const lines = [`${side.operation}, operation ${side.number} of ${stream(side)}`];
    if (side.calls.length) lines.push(`at ${side.calls[0]}`);
    if (side.place) lines.push(`in the kernel: ${side.place}`);
    return lines;
  });
  const tall = 90;
  const top = 76;
  const height = top + (names.length - 1) * tall + 76;
  const picture = svg("svg", { viewBox: `0 0 1000 ${height}`, role: "img", "aria-label": finding.message });
  const defs = svg("defs", {});
  const marker = svg("marker", {
    id: "missing", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
  });
  marker.append(svg("path", { d: "M0 0 L10 5 L0 10 z", fill: "var(--alarm)" }));
  defs.append(marker);
  picture.append(defs);
  names.forEach((name, lane) => {
    const y = lane * tall + top;
    picture.append(svg("line", { x1: 110, x2: 990, y1: y, y2: y, stroke: "var(--soft)" }));
    picture.append(svg("text", { x: 100, y: y + 5, "text-anchor": "end", fill: "var(--front)", "font-size": 15 }, name));
  });
  const places = sides.map((side, at) => ({ x: at === 0 ? 180 : 480, y: names.indexOf(stream(side)) * tall + top }));
  if (finding.race && places.length === 2) {
    const [a, b] = places;
    const isSame = a.y === b.y;
    const end = isSame ? { x: b.x - 12, y: b.y } : { x: b.x - 8, y: b.y + (b.y > a.y ? -10 : 10) };
    const path = isSame
      ? `M ${a.x + 10} ${a.y} Q ${(a.x + b.x) / 2} ${a.y - 24} ${end.x} ${end.y}`
      : `M ${a.x + 8} ${a.y + (b.y > a.y ? 8 : -8)} L ${end.x} ${end.y}`;
    picture.append(svg("path", {
      d: path, class: "missing", fill: "none", stroke: "var(--alarm)", "stroke-width": 2.5,
      "stroke-dasharray": "7 5", "marker-end": "url(#missing)",
    }));
    const x = (a.x + b.x) / 2 + 40;
    const y = isSame ? a.y - 8 : (a.y + b.y) / 2 - 2;
    picture.append(svg("text", { x, y, fill: "var(--alarm)", "font-size": 15, "font-weight": 600 },
      `missing: ${stream(sides[1])} does not wait for this`));
  }
  sides.forEach((side, at) => {
    const { x, y } = places[at];
    const shape = at === 0
      ? svg("circle", { cx: x, cy: y, r: 8, fill: "#0072b2", stroke: "var(--back)", "stroke-width": 2 })
      : svg("rect", { x: x - 8, y: y - 8, width: 16, height: 16, fill: "#d55e00", stroke: "var(--back)", "stroke-width": 2 });
    picture.append(shape);
    // Beside the line that is missing, not on it.
    const lines = rows[at];
    const isBelow = names.length === 1 ? at === 1 : y > top;
    lines.forEach((line, row) => {
      picture.append(svg("text", {
        x: x - 8, y: isBelow ? y + 28 + row * 17 : y - 16 - (lines.length - 1 - row) * 17, fill: row ? "var(--soft)" : "var(--front)",
        "font-size": 14, "font-family": row ? "ui-monospace, monospace" : "inherit",
      }, line));
    });
  });
  return picture;
}

/** Shows findings, at most 200 of them. */
export function show(element, findings) {
  for (const finding of findings.slice(0, 200)) {
    const box = document.createElement("div");
    box.className = "finding";
    const text = document.createElement("p");
    const strong = document.createElement("strong");
    strong.textContent = finding.message;
    text.append(strong, finding.address ? ` — ${finding.bytes} bytes at 0x${finding.address.toString(16)}` : "",
      finding.tag ? ` of ${finding.tag}` : "");
    box.append(text, draw(finding));
    const deeper = finding.sides.filter((side) => side.calls.length > 1);
    for (const side of deeper) {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.textContent = `how ${side.operation} was called`;
      const list = document.createElement("pre");
      list.textContent = side.calls.join("\n");
      details.append(summary, list);
      box.append(details);
    }
    element.append(box);
  }
}
