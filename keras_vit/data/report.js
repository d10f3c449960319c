"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const page = JSON.parse(byId("content").textContent);

  // A head of this number stands for the mean of all.
  const MEAN = -1;
  const NUM_STRONGEST = 5;
  // The colours of matplotlib's "viridis" (CC0), evenly spaced from low to
  // high: equal steps look equally far apart, to the colour-blind as well.
  const VIRIDIS =
    "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c " +
    "1fa088 28ae80 3fbc73 5ec962 84d44b addc30 d8e219 fde725";

  /* ------------------------------------------------------------ numbers */

  const buffers = new Map();

  /** Returns the numbers of a packet; they are decoded when first asked for. */
  function readPacket(number) {
    if (!buffers.has(number)) {
      buffers.set(number, inflate(byId(`packet-${number}`).textContent));
    }
    return buffers.get(number);
  }

  function inflate(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes])
      .stream()
      .pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  /**
   * Returns the rows that keras_vit/analysis/packing.py packed.
   *
   * Of the T tokens that a row goes to, the last N are patches. A row is
   * { patches: N numbers, token: what goes to the class token or null }.
   */
  async function openRows({ packet, shape }, model) {
    const [matrices, queries, tokens] = shape;
    const prefix = model.num_prefix_tokens;
    const buffer = await readPacket(packet);
    const count = matrices * queries;
    const numOwn = queries === tokens ? count : 0;
    const scale = new Float32Array(buffer, 0, count);
    const own = new Float32Array(buffer, 4 * count, numOwn);
    const others = 4 * (count + numOwn);
    const toPrefix = new Float32Array(buffer, others, count * prefix);
    const codes = new Uint8Array(buffer, others + 4 * count * prefix);
    const width = tokens - prefix;
    const shares = Float32Array.from(
      { length: page.levels + 1 },
      (_, code) => (code / page.levels) ** 2,
    );

    /** Adds row `query` of a matrix, times `weight`, to `sum`. */
    function add(sum, matrix, query, weight) {
      const row = matrix * queries + query;
      const factor = weight * scale[row];
      for (let i = 0; i < width; i++) {
        sum.patches[i] += factor * shares[codes[row * width + i]];
      }
      // A row's own place holds a zero.
      if (numOwn && query >= prefix) {
        sum.patches[query - prefix] += weight * own[row];
      }
      if (prefix) sum.token += weight * toPrefix[row * prefix];
    }

    return { add, width, prefix, isWhole: queries === tokens };
  }

  /** Returns the mean of some rows of some matrices. */
  function averageRows(rows, matrices, queries) {
    const mean = {
      patches: new Float64Array(rows.width),
      token: rows.prefix ? 0 : null,
    };
    const weight = 1 / (matrices.length * queries.length);
    for (const matrix of matrices) {
      for (const query of queries) rows.add(mean, matrix, query, weight);
    }
    return mean;
  }

  const range = (count, start = 0) =>
    Array.from({ length: count }, (_, i) => start + i);

  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

  function largestBut(numbers, skipped) {
    let largest = 0;
    numbers.forEach((x, i) => {
      if (i !== skipped && x > largest) largest = x;
    });
    return largest;
  }

  /** Returns the places of the largest numbers, largest first. */
  function strongest(numbers, skipped) {
    return range(numbers.length)
      .filter((i) => i !== skipped && numbers[i] > 0)
      .sort((i, j) => numbers[j] - numbers[i] || i - j)
      .slice(0, NUM_STRONGEST);
  }

  /* -------------------------------------------------------------- words */

  const threeDigits = (x) => String(Number(x.toPrecision(3)));
  const NO_BREAK = "\u00a0"; // A space that no line is broken at.
  const asShare = (x) => `${threeDigits(100 * x)}${NO_BREAK}%`;
  const rounded = (x) => x.toFixed(x < 10 ? 1 : 0);

  function placeName(cell, [, columns]) {
    const row = Math.floor(cell / columns) + 1;
    return `row ${row}, column ${(cell % columns) + 1}`;
  }

  const blockName = (block, model) =>
    `${block}${block === model.blocks - 1 ? " (last)" : ""}`;

  const capitalize = (text) => text[0].toUpperCase() + text.slice(1);

  /* -------------------------------------------------------------- state */

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

  /* ----------------------------------------------------- the address bar */

  // A frame in a notebook has none.
  const hasAddress = /^(file|https?):$/.test(location.protocol);

  function writeAddress() {
    if (!hasAddress) return;
    const grid = page.models[state.panels[0].model].grid;
    const cell = cellAt(state, grid);
    const words = new URLSearchParams({
      show: state.show,
      block: state.block,
      head: state.head === MEAN ? "mean" : state.head,
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
    state.block = number("block", 0, model.blocks - 1, state.block);
    state.head =
      words.get("head") === "mean"
        ? MEAN
        : number("head", 0, model.heads - 1, state.head);
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

  /* ---------------------------------------------------------- what is seen */

  /**
   * Returns the row of the maps that is asked for, and what it is.
   *
   * { row, own: the patch it is seen from or null, caption, from: in words,
   *   format: of its numbers, notice: what to know }; row is null if the page
   *   does not hold it.
   */
  async function findView(model, image) {
    const from = currentFrom();
    let notice = "";
    if (from.kind === "token" && !model.num_prefix_tokens) {
      from.kind = "head";
      notice = "This model has no class token. ";
    }
    const seen = await SOURCES[state.show](model, image, from);
    const own = from.kind === "patch" ? cellAt(from, model.grid) : null;
    return {
      format: asShare,
      ...seen,
      own,
      from: describeFrom(model, from, own),
      notice: notice + (seen.notice ?? ""),
    };
  }

  function describeFrom(model, from, own) {
    if (from.kind === "patch") return placeName(own, model.grid);
    if (from.kind === "token" || !model.reads_patches) return "the class token";
    return "all patches, which the head pools";
  }

  /**
   * Returns the mean row of some matrices for what the map is seen from, or
   * null if the page holds only the row that the head of the model reads.
   */
  function rowFrom(from, model, rows, matrices) {
    const prefix = model.num_prefix_tokens;
    const isRead = from.kind !== "patch" && !isTokenBeside(from, model);
    if (!rows.isWhole) return isRead ? averageRows(rows, matrices, [0]) : null;
    const queries =
      from.kind === "patch"
        ? [prefix + cellAt(from, model.grid)]
        : isRead && model.reads_patches
          ? range(model.grid[0] * model.grid[1], prefix)
          : [0];
    return averageRows(rows, matrices, queries);
  }

  /** Returns whether it is a class token that the head does not read. */
  const isTokenBeside = (from, model) =>
    from.kind === "token" && model.reads_patches;

  const ONLY_READ =
    "Of this, the page holds only what the head of the model reads.";

  async function lookAtAttention(model, image, from) {
    const block = Math.min(state.block, model.blocks - 1);
    const head = state.head < model.heads ? state.head : MEAN;
    const wanted = head === MEAN ? range(model.heads) : [head];
    const { heads, read, mean } = image.attention[block];
    const name = (head) =>
      `Attention in block ${blockName(block, model)}, ` +
      (head === MEAN ? "mean of the heads" : `head ${head}`);
    const rows = await openRows(heads ?? read, model);
    const row = rowFrom(from, model, rows, wanted);
    if (row) {
      const notice =
        head === state.head
          ? ""
          : `This model has ${model.heads} heads; their mean is shown.`;
      return { row, caption: name(head), notice };
    }
    if (!mean) {
      return { row, caption: name(head), notice: ONLY_READ };
    }
    const notice =
      head === MEAN
        ? ""
        : "From a patch, this page holds the mean of the heads only.";
    const meanRows = await openRows(mean, model);
    const meanRow = rowFrom(from, model, meanRows, [0]);
    return { row: meanRow, caption: name(MEAN), notice };
  }

  async function lookAtRollout(model, image, from) {
    const rows = await openRows(image.rollout, model);
    const row = rowFrom(from, model, rows, [0]);
    const caption = `Rollout through all ${model.blocks} blocks`;
    return { row, caption, notice: row ? "" : ONLY_READ };
  }

  async function lookAtRelevance(model, image, from) {
    if (!image.relevance) {
      const notice = "This model has no head, and so no classes.";
      return { row: null, caption: "Relevance", notice };
    }
    const { classes } = image.relevance;
    const rank = Math.min(state.rank, classes.length - 1);
    const rows = await openRows(image.relevance, model);
    const row = rowFrom(from, model, rows, [rank]);
    return {
      row,
      caption: `Relevance for ${classes[rank].name}`,
      format: threeDigits,
      notice: row ? "" : ONLY_READ,
    };
  }

  const SOURCES = {
    attention: lookAtAttention,
    rollout: lookAtRollout,
    relevance: lookAtRelevance,
  };

  const EXPLANATIONS = {
    attention:
      "Attention: each token makes a mixture of all tokens; a map shows the " +
      "share that each patch has in it. The shares of all patches and of " +
      "the class token add up to 100 %.",
    rollout:
      "Rollout: the share of each patch of the image in a token behind the " +
      "last block, with the attention of all blocks multiplied and their " +
      "residual branches counted in (Abnar and Zuidema 2020).",
    relevance:
      "Relevance: which patches speak for a class, by attention times the " +
      "gradient of the logit of the class (Chefer et al. 2021). The numbers " +
      "have no unit; compare them within a map.",
  };
  const KEYS =
    " Hover, tap or use the arrow keys on the image to choose a patch, Home " +
    "and End for the ends of its row, Escape for what the head reads. The " +
    "numbers 1 to 5 mark the patches looked at most.";

  /* ------------------------------------------------------------- drawing */

  const palette = makePalette();

  /** Returns the bytes (red, green, blue) of 256 colours. */
  function makePalette() {
    const anchors = VIRIDIS.split(" ").map((hex) => parseInt(hex, 16));
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

  /* -------------------------------------------------------------- panels */

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
      this.drawStrongest(view, best);
      const words = this.describe(view, best);
      const notice = this.find("figcaption .notice");
      this.find(".caption").textContent = view.caption;
      this.find("figcaption .reading").textContent = words;
      notice.textContent = view.notice;
      notice.hidden = !view.notice;
      await Promise.all([
        this.drawNorms(view.own),
        this.drawSimilarity(view.own),
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
      this.drawPredictions();
    }

    drawPredictions() {
      const { predictions } = this.image;
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
      this.find(".predictions").replaceChildren(...lines);
      this.find(".about-predictions").textContent = predictions
        ? "The likeliest classes and their probabilities."
        : "This model has no head, and so no classes.";
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

    drawStrongest({ row, own, format }, best) {
      const columns = this.model.grid[1];
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
        const tokens = row.patches.length + this.model.num_prefix_tokens;
        lines.push(line(1 / tokens, wide("Each, if spread evenly")));
      }
      this.find(".strongest tbody").replaceChildren(...lines);
    }

    /** Returns a view in words. */
    describe({ row, own, from, format }, best) {
      if (!row) return "";
      const { grid } = this.model;
      if (this.readCell !== null) {
        const value = format(row.patches[this.readCell]);
        const name = capitalize(placeName(this.readCell, grid));
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

    async drawNorms(own) {
      const { model, image } = this;
      const block = Math.min(state.block, model.blocks - 1);
      const prefix = model.num_prefix_tokens;
      const length = prefix + model.grid[0] * model.grid[1];
      const buffer = await readPacket(image.norms);
      const norms = new Float32Array(buffer, 4 * block * length, length);
      const patches = norms.subarray(prefix);
      const [low, high] = [Math.min(...patches), Math.max(...patches)];
      const span = [threeDigits(low), threeDigits(high)];
      const canvas = this.find(".norms");
      drawMap(canvas, patches, model.grid, low, high);
      drawLegend(canvas.nextElementSibling, ...span);
      canvas.setAttribute(
        "aria-label",
        `Lengths of the patches behind block ${block}, ` +
          `from ${span.join(" to ")}`,
      );
      const sentences = [
        `Length of each patch's vector behind block ${block}.`,
        describeArtefacts(image.artefacts[block], model.grid),
      ];
      if (own !== null) {
        sentences.push(`The chosen patch: ${threeDigits(patches[own])}.`);
      }
      if (prefix) {
        sentences.push(`The class token: ${threeDigits(norms[0])}.`);
      }
      this.find(".about-norms").textContent = sentences.join(" ");
    }

    async drawSimilarity(own) {
      const canvas = this.find(".similarity");
      const found = this.model.similarity;
      canvas.hidden = canvas.nextElementSibling.hidden = !found;
      if (!found) {
        this.find(".about-similarity").textContent =
          "This model has no position embedding.";
        return;
      }
      const { packet, grid } = found;
      const middle = { y: 0.5, x: 0.5 };
      const place = own === null ? middle : middleOf(own, this.model.grid);
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
      this.find(".about-similarity").textContent =
        `Cosine of the position embedding of ${name}` +
        `${own === null ? ", in the middle," : ""} with those of all others: ` +
        "what the model knows of where patches are.";
    }
  }

  function describeArtefacts(cells, grid) {
    if (!cells.length) {
      return (
        "No patch is longer than three times the median; those would hold " +
        "something else than their patch."
      );
    }
    const named = cells.slice(0, 4).map((cell) => placeName(cell, grid));
    const more = cells.length > 4 ? ", and others" : "";
    return (
      `Longer than three times the median (${cells.length}), and so holding ` +
      `something else than their patch: ${named.join("; ")}${more}.`
    );
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

  /* ------------------------------------------------------ distances plot */

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
      svg.append(makeSvg("text", at, block));
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
      const head = `head ${state.head}`;
      const distance = rounded(heads[state.head]);
      return `${name}lock ${block}, ${head}: ${distance} pixels.`;
    }
    const mean = heads.reduce((sum, x) => sum + x, 0) / heads.length;
    return (
      `${name}lock ${block}: ${rounded(Math.min(...heads))} to ` +
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

  /* -------------------------------------------------------------- filters */

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

  /* ------------------------------------------------------------- controls */

  const controls = byId("controls");

  function setUpControls() {
    const ways = page.models.map((model) => model.reads_patches);
    const hasToken = page.models.some(
      (model) => model.num_prefix_tokens && model.reads_patches,
    );
    const radio = (name, value) =>
      controls.querySelector(`[name="${name}"][value="${value}"]`);
    const label = radio("from", "head").nextElementSibling;
    if (ways.every((way) => way === ways[0])) {
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
    block: ({ value }) => ({ block: Number(value) }),
    head: ({ value }) => ({ head: Number(value) }),
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
    block.max = model.blocks - 1;
    block.value = state.block;
    const name = blockName(state.block, model);
    block.setAttribute("aria-valuetext", name);
    byId("block-value").textContent = name;
    const heads = range(model.heads).map((head) => [head, String(head)]);
    fillSelect(byId("head"), [[MEAN, "Mean of all"], ...heads], state.head);
    const classes = panels[0].image.relevance?.classes ?? [];
    state.rank = clamp(state.rank, 0, Math.max(classes.length - 1, 0));
    const names = classes.map(({ name, probability }, rank) => [
      rank,
      `${name} (${asShare(probability)})`,
    ]);
    fillSelect(byId("rank"), names, state.rank);
    byId("opacity").value = state.opacity;
    byId("opacity").setAttribute("aria-valuetext", `${state.opacity} %`);
    byId("opacity-value").textContent = `${state.opacity} %`;
    byId("compare").checked = state.compare;
    byId("same").checked = state.same;
    byId("same").parentElement.hidden =
      !state.compare || state.show === "relevance";
    byId("explanation").textContent = EXPLANATIONS[state.show] + KEYS;
  }

  /* ---------------------------------------------------------------- page */

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
})();
