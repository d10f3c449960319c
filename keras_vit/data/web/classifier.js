// The model: from pixels to the probabilities of the classes, or to maps.

import { Tensor, loadAndCompile, loadLiteRt } from "@litertjs/core";
import { nameClasses, normalize } from "./description.js";
import { readMap } from "./overlay.js";
import { applySteps } from "./resize.js";

/** Loads the description of the model, LiteRT and the model. */
export async function loadClassifier() {
  const [description] = await Promise.all([
    fetchJson("model.json"),
    loadLiteRt("litert/wasm/"),
  ]);
  // On a GPU the numbers would be those of 16 bits.
  const model = await loadAndCompile("model.tflite", { accelerator: "wasm" });
  return { description, classify: (image) => classify(model, description, image) };
}

async function fetchJson(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.statusText}`);
  return response.json();
}

/**
 * Returns the classes, see `nameClasses`; or of a model with an answer for
 * each pixel {map, picture}, see `Overlay`.
 */
async function classify(model, description, image) {
  const picture = applySteps(image, description.image_steps);
  const outputs = await run(model, normalize(picture, description));
  if (!description.task) return nameClasses(outputs, description);
  return { map: readMap(outputs, description), picture };
}

/** Returns the outputs for one image, arrays by name. */
async function run(model, input) {
  const [{ name, shape }] = model.getInputDetails();
  const tensor = new Tensor(input, shape);
  let outputs = {};
  try {
    outputs = await model.run({ [name]: tensor });
    const arrays = Object.entries(outputs).map(
      async ([key, each]) => [key, await each.data()],
    );
    return Object.fromEntries(await Promise.all(arrays));
  } finally {
    // LiteRT does not free the memory of tensors by itself.
    [tensor, ...Object.values(outputs)].forEach((each) => each.delete());
  }
}
