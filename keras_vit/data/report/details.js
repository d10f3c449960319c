// What stands below the image of a panel.

/** Fills the table of the patches that are looked at most. */
function drawStrongest(panel, { row, own, format }, best) {
  const columns = panel.model.grid[1];
  const line = (value, ...names) =>
    make(
      "tr",
      {},
      ...names,
      make("td", { class: "number" }, format(value)),
    );
  const wide = (name) => make("td", { colspan: 3 }, name);
  const lines = best.map((cell, i) =>
    line(
      row.patches[cell],
      make("td", {}, i + 1),
      make("td", {}, Math.floor(cell / columns) + 1),
      make("td", {}, (cell % columns) + 1),
    ),
  );
  if (row && own !== null) {
    lines.push(line(row.patches[own], wide("Itself")));
  }
  if (row && row.token !== null) {
    lines.push(line(row.token, wide("Class token")));
  }
  if (row && format === asShare) {
    const tokens = row.patches.length + panel.model.num_prefix_tokens;
    lines.push(line(1 / tokens, wide("Each, if spread evenly")));
  }
  panel.find(".strongest tbody").replaceChildren(...lines);
}

/** Returns a view in words. */
function describeView(panel, { row, own, from, format }, best) {
  if (!row) return "";
  const { grid } = panel.model;
  if (panel.readCell !== null) {
    const value = format(row.patches[panel.readCell]);
    const name = capitalize(placeName(panel.readCell, grid));
    return `${name} gets ${value}, seen from ${from}.`;
  }
  const parts = [];
  if (best.length) {
    const value = format(row.patches[best[0]]);
    parts.push(`most at ${placeName(best[0], grid)}: ${value}`);
  } else {
    parts.push("at no other patch");
  }
  if (own !== null) parts.push(`at itself: ${format(row.patches[own])}`);
  if (row.token !== null) {
    parts.push(`at the class token: ${format(row.token)}`);
  }
  return `Seen from ${from}: ${parts.join("; ")}.`;
}

function drawPredictions(panel) {
  const { predictions } = panel.image;
  const lines = (predictions ?? []).map(({ name, probability }) => {
    const fill = make("i");
    fill.style.width = `${100 * probability}%`;
    return make(
      "li",
      {},
      make("span", {}, name),
      make("span", { class: "number" }, asShare(probability)),
      make("div", { class: "bar", "aria-hidden": "true" }, fill),
    );
  });
  panel.find(".predictions").replaceChildren(...lines);
  panel.find(".about-predictions").textContent = predictions
    ? "The most likely classes and their probabilities."
    : "This model has no head, and therefore no classes.";
}

async function drawNorms(panel, own) {
  const { model, image } = panel;
  const block = Math.min(state.block, model.blocks - 1);
  const prefix = model.num_prefix_tokens;
  const length = prefix + model.grid[0] * model.grid[1];
  const buffer = await readPacket(image.norms);
  const norms = new Float32Array(buffer, 4 * block * length, length);
  const patches = norms.subarray(prefix);
  const [low, high] = [Math.min(...patches), Math.max(...patches)];
  const span = [threeDigits(low), threeDigits(high)];
  const canvas = panel.find(".norms");
  drawMap(canvas, patches, model.grid, low, high);
  drawLegend(canvas.nextElementSibling, ...span);
  canvas.setAttribute(
    "aria-label",
    `Norms of the patch tokens after block ${block + 1}, ` +
      `from ${span.join(" to ")}`,
  );
  const sentences = [
    `Norm of each patch token after block ${block + 1}.`,
    describeArtefacts(image.artefacts[block], model.grid),
  ];
  if (own !== null) {
    sentences.push(`The chosen patch: ${threeDigits(patches[own])}.`);
  }
  if (model.has_class_token) {
    sentences.push(`The class token: ${threeDigits(norms[0])}.`);
  }
  panel.find(".about-norms").textContent = sentences.join(" ");
}

function describeArtefacts(cells, grid) {
  if (!cells.length) {
    return (
      "No norm exceeds three times the median; such tokens would store " +
      "information about the whole image."
    );
  }
  const named = cells.slice(0, 4).map((cell) => placeName(cell, grid));
  const more = cells.length > 4 ? ", and others" : "";
  return (
    `Norms above three times the median (${cells.length}); these tokens may ` +
    `store information about the whole image: ${named.join("; ")}${more}.`
  );
}

async function drawSimilarity(panel, own) {
  const canvas = panel.find(".similarity");
  const found = panel.model.similarity;
  canvas.hidden = canvas.nextElementSibling.hidden = !found;
  if (!found) {
    panel.find(".about-similarity").textContent =
      "This model has no position embedding.";
    return;
  }
  const { packet, grid } = found;
  const middle = { y: 0.5, x: 0.5 };
  const place = own === null ? middle : middleOf(own, panel.model.grid);
  const cell = cellAt(place, grid);
  const size = grid[0] * grid[1];
  const codes = new Uint8Array(await readPacket(packet));
  const cosines = Float32Array.from(
    codes.subarray(cell * size, (cell + 1) * size),
    (code) => code / 127 - 1,
  );
  const low = Math.min(...cosines);
  drawMap(canvas, cosines, grid, low, 1);
  drawLegend(canvas.nextElementSibling, low.toFixed(2), "1");
  const name = placeName(cell, grid);
  canvas.setAttribute(
    "aria-label",
    `Similarity of ${name} with all positions, from ${low.toFixed(2)} to 1`,
  );
  panel.find(".about-similarity").textContent =
    `Cosine of the position embedding of ${name}` +
    `${own === null ? ", in the middle," : ""} with those of all others: ` +
    "what the model knows of where patches are.";
}
