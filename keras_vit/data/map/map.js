// Pictures as points: moving, zooming, hovering and selecting.

const byId = (id) => document.getElementById(id);
const content = JSON.parse(byId("content").textContent);
const canvas = byId("map");
const context = canvas.getContext("2d");
const tip = byId("tip");
const RADIUS = 2.5;
const REACH = 12; // Pixels from the pointer to a point.

/** Returns the 16-bit numbers in a text. */
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
}

const places = unpack(content.places); // x and y, of 65536.
const classes = unpack(content.classes);
const count = classes.length;
const colours = content.labels.map((_, i) =>
  i === content.unlabelled
    ? "#808080"
    : // The golden angle keeps the colours of any number apart.
      `hsl(${(i * 137.508) % 360} 70% ${[45, 60, 35][i % 3]}%)`,
);
const hidden = new Set();
// The rows of each class, so that a colour is set once.
const rows = content.labels.map(() => []);
classes.forEach((c, i) => rows[c].push(i));

const view = { zoom: 1, x: 0, y: 0 };
let size = { width: 0, height: 0, side: 1 };
let selected = new Uint8Array(count);
let hovered = -1;
let scheduled = false;

/** Draws once before the next frame, however much has changed. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  document.documentElement.dataset.state = "drawing";
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
    document.documentElement.dataset.state = "drawn";
  });
}

/** Returns where a point is on the canvas, in pixels of CSS. */
function place(i) {
  const scale = (size.side * view.zoom) / 65535;
  return [
    size.width / 2 + view.x + (places[2 * i] - 32767.5) * scale,
    size.height / 2 + view.y + (places[2 * i + 1] - 32767.5) * scale,
  ];
}

function resize() {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  size = { width, height, side: 0.94 * Math.min(width, height) };
  schedule();
}

function draw() {
  const { width, height } = size;
  const r = RADIUS * Math.min(3, Math.sqrt(view.zoom));
  context.clearRect(0, 0, width, height);
  const some = selected.includes(1);
  rows.forEach((points, c) => {
    if (hidden.has(c)) return;
    context.fillStyle = colours[c];
    for (const strong of some ? [0, 1] : [0]) {
      context.globalAlpha = some && !strong ? 0.25 : 0.85;
      for (const i of points) {
        if (some && selected[i] !== strong) continue;
        const [x, y] = place(i);
        if (x < -r || y < -r || x > width + r || y > height + r) continue;
        context.fillRect(x - r, y - r, 2 * r, 2 * r);
      }
    }
  });
  context.globalAlpha = 1;
  if (hovered >= 0) {
    const [x, y] = place(hovered);
    context.strokeStyle = getComputedStyle(canvas).color;
    context.lineWidth = 2;
    context.strokeRect(x - r - 3, y - r - 3, 2 * r + 6, 2 * r + 6);
  }
}

/** Returns the nearest visible point, or -1. */
function find(x, y) {
  let best = REACH ** 2;
  let found = -1;
  for (let i = 0; i < count; i++) {
    if (hidden.has(classes[i])) continue;
    const [px, py] = place(i);
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < best) [best, found] = [distance, i];
  }
  return found;
}

const sheets = content.sheets.map((source) => {
  const image = new Image();
  image.src = source;
  return image;
});

/** Shows the picture of a point; -1 hides it. */
async function hover(i) {
  if (i === hovered) return;
  hovered = i;
  tip.hidden = i < 0;
  schedule();
  if (i < 0) return;
  const label = content.labels[classes[i]];
  tip.querySelector("figcaption").textContent = `${content.names[i]}\n${label}`;
  const [x, y] = place(i);
  tip.style.left = `${Math.max(0, Math.min(x + 14, size.width - 160))}px`;
  const above = y > size.height / 2;
  tip.style.top = above ? "auto" : `${Math.max(0, y + 14)}px`;
  tip.style.bottom = above ? `${size.height - y + 14}px` : "auto";
  const picture = byId("picture");
  const tile = content.tiles[i];
  picture.hidden = tile < 0;
  if (tile < 0) return;
  const { side, columns } = content;
  const each = columns * columns;
  const sheet = sheets[Math.floor(tile / each)];
  await sheet.decode();
  if (i !== hovered) return;
  const [row, column] = [Math.floor((tile % each) / columns), tile % columns];
  picture.width = picture.height = side;
  picture
    .getContext("2d")
    .drawImage(sheet, column * side, row * side, side, side, 0, 0, side, side);
}

