// Packed numbers, opened; and arithmetic on them.

const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("content").textContent);

// A head of this number stands for the mean of all.
const MEAN = -1;
const NUM_STRONGEST = 5;

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
 * Returns the rows that `pack_rows` of keras_vit/analysis/page.py packed.
 *
 * Of the T tokens that a row goes to, the last N are patches. A row is
 * { patches: N numbers, token: what goes to the class token or null }.
 */
async function openRows({ packet, shape }, model) {
  const [matrices, queries, tokens] = shape;
  const prefix = model.num_prefix_tokens;
  const hasToken = model.has_class_token;
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
    if (hasToken) sum.token += weight * toPrefix[row * prefix];
  }

  return { add, width, hasToken, isWhole: queries === tokens };
}

/** Returns the mean of some rows of some matrices. */
function averageRows(rows, matrices, queries) {
  const mean = {
    patches: new Float64Array(rows.width),
    token: rows.hasToken ? 0 : null,
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
