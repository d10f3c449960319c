// What an export says about its model: from a photo to its input, and from its
// outputs to the names of classes.

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

/** Returns the input of the model for an image: (height, width, channels). */
export function prepare(image, description) {
  return normalize(applySteps(image, description.image_steps), description);
}

/** Returns the input for an image of the size of the model. */
export function normalize({ data }, description) {
  const { mean, deviation } = description;
  if (!mean) return data.map(Math.round); // It takes pixels.
  return Float32Array.from(data, (x, i) => {
    const channel = i % mean.length; // One of the pixel i / mean.length.
    return x / (255 * deviation[channel]) - mean[channel] / deviation[channel];
  });
}

/**
 * Returns the classes for the outputs of an image, arrays or numbers by name:
 * {classes: [{name, probability, threshold}, ...], isKnown}, the highest first.
 */
export function nameClasses(outputs, description) {
  const { class_names: names, activation, thresholds } = description;
  const activate = ACTIVATIONS[activation] ?? ((scores) => scores);
  const classes = activate([...outputs[description.output]])
    .map((probability, i) => ({ name: names[i], probability, threshold: thresholds?.[i] }))
    .sort((one, other) => other.probability - one.probability);
  return { classes, isKnown: isKnown(outputs) };
}

/** Returns whether the image shows what the model has learned, if it tells. */
export function isKnown(outputs) {
  return Number(outputs.is_known ?? true) === 1;
}

/**
 * Returns the classes to show, and a note: of several labels those at their
 * thresholds. Without any, and of one label, they are the first ones.
 */
export function chooseClasses({ classes, isKnown }, most) {
  const first = classes.slice(0, most);
  if (!isKnown) {
    const note = "Unknown: this does not look like what the model has learned. " +
      "The most probable classes:";
    return { classes: first, note };
  }
  const labels = classes.filter(({ probability, threshold }) => probability >= threshold);
  if (labels.length) return { classes: labels, note: "" };
  const hasThresholds = classes.some(({ threshold }) => threshold !== undefined);
  const note = hasThresholds && "No label reaches its threshold. The most probable ones:";
  return { classes: first, note: note || "" };
}