/** Changes the zoom so that what is below a place stays there. */
function zoom(factor, x = size.width / 2, y = size.height / 2) {
  const before = view.zoom;
  view.zoom = Math.min(200, Math.max(0.5, before * factor));
  const ratio = view.zoom / before;
  view.x = x - size.width / 2 - (x - size.width / 2 - view.x) * ratio;
  view.y = y - size.height / 2 - (y - size.height / 2 - view.y) * ratio;
  hover(-1);
  schedule();
}

/** Selects the visible points in a box; none deselects all. */
function choose(left, top, right, bottom) {
  selected = new Uint8Array(count);
  for (let i = 0; i < count; i++) {
    const [x, y] = place(i);
    const inside = x >= left && x <= right && y >= top && y <= bottom;
    if (inside && !hidden.has(classes[i])) selected[i] = 1;
  }
  list();
  schedule();
}

function list() {
  const names = content.names.filter((_, i) => selected[i]);
  byId("count").textContent = `${names.length.toLocaleString("en")} pictures`;
  byId("names").value = names.join("\n");
  byId("copy").disabled = !names.length;
}

const fingers = new Map();
let start = null; // Of a box.

function at(event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

const isSelecting = () => byId("select").ariaPressed === "true";

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, at(event));
  start = null;
  if (fingers.size === 1 && (event.shiftKey || isSelecting()))
    start = at(event);
});

canvas.addEventListener("pointermove", (event) => {
  const [x, y] = at(event);
  const before = fingers.get(event.pointerId);
  if (!before) return hover(find(x, y));
  const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
  fingers.set(event.pointerId, [x, y]);
  if (start) return showBox(start, [x, y]);
  if (other) {
    const span = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
    return zoom(span([x, y]) / span(before), ...other);
  }
  hover(-1);
  view.x += x - before[0];
  view.y += y - before[1];
  schedule();
});

function showBox(a, b) {
  const [left, right] = [Math.min(a[0], b[0]), Math.max(a[0], b[0])];
  const [top, bottom] = [Math.min(a[1], b[1]), Math.max(a[1], b[1])];
  const { style } = byId("box");
  byId("box").hidden = false;
  style.left = `${left}px`;
  style.top = `${top}px`;
  style.width = `${right - left}px`;
  style.height = `${bottom - top}px`;
  return [left, top, right, bottom];
}

function release(event) {
  if (!fingers.delete(event.pointerId)) return;
  if (start && event.type === "pointerup") choose(...showBox(start, at(event)));
  else if (event.pointerType === "touch") hover(find(...at(event)));
  start = null;
  byId("box").hidden = true;
}

canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => hover(-1));
canvas.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), ...at(event));
  },
  { passive: false },
);

const STEPS = {
  ArrowLeft: [60, 0],
  ArrowRight: [-60, 0],
  ArrowUp: [0, 60],
  ArrowDown: [0, -60],
};
canvas.addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (step) [view.x, view.y] = [view.x + step[0], view.y + step[1]];
  else if (event.key === "+") zoom(1.5);
  else if (event.key === "-") zoom(1 / 1.5);
  else return;
  event.preventDefault();
  schedule();
});

byId("closer").addEventListener("click", () => zoom(1.5));
byId("farther").addEventListener("click", () => zoom(1 / 1.5));
byId("whole").addEventListener("click", () => {
  Object.assign(view, { zoom: 1, x: 0, y: 0 });
  schedule();
});
byId("select").addEventListener("click", ({ currentTarget }) => {
  currentTarget.ariaPressed = isSelecting() ? "false" : "true";
});
byId("copy").addEventListener("click", () => {
  byId("names").select();
  navigator.clipboard?.writeText(byId("names").value);
});

content.labels.forEach((label, c) => {
  const button = document.createElement("button");
  const swatch = document.createElement("span");
  button.type = "button";
  button.ariaPressed = "true";
  swatch.className = "swatch";
  swatch.style.background = colours[c];
  button.append(swatch, `${label || "no label"} (${rows[c].length})`);
  button.addEventListener("click", () => {
    if (!hidden.delete(c)) hidden.add(c);
    button.ariaPressed = hidden.has(c) ? "false" : "true";
    hover(-1);
    schedule();
  });
  byId("labels").append(button);
});

byId("summary").textContent = content.summary;
list();
new ResizeObserver(resize).observe(canvas);
