// What is chosen: its names in words, and in the address of the page.

const threeDigits = (x) => String(Number(x.toPrecision(3)));
const NO_BREAK = "\u00a0"; // A space that no line is broken at.
const asShare = (x) => `${threeDigits(100 * x)}${NO_BREAK}%`;
const rounded = (x) => x.toFixed(x < 10 ? 1 : 0);

function placeName(cell, [, columns]) {
  const row = Math.floor(cell / columns) + 1;
  return `row ${row}, column ${(cell % columns) + 1}`;
}

const blockName = (block, model) =>
  `${block + 1}${block === model.blocks - 1 ? " (last)" : ""}`;

/** Returns how the list of heads and the address name a head. */
const headValue = (head) => (head === MEAN ? "mean" : String(head + 1));

const capitalize = (text) => text[0].toUpperCase() + text.slice(1);

const numModels = page.models.length;
const numImages = page.models[0].images.length;
const state = {
  show: "attention",
  block: page.models[0].blocks - 1,
  head: MEAN,
  rank: 0,
  from: "head",
  // The chosen patch, as fractions of the height and the width: panels may
  // have different grids.
  y: 0.5,
  x: 0.5,
  pointer: "choose",
  opacity: 65,
  compare: numModels > 1,
  same: true,
  panels: [
    { model: 0, image: 0 },
    numModels > 1
      ? { model: 1, image: 0 }
      : { model: 0, image: Math.min(1, numImages - 1) },
  ],
};
// Where the mouse is, or where the keyboard reads: it is not kept.
let under = null;
let reading = null;

function change(changes) {
  Object.assign(state, changes);
  schedule();
}

/** Returns what the maps are seen from, the mouse going first. */
function currentFrom() {
  if (state.pointer === "choose" && under) return { kind: "patch", ...under };
  return { kind: state.from, y: state.y, x: state.x };
}

const cellAt = ({ y, x }, [rows, columns]) =>
  clamp(Math.floor(y * rows), 0, rows - 1) * columns +
  clamp(Math.floor(x * columns), 0, columns - 1);

const middleOf = (cell, [rows, columns]) => ({
  y: (Math.floor(cell / columns) + 0.5) / rows,
  x: ((cell % columns) + 0.5) / columns,
});

// A frame in a notebook has none.
const hasAddress = /^(file|https?):$/.test(location.protocol);

function writeAddress() {
  if (!hasAddress) return;
  const grid = page.models[state.panels[0].model].grid;
  const cell = cellAt(state, grid);
  const words = new URLSearchParams({
    show: state.show,
    block: state.block + 1,
    head: headValue(state.head),
    class: state.rank + 1,
    from: state.from,
    at: `${Math.floor(cell / grid[1]) + 1}.${(cell % grid[1]) + 1}`,
    pointer: state.pointer,
    overlay: state.opacity,
    compare: Number(state.compare),
    same: Number(state.same),
    models: state.panels.map((panel) => panel.model + 1).join("."),
    images: state.panels.map((panel) => panel.image + 1).join("."),
  });
  history.replaceState(null, "", `#${words}`);
}

/** Takes what it understands from the address; the rest stays. */
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const choose = (name, ...known) => {
    if (known.includes(words.get(name))) state[name] = words.get(name);
  };
  const numbers = (name) =>
    (words.get(name) ?? "").split(".").map((text) => parseInt(text, 10));
  const number = (name, low, high, otherwise) => {
    const [value] = numbers(name);
    return Number.isNaN(value) ? otherwise : clamp(value, low, high);
  };
  choose("show", ...shownKinds());
  choose("from", "head", "token", "patch");
  choose("pointer", "choose", "read");
  ["models", "images"].forEach((name) => {
    const key = name.slice(0, -1);
    const count = name === "models" ? numModels : numImages;
    numbers(name)
      .slice(0, 2)
      .forEach((value, i) => {
        if (value >= 1 && value <= count) state.panels[i][key] = value - 1;
      });
  });
  const model = page.models[state.panels[0].model];
  state.block = number("block", 1, model.blocks, state.block + 1) - 1;
  state.head =
    words.get("head") === "mean"
      ? MEAN
      : number("head", 1, model.heads, state.head + 1) - 1;
  state.rank = number("class", 1, 9, state.rank + 1) - 1;
  state.opacity = number("overlay", 0, 100, state.opacity);
  for (const name of ["compare", "same"]) {
    if (words.has(name)) state[name] = words.get(name) === "1";
  }
  const [row, column] = numbers("at");
  if (row >= 1 && column >= 1) {
    state.y = clamp((row - 0.5) / model.grid[0], 0, 1);
    state.x = clamp((column - 0.5) / model.grid[1], 0, 1);
  }
}

function shownKinds() {
  const explained = page.models.some((model) => model.images[0].relevance);
  return ["attention", "rollout", ...(explained ? ["relevance"] : [])];
}
