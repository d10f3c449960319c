// Resizing and cropping, as TensorFlow computes them. No canvas does: each
// browser has its own filter, and rounds to whole numbers.
//
// An image is {height, width, channels, data}, with data[(y * width + x) *
// channels + c] from 0 to 255.

/** Keys' cubic kernel with the parameter -0.5, by the distance in pixels. */
function keys(x) {
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/** Returns the parts of input pixels by a kernel as wide as `radius` pixels. */
function sample(place, ratio, radius, kernel) {
  const centre = (place + 0.5) * ratio;
  const scale = Math.max(ratio, 1);
  const first = Math.ceil(centre - radius * scale - 0.5);
  const last = Math.floor(centre + radius * scale - 0.5);
  const parts = [];
  for (let i = first; i <= last; i++) {
    parts.push(kernel(Math.abs(i + 0.5 - centre) / scale));
  }
  return { first, parts, cut: true };
}

/**
 * The filters: functions of the position of an output pixel and of the ratio of
 * input to output pixels. They return the first input pixel that has a part
 * in the output pixel, and the parts of it and of the next ones.
 */
const FILTERS = {
  // tf.image.resize(antialias=True): a triangle as wide as the output pixel.
  antialias: (place, ratio) =>
    sample(place, ratio, 1, (distance) => Math.max(0, 1 - distance)),

  // The same with method="bicubic".
  bicubic: (place, ratio) => sample(place, ratio, 2, keys),

  // tf.image.resize: between the two nearest pixels, however far the next
  // output pixel is.
  bilinear(place, ratio) {
    const centre = Math.fround(
      Math.fround(Math.fround(place + 0.5) * ratio) - 0.5,
    );
    const first = Math.floor(centre);
    return { first, parts: [first + 1 - centre, centre - first], cut: false };
  },

  // tf.image.resize(method="area"): the mean of the area of the output pixel.
  area(place, ratio) {
    const start = Math.fround(place * ratio);
    const end = Math.fround((place + 1) * ratio);
    const first = Math.floor(start);
    const parts = [];
    for (let i = first; i < Math.ceil(end); i++) {
      parts.push(Math.min(i + 1, end) - Math.max(i, start));
    }
    return { first, parts, cut: false };
  },
};

/** Returns the input pixels of each output pixel, and their parts. */
function mix(inputs, outputs, method) {
  const ratio = Math.fround(inputs / outputs);
  const clamp = (i) => Math.min(Math.max(i, 0), inputs - 1);
  return Array.from({ length: outputs }, (_, place) => {
    const { first, parts, cut } = FILTERS[method](place, ratio);
    // Beyond the edge, a filter is cut off or repeats the last pixel.
    const taps = parts
      .map((part, i) => ({ from: first + i, part }))
      .filter(({ from, part }) => part && (!cut || from === clamp(from)))
      .map(({ from, part }) => ({ from: clamp(from), part }));
    const sum = taps.reduce((total, { part }) => total + part, 0);
    return taps.map(({ from, part }) => ({ from, part: part / sum }));
  });
}

/** Resizes an image, ignoring its aspect ratio. */
export function resize(image, height, width, method) {
  const { channels } = image;
  const stride = image.width * channels;
  const rows = mix(image.height, height, method);
  const columns = mix(image.width, width, method);
  const data = new Float32Array(height * width * channels);
  const line = new Float32Array(stride);
  rows.forEach((taps, y) => {
    line.fill(0);
    for (const { from, part } of taps) {
      const start = from * stride;
      for (let i = 0; i < stride; i++) line[i] += part * image.data[start + i];
    }
    columns.forEach((parts, x) => {
      const place = (y * width + x) * channels;
      for (const { from, part } of parts) {
        for (let c = 0; c < channels; c++) {
          data[place + c] += part * line[from * channels + c];
        }
      }
    });
  });
  // A cubic kernel overshoots.
  if (method === "bicubic") {
    data.forEach((x, i) => (data[i] = Math.min(Math.max(x, 0), 255)));
  }
  return { height, width, channels, data };
}

/** Returns the nearest whole number; of two, the even one. */
function roundToEven(number) {
  const low = Math.floor(number);
  const rest = number - low;
  if (rest !== 0.5) return Math.round(number);
  return low % 2 ? low + 1 : low;
}

/** Cuts the middle out of an image that is very long. */
function cutLong(image, longest = 64) {
  const height = Math.min(image.height, longest * image.width);
  const width = Math.min(image.width, longest * image.height);
  const isWhole = height === image.height && width === image.width;
  return isWhole ? image : cropCentre(image, height, width);
}

/** Resizes an image so that its short side is `size`. */
function resizeSmall(image, size, method) {
  const scale = Math.fround(size / Math.min(image.height, image.width));
  const [height, width] = [image.height, image.width].map((side) =>
    roundToEven(Math.fround(side * scale)),
  );
  return resize(image, height, width, method);
}

/** Resizes an image to the smallest size that covers height and width. */
function resizeToCover(image, height, width, method) {
  const { height: rows, width: columns } = image;
  const size =
    rows * width >= columns * height
      ? [Math.max(Math.floor((width * rows) / columns), height), width]
      : [height, Math.max(Math.floor((height * columns) / rows), width)];
  return resize(image, ...size, method);
}

/** Cuts out the middle of an image. */
function cropCentre(image, height, width) {
  const { channels } = image;
  if (image.height < height || image.width < width) {
    throw new Error(
      `The photo must have ${width} x ${height} pixels or more. ` +
        `It has ${image.width} x ${image.height}.`,
    );
  }
  const top = Math.floor((image.height - height) / 2);
  const left = Math.floor((image.width - width) / 2);
  const data = new Float32Array(height * width * channels);
  for (let y = 0; y < height; y++) {
    const start = ((top + y) * image.width + left) * channels;
    data.set(
      image.data.subarray(start, start + width * channels),
      y * width * channels,
    );
  }
  return { height, width, channels, data };
}

const STEPS = {
  resize: (image, { height, width, method }) =>
    resize(image, height, width, method),
  resize_to_cover: (image, { height, width, method }) =>
    resizeToCover(cutLong(image), height, width, method),
  resize_small: (image, { size, method = "area" }) =>
    resizeSmall(cutLong(image), size, method),
  central_crop: (image, { height, width }) => cropCentre(image, height, width),
};

/** Returns an image after the steps of a description of a model. */
export function applySteps(image, steps) {
  return steps.reduce((result, step) => STEPS[step.kind](result, step), image);
}
