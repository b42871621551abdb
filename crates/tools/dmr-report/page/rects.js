// Draws rectangles: by WebGL2, all in one call, or on a plain canvas where there is none.
import { color, GROUPS, pattern } from "./palette.js";

/** The most rectangles that are drawn at once. */
export const MOST = 20_000;

const VERTEX = `#version 300 es
uniform vec4 view; // scale and offset of x and y: from the place of building to pixels
uniform vec2 size;
in vec4 box;
in vec2 look; // group and alpha
out vec2 at;
flat out vec4 edges;
flat out vec2 style;
void main() {
  vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  vec2 low = box.xy * view.xy + view.zw;
  vec2 high = box.zw * view.xy + view.zw;
  vec2 least = max(high, low + 1.0); // nothing is thinner than a pixel
  at = mix(low, least, corner);
  edges = vec4(low, least);
  style = look;
  gl_Position = vec4(at.x / size.x * 2.0 - 1.0, 1.0 - at.y / size.y * 2.0, 0.0, 1.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform vec3 colors[${GROUPS + 1}];
in vec2 at;
flat in vec4 edges;
flat in vec2 style;
out vec4 result;
void main() {
  int group = int(style.x);
  ivec2 p = ivec2(gl_FragCoord.xy);
  int x = p.x;
  int y = p.y;
  bool dark = false;
  if (group == 1) dark = (x + y) % 8 < 2;
  else if (group == 2) dark = (x + 8000 - y) % 8 < 2;
  else if (group == 3) dark = x % 6 < 1 && y % 6 < 1;
  else if (group == 4) dark = y % 8 < 1;
  else if (group == 5) dark = x % 8 < 1;
  else if (group == 6) dark = (x + y) % 8 < 2 || (x + 8000 - y) % 8 < 2;
  else if (group == 7) dark = x % 4 < 1 && y % 4 < 1;
  vec3 c = colors[group];
  bool large = edges.w - edges.y >= 4.0 && edges.z - edges.x >= 4.0;
  if (dark && edges.w - edges.y >= 3.0) c *= 0.65;
  bool edge = at.x - edges.x < 1.0 || edges.z - at.x < 1.0 || at.y - edges.y < 1.0 || edges.w - at.y < 1.0;
  if (large && edge) c *= 0.55;
  result = vec4(c, 1.0) * style.y;
}`;

/** The rectangles of a view, in pixels of the view that they were built for. */
export class Rects {
  count = 0;
  boxes = new Float32Array(MOST * 4);
  looks = new Float32Array(MOST * 2);
  /** The block that a rectangle is; -1 for one that stands for many. */
  blocks = new Int32Array(MOST);
  view = null;
  /** The number of the view that they were built for: the arrays are used again. */
  built = 0;

  begin(view) {
    this.view = view;
    this.count = 0;
    this.built += 1;
  }

  add(x0, y0, x1, y1, group, alpha, block) {
    const at = this.count;
    if (at >= MOST) return;
    this.boxes[at * 4] = x0;
    this.boxes[at * 4 + 1] = y0;
    this.boxes[at * 4 + 2] = x1;
    this.boxes[at * 4 + 3] = y1;
    this.looks[at * 2] = group;
    this.looks[at * 2 + 1] = alpha;
    this.blocks[at] = block;
    this.count += 1;
  }
}

/** Returns the scale and the offset from the pixels of one view to those of another. */
export function between(from, to) {
  const x = (from.t1 - from.t0) / from.width / ((to.t1 - to.t0) / to.width);
  const y = (from.p1 - from.p0) / from.height / ((to.p1 - to.p0) / to.height);
  return [
    x, y,
    (from.t0 - to.t0) / (to.t1 - to.t0) * to.width,
    // Addresses grow upwards.
    (to.p1 - from.p1) / (to.p1 - to.p0) * to.height,
  ];
}

