// From a photo or a frame of the camera to pixels.

/**
 * Returns the pixels of an image file, turned upright by its Exif data. The
 * numbers are those of the file: no colour profile is applied, since the
 * training did not apply any.
 */
export async function readPhoto(file, channels) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, {
      imageOrientation: "from-image",
      colorSpaceConversion: "none",
      premultiplyAlpha: "none",
    });
  } catch {
    throw new Error(
      `${file.name || "This"} is not an image that this browser can read. ` +
        "Most browsers read JPEG, PNG, WebP and AVIF files, but not HEIC.",
    );
  }
  try {
    return readPixels(bitmap, bitmap.width, bitmap.height, channels);
  } finally {
    bitmap.close();
  }
}

/** Returns the pixels of a bitmap or of the current frame of a video. */
export function readPixels(source, width, height, channels) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("The photo is too large for this browser.");
  // At its own size, since browsers resize in different ways.
  context.drawImage(source, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  return { height, width, channels, data: pickChannels(data, channels) };
}

/** Returns colours, or grey levels as JPEG files store them. */
function pickChannels(rgba, channels) {
  const count = rgba.length / 4;
  const data = new Uint8ClampedArray(count * channels);
  for (let i = 0; i < count; i++) {
    const [r, g, b] = [rgba[4 * i], rgba[4 * i + 1], rgba[4 * i + 2]];
    if (channels === 1) {
      data[i] = 0.299 * r + 0.587 * g + 0.114 * b;
    } else {
      data[3 * i] = r;
      data[3 * i + 1] = g;
      data[3 * i + 2] = b;
    }
  }
  return data;
}
