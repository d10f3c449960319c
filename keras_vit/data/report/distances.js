// The plot of how far heads look, and the filters.

const plot = byId("distance");
const PLOT_HEIGHT = 260;
const MARGIN = { left: 44, right: 12, top: 12, bottom: 40 };
let dots = [];

function shownModels() {
  const shown = panels.slice(0, state.compare ? 2 : 1);
  return [...new Set(shown.map((panel) => panel.model))];
}

function drawDistances() {
  const models = shownModels();
  const width = Math.max(plot.clientWidth, 200);
  const blocks = Math.max(...models.map((model) => model.blocks));
  const highest = Math.max(...models.flatMap((m) => m.distances.flat()), 1);
  const step = niceStep(highest / 4);
  const top = step * Math.ceil(highest / step);
  const column = (width - MARGIN.left - MARGIN.right) / blocks;
  const bottom = PLOT_HEIGHT - MARGIN.bottom;
  const xOf = (block, shift) => MARGIN.left + column * (block + 0.5) + shift;
  const yOf = (distance) => bottom - (distance / top) * (bottom - MARGIN.top);
  const svg = makeSvg("svg", {
    viewBox: `0 0 ${width} ${PLOT_HEIGHT}`,
    height: PLOT_HEIGHT,
    "aria-hidden": "true",
  });
  svg.append(
    makeSvg("rect", {
      class: "band",
      x: xOf(Math.min(state.block, blocks - 1), -column / 2),
      y: MARGIN.top,
      width: column,
      height: bottom - MARGIN.top,
    }),
  );
  for (let tick = 0; tick <= top + step / 2; tick += step) {
    const y = yOf(tick);
    const x2 = width - MARGIN.right;
    svg.append(
      makeSvg("line", { class: "grid", x1: MARGIN.left, x2, y1: y, y2: y }),
      makeSvg(
        "text",
        { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" },
        threeDigits(tick),
      ),
    );
  }
  const skip = Math.ceil(24 / column);
  range(blocks).forEach((block) => {
    if (block % skip) return;
    const at = { x: xOf(block, 0), y: bottom + 16, "text-anchor": "middle" };
    svg.append(makeSvg("text", at, block + 1));
  });
  const centre = (MARGIN.left + width - MARGIN.right) / 2;
  svg.append(
    makeSvg(
      "text",
      { x: centre, y: PLOT_HEIGHT - 6, "text-anchor": "middle" },
      "block; upwards: distance in pixels",
    ),
  );
  dots = models.flatMap((model, i) =>
    model.distances.flatMap((heads, block) =>
      heads.map((distance, head) => ({
        block,
        head,
        distance,
        second: i > 0,
        x: xOf(block, column * spread(head, heads.length, i, models.length)),
        y: yOf(distance),
      })),
    ),
  );
  // The chosen one last, over the others.
  dots.sort((a, b) => isChosen(a) - isChosen(b));
  dots.forEach((dot) => svg.append(drawDot(dot)));
  plot.replaceChildren(svg);
  byId("distance-reading").textContent = models
    .map(describeDistance)
    .join(" ");
}

/** Returns where a mark goes in its column, so that none hides another. */
function spread(head, heads, model, models) {
  const place = (model + (head + 0.5) / heads) / models;
  return 0.7 * (place - 0.5);
}

const isChosen = ({ block, head }) =>
  block === state.block && head === state.head;

function drawDot(dot) {
  const radius = isChosen(dot) ? 7 : 4;
  const kind =
    (dot.second ? "second" : "first") + (isChosen(dot) ? " chosen" : "");
  // Shapes tell models apart where colours do not.
  return dot.second
    ? makeSvg("rect", {
        class: kind,
        x: dot.x - radius,
        y: dot.y - radius,
        width: 2 * radius,
        height: 2 * radius,
      })
    : makeSvg("circle", { class: kind, cx: dot.x, cy: dot.y, r: radius });
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}

function describeDistance(model, i, models) {
  const block = Math.min(state.block, model.blocks - 1);
  const heads = model.distances[block];
  const shape = i ? "squares" : "circles";
  const name = models.length > 1 ? `${model.name} (${shape}), b` : "B";
  if (state.head !== MEAN && state.head < model.heads) {
    const head = `head ${state.head + 1}`;
    const distance = rounded(heads[state.head]);
    return `${name}lock ${block + 1}, ${head}: ${distance} pixels.`;
  }
  const mean = heads.reduce((sum, x) => sum + x, 0) / heads.length;
  return (
    `${name}lock ${block + 1}: ${rounded(Math.min(...heads))} to ` +
    `${rounded(Math.max(...heads))} pixels, on average ${rounded(mean)}.`
  );
}

function chooseDot(event) {
  const box = plot.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const far = (dot) => Math.hypot(x - dot.x, y - dot.y);
  const nearest = dots.reduce((a, b) => (far(b) < far(a) ? b : a));
  if (far(nearest) < 30) {
    change({ show: "attention", block: nearest.block, head: nearest.head });
  }
}

function moveDot(event) {
  const model = panels[0].model;
  const block = Math.min(state.block, model.blocks - 1);
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const upwards = { ArrowDown: -1, ArrowUp: 1 }[event.key];
  if (!sideways && !upwards) return;
  event.preventDefault();
  if (sideways) {
    const moved = clamp(block + sideways, 0, model.blocks - 1);
    change({ show: "attention", block: moved });
    return;
  }
  const order = range(model.heads).sort(
    (a, b) => model.distances[block][a] - model.distances[block][b],
  );
  const place =
    state.head === MEAN
      ? Math.floor(order.length / 2)
      : clamp(order.indexOf(state.head) + upwards, 0, order.length - 1);
  change({ show: "attention", block, head: order[place] });
}

function drawFilters() {
  byId("filters").replaceChildren(
    ...shownModels().map((model) => {
      const group = make("div", { class: "filter-group" });
      const name = numModels > 1 ? `${model.name}. ` : "";
      const hint = make("p", { class: "hint" });
      group.append(hint);
      if (!model.filters) {
        hint.textContent =
          `${name}No filters of the image: a ResNet stands before the ` +
          "patches.";
        return group;
      }
      const total = model.filters.reduce((sum, { share }) => sum + share, 0);
      hint.textContent =
        `${name}The patterns that the embedding of the patches is made of, ` +
        `most important first. These ${model.filters.length} explain ` +
        `${asShare(total)} of it. Trained models show edges, waves and ` +
        "colours, untrained ones noise.";
      const items = model.filters.map(({ png, share }, i) => {
        const text = `Filter ${i + 1}: ${asShare(share)}`;
        const src = `data:image/png;base64,${png}`;
        return make("li", {}, make("img", { src, alt: text, title: text }));
      });
      group.append(make("ul", { class: "filters" }, ...items));
      return group;
    }),
  );
}