/**
 * Makes what draws on a canvas: by WebGL2 if the browser has it on a graphics card. In software it is slower than a
 * plain canvas. `?webgl` and `?canvas` choose.
 */
export function renderer(canvas) {
  const asked = new URLSearchParams(location.search);
  const isWanted = asked.has("webgl") || (!asked.has("canvas") && hasGraphicsCard());
  const gl = isWanted ? canvas.getContext("webgl2", { preserveDrawingBuffer: true, premultipliedAlpha: true }) : null;
  return gl ? new WithGl(canvas, gl) : new WithCanvas(canvas);
}

/** Returns whether the browser does not say that it draws WebGL in software. */
function hasGraphicsCard() {
  const gl = document.createElement("canvas").getContext("webgl2");
  if (!gl) return false;
  const names = gl.getExtension("WEBGL_debug_renderer_info");
  const name = names ? gl.getParameter(names.UNMASKED_RENDERER_WEBGL) : "";
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !/swiftshader|llvmpipe|software|basic render/i.test(name);
}

class WithGl {
  name = "WebGL2";

  constructor(canvas, gl) {
    this.canvas = canvas;
    this.gl = gl;
    this.uploaded = null;
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => this.#prepare());
    this.#prepare();
  }

  #prepare() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) {
      throw new Error(gl.getProgramInfoLog(program) ?? "the shaders do not link");
    }
    gl.useProgram(program);
    const attribute = (name, width) => {
      const buffer = gl.createBuffer();
      const at = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, width, gl.FLOAT, false, 0, 0);
      gl.vertexAttribDivisor(at, 1);
      return buffer;
    };
    this.boxes = attribute("box", 4);
    this.looks = attribute("look", 2);
    this.view = gl.getUniformLocation(program, "view");
    this.size = gl.getUniformLocation(program, "size");
    const colors = [];
    for (let group = 0; group <= GROUPS; group += 1) colors.push(...color(group).map((it) => it / 255));
    gl.uniform3fv(gl.getUniformLocation(program, "colors"), colors);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.uploaded = null;
  }

  draw(rects, view) {
    const { gl, canvas } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (rects.count === 0) return;
    if (this.uploaded !== rects || this.built !== rects.built) {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.boxes);
      gl.bufferData(gl.ARRAY_BUFFER, rects.boxes.subarray(0, rects.count * 4), gl.DYNAMIC_DRAW);
      gl.bindBuffer(gl.ARRAY_BUFFER, this.looks);
      gl.bufferData(gl.ARRAY_BUFFER, rects.looks.subarray(0, rects.count * 2), gl.DYNAMIC_DRAW);
      this.uploaded = rects;
      this.built = rects.built;
    }
    const [x, y, left, top] = between(rects.view, view);
    const scale = canvas.width / view.width;
    gl.uniform4f(this.view, x * scale, y * scale, left * scale, top * scale);
    gl.uniform2f(this.size, canvas.width, canvas.height);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, rects.count);
  }
}

class WithCanvas {
  name = "canvas";

  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.fills = Array.from({ length: GROUPS + 1 }, (_, group) => pattern(this.context, group));
  }

  draw(rects, view) {
    const { context, canvas } = this;
    const scale = canvas.width / view.width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, view.width, view.height);
    if (rects.count === 0) return;
    const [x, y, left, top] = between(rects.view, view);
    const { boxes, looks } = rects;
    for (let at = 0; at < rects.count; at += 1) {
      const x0 = boxes[at * 4] * x + left;
      const y0 = boxes[at * 4 + 1] * y + top;
      const width = Math.max(1, (boxes[at * 4 + 2] - boxes[at * 4]) * x);
      const height = Math.max(1, (boxes[at * 4 + 3] - boxes[at * 4 + 1]) * y);
      context.globalAlpha = looks[at * 2 + 1];
      context.fillStyle = this.fills[looks[at * 2]];
      context.fillRect(x0, y0, width, height);
    }
    context.globalAlpha = 1;
  }
}
