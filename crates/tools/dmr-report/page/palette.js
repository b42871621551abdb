// Colours that colour-blind people can tell apart, and a pattern for each.

/** The colours of groups; the last one is that of all groups that have none of their own. */
const LIGHT = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167],
  [86, 180, 233], [213, 94, 0], [190, 175, 20], [110, 80, 160], [150, 150, 150],
];

/** The number of groups that have a colour of their own. */
export const GROUPS = LIGHT.length - 1;

/** Returns a colour as three numbers. */
export function color(group) {
  return LIGHT[Math.min(group, GROUPS)];
}

/** Returns a colour for a style sheet. */
export function css(group, alpha = 1) {
  return `rgb(${color(group).join(" ")} / ${alpha})`;
}

/** Returns whether a pixel of a group's pattern is dark. The shader has the same patterns. */
function isDark(group, x, y) {
  switch (group % 9) {
    case 1: return (x + y) % 8 < 2;
    case 2: return (x + 8 - y) % 8 < 2;
    case 3: return x % 6 < 1 && y % 6 < 1;
    case 4: return y % 8 < 1;
    case 5: return x % 8 < 1;
    case 6: return (x + y) % 8 < 2 || (x + 8 - y) % 8 < 2;
    case 7: return x % 4 < 1 && y % 4 < 1;
    default: return false;
  }
}

const SIZE = 24;
const patterns = new Map();

function tile(group) {
  const canvas = document.createElement("canvas");
  canvas.width = SIZE;
  canvas.height = SIZE;
  const context = canvas.getContext("2d");
  context.fillStyle = css(group);
  context.fillRect(0, 0, SIZE, SIZE);
  context.fillStyle = "rgb(0 0 0 / 0.35)";
  for (let y = 0; y < SIZE; y += 1) {
    for (let x = 0; x < SIZE; x += 1) if (isDark(group, x, y)) context.fillRect(x, y, 1, 1);
  }
  return canvas;
}

/** Returns the pattern of a group for a canvas. */
export function pattern(context, group) {
  if (!patterns.has(group)) patterns.set(group, tile(group));
  return context.createPattern(patterns.get(group), "repeat");
}

/** Returns a small picture of a group's pattern, for a legend. */
export function swatch(group) {
  const image = document.createElement("canvas");
  image.className = "swatch";
  image.width = SIZE;
  image.height = SIZE;
  if (!patterns.has(group)) patterns.set(group, tile(group));
  image.getContext("2d").drawImage(patterns.get(group), 0, 0);
  image.setAttribute("aria-hidden", "true");
  return image;
}
