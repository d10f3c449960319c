// Drawing the page whenever something has changed.

let panels = [];
let scheduled = false;
let turn = 0;
let shown = "";
let later = 0;

/** Draws once before the next frame, however much has changed. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  // For who waits, such as a test.
  document.documentElement.dataset.state = "drawing";
  requestAnimationFrame(() => {
    scheduled = false;
    render();
  });
}

async function render() {
  const mine = ++turn;
  syncControls();
  const active = panels.slice(0, state.compare ? 2 : 1);
  const views = await Promise.all(active.map((panel) => panel.findView()));
  // The state may have changed while numbers were decoded.
  if (mine !== turn) return;
  panels[1].root.hidden = !state.compare;
  byId("panels").className = `panels ${state.compare ? "two" : "one"}`;
  setScales(views);
  const drawings = active.map((panel, i) => panel.draw(views[i]));
  drawBelow();
  const words = await Promise.all(drawings);
  if (mine !== turn) return;
  clearTimeout(later);
  later = setTimeout(() => settle(words), 300);
  if (!scheduled) document.documentElement.dataset.state = "drawn";
}

/** Sets which number has the last colour in each view. */
function setScales(views) {
  views.forEach((view) => {
    // A patch may look at itself more than at all others together.
    view.high = view.row ? largestBut(view.row.patches, view.own) : 0;
  });
  // What has no unit cannot be compared.
  if (!state.same || state.show === "relevance") return;
  const high = Math.max(...views.map((view) => view.high));
  views.forEach((view) => Object.assign(view, { high }));
}

/** Redraws what does not follow the pointer only when it changes. */
function drawBelow() {
  const { block, head, compare } = state;
  const width = plot.clientWidth;
  const key = JSON.stringify([block, head, compare, state.panels, width]);
  if (key === shown) return;
  shown = key;
  drawDistances();
  drawFilters();
}

/** Says what is shown once it has stayed for a moment. */
function settle(words) {
  const onPlot = document.activeElement === plot;
  const text = onPlot
    ? byId("distance-reading").textContent
    : words.join(" ");
  const announcement = byId("announcement");
  if (announcement.textContent !== text) announcement.textContent = text;
  writeAddress();
}

function start() {
  const { models } = page;
  byId("summary").textContent = models
    .map((model) => `${model.name}: ${model.summary}`)
    .join(". ");
  byId("precision").textContent = page.precision;
  byId("left-out").textContent = page.left_out;
  byId("address").hidden = !hasAddress;
  readAddress();
  panels = range(2).map((index) => new Panel(index));
  byId("panels").append(...panels.map((panel) => panel.root));
  setUpControls();
  plot.addEventListener("click", chooseDot);
  plot.addEventListener("keydown", moveDot);
  new ResizeObserver(schedule).observe(plot);
  window.addEventListener("hashchange", () => {
    readAddress();
    schedule();
  });
  schedule();
}

start();
