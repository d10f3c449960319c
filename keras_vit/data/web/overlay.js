// Answers for each pixel, class maps and depths, drawn over the picture.

/** What the two ends of depths mean. */
const ENDS = {
  far: ["near", "far"],
  near: ["far", "near"],
  unknown: ["smallest", "largest"],
};

/**
 * Returns the map in the outputs for an image, arrays or nested lists by name:
 * {height, width, classes}, numbers of classes, or {height, width, depths}.
 */
export function readMap(outputs, description) {
  const { height, width } = description.output_size;
  const found = outputs.classes ?? outputs[description.output];
  const numbers = ArrayBuffer.isView(found) ? found : found.flat(Infinity);
  if (description.task === "depth") return { height, width, depths: numbers };
  if (outputs.classes) return { height, width, classes: numbers };
  const count = description.class_names.length;
  const classes = Array.from({ length: height * width }, (_, pixel) => {
    let best = 0;
    for (let i = 1; i < count; i++) {
      if (numbers[pixel * count + i] > numbers[pixel * count + best]) best = i;
    }
    return best;
  });
  return { height, width, classes };
}

/** Returns the overlay in an element, of a model with such a description. */
export async function makeOverlay(root, description) {
  const response = await fetch("colours.json");
  if (!response.ok) throw new Error(`colours.json: ${response.statusText}`);
  return new Overlay(root, description, await response.json());
}

class Overlay {
  constructor(root, description, colours) {
    this.root = root;
    this.description = description;
    this.colours = {
      classes: colours.classes.map(toLevels),
      numbers: interpolate(colours.numbers.map(toLevels), 256),
    };
    const isDepth = description.task === "depth";
    this.picture = make("canvas", { role: "img", "aria-label": "What the model sees" });
    this.map = make("canvas", {
      class: "map",
      role: "img",
      "aria-label": isDepth ? "The depths" : "The classes of the pixels",
    });
    this.legend = make("div", { class: "legend" });
    const slider = make("input", { type: "range", min: 0, max: 100, value: 60 });
    slider.addEventListener("input", () => (this.map.style.opacity = slider.value / 100));
    this.map.style.opacity = slider.value / 100;
    const label = make("label", {}, `Opacity of the ${isDepth ? "depths" : "classes"} `, slider);
    root.classList.add("overlay");
    root.replaceChildren(
      make("div", { class: "layers" }, this.picture, this.map), label, this.legend,
    );
  }

  hide() {
    this.root.hidden = true;
  }

  /**
   * Shows a map over the picture that the model saw, {height, width, channels,
   * data}; null if it cannot be drawn.
   */
  show({ map, picture }) {
    if (picture) paintPicture(this.picture, picture);
    else paint(this.picture, map, () => [128, 128, 128]);
    if (map.classes) this.showClasses(map);
    else this.showDepths(map);
    this.root.hidden = false;
  }

  showClasses(map) {
    const { classes: colours } = this.colours;
    const colourOf = (number) => colours[number % colours.length];
    paint(this.map, map, (pixel) => colourOf(map.classes[pixel]));
    const counts = new Map();
    map.classes.forEach((number) => counts.set(number, (counts.get(number) ?? 0) + 1));
    const rows = [...counts]
      .sort(([a, x], [b, y]) => y - x || a - b)
      .map(([number, count]) => make(
        "tr", {},
        make("td", {}, makeSwatch(colourOf(number)), this.description.class_names[number]),
        make("td", {}, `${(100 * count / map.classes.length).toFixed(1)} %`),
      ));
    const heads = ["class", "share of the pixels"];
    this.legend.replaceChildren(make(
      "table", {},
      make("thead", {}, make(
        "tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)),
      )),
      make("tbody", {}, ...rows),
    ));
  }

  showDepths(map) {
    const { numbers: colours } = this.colours;
    let [low, high] = [Infinity, -Infinity];
    for (const depth of map.depths) {
      low = Math.min(low, depth);
      high = Math.max(high, depth);
    }
    const scale = (colours.length - 1) / (high - low || 1);
    paint(this.map, map, (pixel) => colours[Math.round((map.depths[pixel] - low) * scale)]);
    const bar = make("canvas", { role: "img", "aria-label": "Colours, from left to right" });
    paint(bar, { height: 1, width: colours.length }, (place) => colours[place]);
    const ends = ENDS[this.description.larger_depths ?? "unknown"];
    const texts = [low, high].map((depth, i) => make(
      "span", {}, `${ends[i]}: ${Number(depth.toPrecision(3))}`,
    ));
    this.legend.replaceChildren(bar, make("p", {}, ...texts));
  }
}

function make(name, attributes, ...children) {
  const element = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children);
  return element;
}

function makeSwatch(levels) {
  const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = `rgb(${levels.join(" ")})`;
  return swatch;
}

/** Draws the colours of pixels, [red, green, blue] by their numbers. */
function paint(canvas, { height, width }, colourOf) {
  canvas.height = height;
  canvas.width = width;
  const image = new ImageData(width, height);
  for (let pixel = 0; pixel < height * width; pixel++) {
    image.data.set([...colourOf(pixel), 255], 4 * pixel);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintPicture(canvas, picture) {
  const { channels, data } = picture;
  paint(canvas, picture, (pixel) => {
    const start = channels * pixel;
    if (channels < 3) return [data[start], data[start], data[start]];
    return data.subarray(start, start + 3);
  });
}

function toLevels(hex) {
  return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
}

/** Returns colours between others that are evenly spaced. */
function interpolate(colours, count) {
  return Array.from({ length: count }, (_, i) => {
    const place = (i / (count - 1)) * (colours.length - 1);
    const first = Math.min(Math.floor(place), colours.length - 2);
    return colours[first].map((level, channel) =>
      Math.round(level + (place - first) * (colours[first + 1][channel] - level)));
  });
}
