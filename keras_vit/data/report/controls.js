// The controls, and what they change.

const controls = byId("controls");

function setUpControls() {
  const ways = page.models.map((model) => model.reads_patches);
  const hasToken = page.models.some(
    (model) => model.has_class_token && model.reads_patches,
  );
  const radio = (name, value) =>
    controls.querySelector(`[name="${name}"][value="${value}"]`);
  const label = radio("from", "head").nextElementSibling;
  const isPlain = page.models.every(
    (model) => model.reads_patches || String(model.read_prefix) === "0",
  );
  if (isPlain && ways.every((way) => way === ways[0])) {
    label.textContent += ways[0] ? " (all patches)" : " (class token)";
  }
  radio("from", "token").parentElement.hidden = !hasToken;
  radio("show", "relevance").parentElement.hidden =
    !shownKinds().includes("relevance");
  byId("compare").parentElement.hidden = numModels * numImages < 2;
  controls.addEventListener("submit", (event) => event.preventDefault());
  // Only what was touched: the others may not show the state yet.
  controls.addEventListener("input", ({ target }) =>
    change(CHANGES[target.name || target.id](target)),
  );
}

const CHANGES = {
  show: ({ value }) => ({ show: value }),
  from: ({ value }) => ({ from: value }),
  pointer: ({ value }) => ({ pointer: value }),
  block: ({ value }) => ({ block: Number(value) - 1 }),
  head: ({ value }) => ({
    head: value === "mean" ? MEAN : Number(value) - 1,
  }),
  rank: ({ value }) => ({ rank: Number(value) }),
  opacity: ({ value }) => ({ opacity: Number(value) }),
  compare: ({ checked }) => ({ compare: checked }),
  same: ({ checked }) => ({ same: checked }),
};

/** Makes the controls show the state. */
function syncControls() {
  const model = panels[0].model;
  state.block = clamp(state.block, 0, model.blocks - 1);
  state.head = clamp(state.head, MEAN, model.heads - 1);
  for (const name of ["show", "from", "pointer"]) {
    controls.elements[name].value = state[name];
  }
  controls.querySelectorAll("[data-for]").forEach((field) => {
    field.hidden = field.dataset.for !== state.show;
  });
  const block = byId("block");
  block.max = model.blocks;
  block.value = state.block + 1;
  const name = blockName(state.block, model);
  block.setAttribute("aria-valuetext", name);
  byId("block-value").textContent = name;
  const heads = range(model.heads, 1).map((head) => [head, String(head)]);
  const names = [["mean", "Mean of all"], ...heads];
  fillSelect(byId("head"), names, headValue(state.head));
  const classes = panels[0].image.relevance?.classes ?? [];
  state.rank = clamp(state.rank, 0, Math.max(classes.length - 1, 0));
  const likeliest = classes.map(({ name, probability }, rank) => [
    rank,
    `${name} (${asShare(probability)})`,
  ]);
  fillSelect(byId("rank"), likeliest, state.rank);
  byId("opacity").value = state.opacity;
  byId("opacity").setAttribute("aria-valuetext", `${state.opacity} %`);
  byId("opacity-value").textContent = `${state.opacity} %`;
  byId("compare").checked = state.compare;
  byId("same").checked = state.same;
  byId("same").parentElement.hidden =
    !state.compare || state.show === "relevance";
  byId("explanation").textContent = EXPLANATIONS[state.show] + KEYS;
}
