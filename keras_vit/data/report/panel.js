// A panel: an image as a model sees it.

/** A panel: an image as a model sees it. */
class Panel {
  constructor(index) {
    this.choice = state.panels[index];
    this.root = byId("panel").content.firstElementChild.cloneNode(true);
    this.drawn = "";
    const title = this.find(".panel-title");
    title.id = `panel-${index}`;
    this.root.setAttribute("aria-labelledby", title.id);
    this.stage = this.find(".stage");
    this.stage.setAttribute("aria-describedby", "explanation");
    this.root
      .querySelectorAll("canvas.scale")
      .forEach((canvas) => drawMap(canvas, range(256), [1, 256], 0, 255));
    const images = page.models[0].images.map((image) => image.name);
    this.setUpSelect("image", index, images);
    const models = page.models.map((model) => model.name);
    this.setUpSelect("model", index, models);
    // What the lists say needs no headline but for who does not see them.
    const hasChoice = numModels * numImages > 1;
    this.find(".panel-choices").hidden = !hasChoice;
    title.classList.toggle("unseen", hasChoice);
    this.listen();
  }

  get model() {
    return page.models[this.choice.model];
  }

  get image() {
    return this.model.images[this.choice.image];
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  setUpSelect(key, index, names) {
    const select = this.find(`select.${key}`);
    select.id = `${key}-${index}`;
    select.previousElementSibling.htmlFor = select.id;
    select.parentElement.hidden = names.length < 2;
    fillSelect(select, [...names.entries()], this.choice[key]);
    select.addEventListener("change", () => {
      this.choice[key] = Number(select.value);
      schedule();
    });
  }

  listen() {
    this.stage.addEventListener("pointermove", (event) => {
      // A finger that moves scrolls the page.
      if (event.pointerType === "touch") return;
      under = this.placeOf(event);
      schedule();
    });
    this.stage.addEventListener("pointerleave", () => {
      under = null;
      schedule();
    });
    this.stage.addEventListener("click", (event) =>
      goTo(this.placeOf(event)),
    );
    this.stage.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.key === "Escape") {
      under = reading = null;
      change({ from: "head" });
      return;
    }
    const { grid } = this.model;
    const cell = moveCell(event, grid);
    if (cell === null) return;
    event.preventDefault();
    // The mouse may still be there; the keyboard was used last.
    under = null;
    goTo(middleOf(cell, grid));
  }

  /** Returns the middle of the patch that a pointer is over. */
  placeOf(event) {
    const { grid } = this.model;
    const box = this.find(".marks").getBoundingClientRect();
    const y = (event.clientY - box.top) / box.height;
    const x = (event.clientX - box.left) / box.width;
    return middleOf(cellAt({ y, x }, grid), grid);
  }

  /** Returns the patch whose value is read, or null. */
  get readCell() {
    const place = state.pointer === "read" ? (under ?? reading) : null;
    return place && cellAt(place, this.model.grid);
  }

  findView() {
    return findView(this.model, this.image);
  }

  /** Draws a view; returns it in words. */
  async draw(view) {
    this.drawImage();
    const best = view.row ? strongest(view.row.patches, view.own) : [];
    this.drawHeat(view);
    this.drawMarks(view, best);
    drawStrongest(this, view, best);
    const words = describeView(this, view, best);
    const notice = this.find("figcaption .notice");
    this.find(".caption").textContent = view.caption;
    this.find("figcaption .reading").textContent = words;
    notice.textContent = view.notice;
    notice.hidden = !view.notice;
    await Promise.all([
      drawNorms(this, view.own),
      drawSimilarity(this, view.own),
    ]);
    return [words, view.notice].filter(Boolean).join(" ");
  }

  /** Draws what depends on the image and the model only, when they change. */
  drawImage() {
    const key = JSON.stringify(this.choice);
    if (this.drawn === key) return;
    this.drawn = key;
    const { model, image } = this;
    const names = [];
    if (numImages > 1) names.push(image.name);
    if (numModels > 1 || numImages < 2) names.push(model.name);
    this.find(".panel-title").textContent = names.join(", ");
    this.find(".whose").textContent = names.join(", ");
    this.find("select.image").value = this.choice.image;
    this.find("select.model").value = this.choice.model;
    const [height, width] = image.size;
    const [rows, columns] = model.grid;
    const photo = this.find(".photo");
    photo.src = `data:image/png;base64,${image.png}`;
    photo.classList.toggle("coarse", Math.max(height, width) < 100);
    this.stage.style.aspectRatio = `${width} / ${height}`;
    this.stage.style.maxWidth = `min(100%, ${(31 * width) / height}rem)`;
    this.stage.setAttribute(
      "aria-label",
      `Patches of ${image.name}, ${rows} rows and ${columns} columns`,
    );
    // Patches may go beyond the image where a stem has padded it.
    for (const overlay of [this.find(".heat"), this.find(".marks")]) {
      overlay.style.width = `${(100 * columns * model.patch_size) / width}%`;
      overlay.style.height = `${(100 * rows * model.patch_size) / height}%`;
    }
    this.find(".marks").setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    drawPredictions(this);
  }

  drawHeat({ row, high, format }) {
    const heat = this.find(".heat");
    const legend = this.find("figcaption .legend");
    heat.style.opacity = state.opacity / 100;
    heat.hidden = !row;
    legend.hidden = !row;
    if (!row) return;
    drawMap(heat, row.patches, this.model.grid, 0, high);
    drawLegend(legend, format(0), format(high));
  }

  drawMarks({ own }, best) {
    const columns = this.model.grid[1];
    const corner = (cell) => [cell % columns, Math.floor(cell / columns)];
    const frame = (cell, kind) => {
      const [x, y] = corner(cell);
      return ["around", kind].map((name) =>
        makeSvg("rect", { x, y, width: 1, height: 1, class: name }),
      );
    };
    const marks = best.map((cell, i) => {
      const [x, y] = corner(cell);
      return makeSvg("text", { x: x + 0.5, y: y + 0.5 }, i + 1);
    });
    if (own !== null) marks.push(...frame(own, "own"));
    if (this.readCell !== null) marks.push(...frame(this.readCell, "read"));
    const svg = this.find(".marks");
    // As large as a cell allows, but no larger than a headline.
    const side = svg.clientWidth / columns;
    svg.style.fontSize = `${Math.min(0.62, 20 / side)}px`;
    svg.replaceChildren(...marks);
  }

}

/** Chooses or reads the patch at a place. */
function goTo(place) {
  if (state.pointer === "read") {
    reading = place;
    schedule();
  } else {
    change({ from: "patch", ...place });
  }
}

/** Returns the patch that a key goes to, or null for other keys. */
function moveCell(event, grid) {
  const [rows, columns] = grid;
  const place = state.pointer === "read" ? reading : state;
  const isNew = state.pointer === "read" ? !reading : state.from !== "patch";
  const cell = cellAt(place ?? { y: 0.5, x: 0.5 }, grid);
  const row = Math.floor(cell / columns);
  const column = cell % columns;
  const moves = {
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    Home: [event.ctrlKey ? 0 : row, 0],
    End: [event.ctrlKey ? rows - 1 : row, columns - 1],
  };
  if (!(event.key in moves) || event.altKey || event.metaKey) return null;
  // The first arrow shows where one is.
  if (isNew && event.key.startsWith("Arrow")) return cell;
  const [y, x] = moves[event.key];
  return clamp(y, 0, rows - 1) * columns + clamp(x, 0, columns - 1);
}
