// The model: from pixels to the probabilities of the classes.

import { Tensor, loadAndCompile, loadLiteRt } from "@litertjs/core";
import { applySteps } from "./resize.js";

const ACTIVATIONS = {
  softmax(logits) {
    const most = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - most));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
  },
  sigmoid: (logits) => logits.map((logit) => 1 / (1 + Math.exp(-logit))),
};

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

/** Returns [{name, probability}, ...], the highest first. */
async function classify(model, description, image) {
  const { class_names: names, activation } = description;
  const scores = await run(model, prepare(image, description));
  const activate = ACTIVATIONS[activation] ?? ((scores) => scores);
  return activate([...scores])
    .map((probability, i) => ({ name: names[i], probability }))
    .sort((one, other) => other.probability - one.probability);
}

/** Returns the input of the model for an image. */
export function prepare(image, description) {
  const [low, high] = description.value_range;
  const { data } = applySteps(image, description.image_steps);
  return Float32Array.from(data, (x) => x / (255 / (high - low)) + low);
}

async function run(model, input) {
  const [{ shape }] = model.getInputDetails();
  const tensor = new Tensor(input, shape);
  let outputs = [];
  try {
    outputs = await model.run([tensor]);
    return await outputs[0].data();
  } finally {
    // LiteRT does not free the memory of tensors by itself.
    [tensor, ...outputs].forEach((each) => each.delete());
  }
}
