// The page: takes photos and frames of the camera, shows the classes or the
// map of the pixels.

import { startCamera, stopCamera } from "./camera.js";
import { loadClassifier } from "./classifier.js";
import { chooseClasses } from "./description.js";
import { makeOverlay } from "./overlay.js";
import { readPhoto, readPixels } from "./photo.js";

const MOST_CLASSES = 5;
const byId = (name) => document.getElementById(name);
const [video, picture, drop] = ["video", "picture", "drop"].map(byId);
let classifier = null;
let overlay = null;  // Of a model with an answer for each pixel.
let turns = 0;  // Photos so far.

/** Shows the state of the page, which tests and screen readers wait for. */
function say(text, state) {
  byId("status").textContent = text;
  document.documentElement.dataset.state = state;
}

function showClasses({ classes, note }) {
  const rows = classes.map(({ name, probability }) => {
    const row = byId("row").content.firstElementChild.cloneNode(true);
    row.dataset.probability = probability;
    row.querySelector(".name").textContent = name;
    row.querySelector("meter").value = probability;
    row.querySelector(".share").textContent = `${(100 * probability).toFixed(1)} %`;
    return row;
  });
  byId("classes").replaceChildren(...rows);
  byId("note").textContent = note;
}

/** Classifies pixels, and shows the classes or the map, and the time. */
async function answer(image) {
  const start = performance.now();
  const found = await classifier.classify(image);
  if (overlay) overlay.show(found);
  else showClasses(chooseClasses(found, MOST_CLASSES));
  const milliseconds = Math.round(performance.now() - start);
  const size = `${image.width} x ${image.height} pixels`;
  return `${size}, answered in ${milliseconds} ms on this machine.`;
}

async function showPhoto(file) {
  const turn = ++turns;
  closeCamera();
  say("Looking at the photo ...", "busy");
  URL.revokeObjectURL(picture.src);
  picture.src = URL.createObjectURL(file);
  picture.hidden = false;
  picture.alt = file.name;
  byId("hint").hidden = true;
  // Computing blocks the page: let it draw before.
  await nextFrame();
  const image = await readPhoto(file, classifier.description.input.channels);
  // Meanwhile, another photo may have been chosen.
  if (turn === turns) say(await answer(image), "answered");
}

async function toggleCamera() {
  if (video.srcObject) return closeCamera();
  say("Waiting for the camera ...", "busy");
  await startCamera(video);
  picture.hidden = true;
  byId("hint").hidden = true;
  video.hidden = false;
  byId("camera").textContent = "Stop the camera";
  while (video.srcObject) {
    const { videoWidth, videoHeight } = video;
    const { channels } = classifier.description.input;
    const frame = readPixels(video, videoWidth, videoHeight, channels);
    const text = await answer(frame);
    if (video.srcObject) say(text, "answered");
    await nextFrame();
  }
}

function closeCamera() {
  if (!video.srcObject) return;
  stopCamera(video);
  video.hidden = true;
  byId("hint").hidden = false;
  byId("camera").textContent = "Use the camera";
  say("The camera is off.", "ready");
}

function nextFrame() {
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}

/** Runs a function; if it fails, shows why. */
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    showClasses({ classes: [], note: "" });
    overlay?.hide();
    say(error.message, "failed");
  }
}

function listen() {
  // The message says what is wrong with the file.
  picture.onerror = () => (picture.hidden = true);
  const takeFirst = (files) => {
    if (files.length) attempt(() => showPhoto(files[0]));
  };
  byId("file").addEventListener("change", ({ target }) => {
    takeFirst([...target.files]);
    target.value = "";  // So that the same photo can be chosen again.
  });
  byId("camera").addEventListener("click", () => attempt(toggleCamera));
  addEventListener("pagehide", closeCamera);
  addEventListener("paste", (event) => takeFirst(event.clipboardData.files));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  addEventListener("dragleave", () => drop.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    takeFirst(event.dataTransfer.files);
  });
  ["file", "camera"].forEach((name) => {
    byId(name).disabled = false;
  });
}

attempt(async () => {
  classifier = await loadClassifier();
  const { class_names: names, input, task } = classifier.description;
  if (task) overlay = await makeOverlay(byId("overlay"), classifier.description);
  byId("classes").parentElement.hidden = Boolean(task);
  byId("summary").textContent =
    `${names ? `${names.length} classes` : "Depths"}, ${input.width} x ${input.height} pixels. ` +
    "Photos stay in this browser.";
  listen();
  say("Choose a photo, drop one here, or use the camera.", "ready");
});
