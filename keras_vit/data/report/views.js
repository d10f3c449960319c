// The selected rows of the maps, and their captions.

/**
 * Returns the selected row of the maps, with its description.
 *
 * { row, own: the query patch or null, caption, from: the query in words,
 *   format: formats its numbers, notice: a remark }; row is null if the page
 *   does not contain it.
 */
async function findView(model, image) {
  const from = currentFrom();
  let notice = "";
  if (from.kind === "token" && !model.has_class_token) {
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
  if (from.kind !== "token" && model.reads_patches) {
    return "all patches, which the head pools";
  }
  return from.kind === "token" || String(model.read_prefix) === "0"
    ? "the class token"
    : "the tokens before the patches that the head reads";
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
        : isRead
          ? model.read_prefix
          : [0];
  return averageRows(rows, matrices, queries);
}

/** Returns whether it is a class token that the head does not read alone. */
const isTokenBeside = (from, model) =>
  from.kind === "token" &&
  (model.reads_patches || String(model.read_prefix) !== "0");

const ONLY_READ =
  "This page contains attention only for the tokens that the head reads.";

async function lookAtAttention(model, image, from) {
  const block = Math.min(state.block, model.blocks - 1);
  const head = state.head < model.heads ? state.head : MEAN;
  const wanted = head === MEAN ? range(model.heads) : [head];
  const { heads, read } = image.attention[block];
  const rows = await openRows(heads ?? read, model);
  const row = rowFrom(from, model, rows, wanted);
  const name = head === MEAN ? "mean of the heads" : `head ${head + 1}`;
  const notices = [row ? "" : ONLY_READ];
  if (head !== state.head) {
    notices.push(`This model has ${model.heads} heads; their mean is shown.`);
  }
  return {
    row,
    caption: `Attention in block ${blockName(block, model)}, ${name}`,
    notice: notices.filter(Boolean).join(" "),
  };
}

async function lookAtRollout(model, image, from) {
  const rows = await openRows(image.rollout, model);
  const row = rowFrom(from, model, rows, [0]);
  return { row, caption: `Rollout through all ${model.blocks} blocks` };
}

async function lookAtRelevance(model, image, from) {
  if (!image.relevance) {
    const notice = "This model has no head, and therefore no classes.";
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
  };
}

const SOURCES = {
  attention: lookAtAttention,
  rollout: lookAtRollout,
  relevance: lookAtRelevance,
};

const EXPLANATIONS = {
  attention:
    "Attention: a block computes each token as a weighted mean over all " +
    "tokens; the map shows the weight of each patch. The weights of all " +
    "tokens sum to 100 %.",
  rollout:
    "Rollout: the share of each patch of the image in a token after the " +
    "last block: the product of the attention of all blocks, including " +
    "their shortcuts (Abnar and Zuidema 2020).",
  relevance:
    "Relevance: the patches that support a class, from the attention times " +
    "the gradient of the class logit (Chefer et al. 2021). The numbers " +
    "have no unit; compare them only within a map.",
};
const KEYS =
  " Hover, tap or use the arrow keys on the image to choose a patch, Home " +
  "and End for the ends of its row, Escape for what the head reads. The " +
  "numbers 1 to 5 mark the patches looked at most.";
