// Colours, maps and elements.

const palette = makePalette();

/** Returns the bytes (red, green, blue) of 256 colours. */
function makePalette() {
  const anchors = page.colours.map((hex) => parseInt(hex.slice(1), 16));
  const channel = (anchor, shift) => (anchors[anchor] >> shift) & 255;
  return range(256).map((i) => {
    const place = (i / 255) * (anchors.length - 1);
    const low = Math.min(Math.floor(place), anchors.length - 2);
    return [16, 8, 0].map((shift) => {
      const a = channel(low, shift);
      return Math.round(a + (place - low) * (channel(low + 1, shift) - a));
    });
  });
}

/** Draws numbers into a canvas, one pixel for each. */
function drawMap(canvas, numbers, [rows, columns], low, high) {
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  numbers.forEach((x, i) => {
    const share = high > low ? (x - low) / (high - low) : 0;
    const colour = palette[Math.round(255 * clamp(share, 0, 1))];
    image.data.set([...colour, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

function drawLegend(legend, low, high) {
  legend.querySelector(".low").textContent = low;
  legend.querySelector(".high").textContent = high;
}

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) =>
    element.setAttribute(key, value),
  );
  element.append(...children);
  return element;
}

function makeSvg(name, attributes = {}, text = "") {
  const element = document.createElementNS(
    "http://www.w3.org/2000/svg",
    name,
  );
  Object.entries(attributes).forEach(([key, value]) =>
    element.setAttribute(key, value),
  );
  element.textContent = text;
  return element;
}

function fillSelect(select, names, chosen) {
  const key = JSON.stringify(names);
  // An open list would close if it were filled again.
  if (select.dataset.names !== key) {
    select.dataset.names = key;
    select.replaceChildren(
      ...names.map(([value, name]) => make("option", { value }, name)),
    );
  }
  select.value = chosen;
}
