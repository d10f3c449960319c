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
  const { data } = applySteps(image, description.image_steps);
  const { mean, deviation } = description;
  if (!mean) return data.map(Math.round); // It takes pixels.
  return Float32Array.from(data, (x, i) => {
    const channel = i % mean.length; // One of the pixel i / mean.length.
    return x / (255 * deviation[channel]) - mean[channel] / deviation[channel];
  });
}

/** Returns [{name, probability, threshold}, ...] for the outputs, the highest first. */
export function nameClasses(scores, { class_names: names, activation, thresholds }) {
  const activate = ACTIVATIONS[activation] ?? ((scores) => scores);
  return activate([...scores])
    .map((probability, i) => ({ name: names[i], probability, threshold: thresholds?.[i] }))
    .sort((one, other) => other.probability - one.probability);
}

/**
 * Returns the classes to show: of several labels those at their thresholds.
 * Without any, and of one label, they are the first ones.
 */
export function chooseClasses(classes, most) {
  const labels = classes.filter(({ probability, threshold }) => probability >= threshold);
  const hasThresholds = classes.some(({ threshold }) => threshold !== undefined);
  return {
    classes: labels.length ? labels : classes.slice(0, most),
    hasNoLabel: hasThresholds && !labels.length,
  };
}
