// The page of the server: a photo, its classes, and where the model looks; or
// the map of its pixels.

import { chooseClasses, isKnown, nameClasses, prepare } from "./description.js";
import { makeOverlay, readMap } from "./overlay.js";
import { readPhoto } from "./photo.js";
import { applySteps } from "./resize.js";

// The signatures of a SavedModel that take image files.
const CLASSES = "serve_bytes";
const ATTENTION = "attention_bytes";
const MOST_CLASSES = 5;

const find = (id) => document.getElementById(id);
let descriptions = {}; // Of the models, by name; null of those without one.
let signatures = {};
let overlay = null; // Of a model with an answer for each pixel.
let opened = Promise.resolve(); // Done when the chosen model is known.
let stream = null;
let latest = 0;

async function ask(path, body) {
    const response = await fetch(path, body && { method: "POST", body });
    const text = await response.text();
    let answer;
    try {
        answer = JSON.parse(text);
    } catch {
        throw new Error(`The server answered ${response.status}`);
    }
    if (!response.ok) {
        throw new Error(answer.error ?? `The server answered ${response.status}`);
    }
    return answer;
}

function address() {
    return `v1/models/${encodeURIComponent(find("model").value)}`;
}

function say(text) {
    find("message").textContent = text;
    document.documentElement.dataset.state = "ready";
}

function open(models) {
    opened = models;
    opened.catch((error) => say(error.message));
}

async function openModels() {
    descriptions = await ask("models.json");
    const names = Object.keys(descriptions);
    if (!names.length) {
        throw new Error("No model is loaded.");
    }
    find("model").replaceChildren(...names.map((name) => new Option(name)));
    await openModel();
}

async function openModel() {
    const answer = await ask(`${address()}/metadata`);
    signatures = answer.metadata.signature_def.signature_def;
    find("version").textContent = `version ${answer.model_spec.version}`;
    find("result").hidden = true;
    overlay = description()?.task ?
        await makeOverlay(find("overlay"), description()) : null;
    find("overlay").hidden = !overlay;
    find("classes").parentElement.hidden = Boolean(overlay);
    const canClassify = CLASSES in signatures ?
        overlay || "labels" in signatures[CLASSES].outputs :
        canRead() && (overlay || (description()?.class_names && description().image_steps));
    say(canClassify ? "" :
        "This model does not return the classes of image files. Exports of " +
        "classifiers do; a TFLite file needs the file model.json beside it.");
}

// Whether the page reads photos as the model does: in 8 bits, grey or in colour.
function canRead() {
    const { input, pixel_range } = description() ?? {};
    return [1, 3].includes(input?.channels) && !pixel_range;
}

function description() {
    return descriptions[find("model").value];
}

function read(file) {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
        reader.onerror = () => reject(new Error("The file cannot be read."));
        reader.readAsDataURL(file);
    });
}

async function predict(signature, instance) {
    const body = { signature_name: signature, instances: [instance] };
    const answer = await ask(`${address()}:predict`, JSON.stringify(body));
    return answer.predictions[0];
}

// Returns what to show of a photo, see `chooseClasses` and `Overlay`.
async function classify(file) {
    if (CLASSES in signatures) {
        const outputs = await predict(CLASSES, { b64: await read(file) });
        if (overlay) {
            return overlayOf(outputs, await readPicture(file));
        }
        const { labels, probabilities, thresholds } = outputs;
        const classes = labels.map((name, i) =>
            ({ name, probability: probabilities[i], threshold: thresholds?.[i] }));
        // Of one label, the export says how many.
        const most = thresholds ? MOST_CLASSES : labels.length;
        return chooseClasses({ classes, isKnown: isKnown(outputs) }, most);
    }
    // A TFLite file cannot read image files, so the page does.
    if (!canRead()) {
        throw new Error("This page reads photos of 8 bits, grey or in colour. " +
            "The model takes others: send arrays of numbers.");
    }
    const { width, channels } = description().input;
    const image = await readPhoto(file, channels);
    const numbers = [...prepare(image, description())];
    const instance = group(group(numbers, channels), width);
    let outputs = await predict("serving_default", instance);
    if (Array.isArray(outputs)) { // The answer names only several outputs.
        outputs = { [description().output]: outputs };
    }
    if (overlay) {
        return overlayOf(outputs, applySteps(image, description().image_steps));
    }
    return chooseClasses(nameClasses(outputs, description()), MOST_CLASSES);
}

function overlayOf(outputs, picture) {
    return { map: readMap(outputs, description()), picture };
}

// Returns a photo as the model sees it; null if the browser cannot read it,
// though the server may: TIFF is such a format.
async function readPicture(file) {
    if (!canRead()) {
        return null;
    }
    try {
        const image = await readPhoto(file, description().input.channels);
        return applySteps(image, description().image_steps);
    } catch {
        return null;
    }
}

// Returns a list in parts of the same size.
function group(list, size) {
    return Array.from({ length: list.length / size }, (_, i) =>
        list.slice(i * size, (i + 1) * size));
}

function showClasses({ classes, note }) {
    find("note").textContent = note;
    find("classes").replaceChildren(...classes.map(({ name, probability }) => {
        const row = document.createElement("tr");
        const bar = document.createElement("progress");
        bar.value = probability;
        bar.ariaHidden = "true";
        row.insertCell().textContent = name;
        row.insertCell().append(bar, ` ${(100 * probability).toFixed(1)} %`);
        return row;
    }));
}

// Draws a grid of colours, one pixel each.
function paint(canvas, rows, colour) {
    canvas.height = rows.length;
    canvas.width = rows[0].length;
    const image = new ImageData(canvas.width, canvas.height);
    rows.flat(1).forEach((value, i) => image.data.set(colour(value), 4 * i));
    canvas.getContext("2d").putImageData(image, 0, 0);
}

function showAttention({ images, rollout }) {
    paint(find("seen"), images, (pixel) => {
        const levels = pixel.map((level) => 255 * level);
        return [levels[0], levels[1] ?? levels[0], levels[2] ?? levels[0], 255];
    });
    // The darker, the less a patch contributes.
    const most = Math.max(...rollout.flat());
    paint(find("heat"), rollout, (share) => [0, 0, 0, 215 * (1 - share / most)]);
}

async function show(file) {
    const mine = ++latest;
    try {
        await opened; // The photo may be there before the model.
        if (mine !== latest) {
            return;
        }
        document.documentElement.dataset.state = "busy";
        find("message").textContent = "The model is looking at the photo …";
        find("result").hidden = true;
        const answer = await classify(file);
        const looks = ATTENTION in signatures &&
            await predict(ATTENTION, { b64: await read(file) });
        if (mine !== latest) {
            return; // Another photo was chosen meanwhile.
        }
        URL.revokeObjectURL(find("photo").src);
        find("photo").src = URL.createObjectURL(file);
        if (answer.map) {
            find("note").textContent = "";
            overlay.show(answer);
        } else {
            showClasses(answer);
        }
        find("look").hidden = !looks;
        if (looks) {
            showAttention(looks);
        }
        find("result").hidden = false;
        say("");
    } catch (error) {
        if (mine === latest) {
            say(error.message);
        }
    }
}

async function startCamera() {
    try {
        stream = await navigator.mediaDevices.getUserMedia({
            video: { facingMode: "environment" },
        });
    } catch (error) {
        say(`The camera cannot be used: ${error.message}`);
        return;
    }
    find("video").srcObject = stream;
    find("live").hidden = false;
}

function stopCamera() {
    stream?.getTracks().forEach((track) => track.stop());
    find("live").hidden = true;
}

function takePhoto() {
    const video = find("video");
    const canvas = document.createElement("canvas");
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((photo) => photo && show(photo), "image/png");
}

// Shows the first file of a drop or of the clipboard.
function take(event, transfer) {
    event.preventDefault();
    find("drop").classList.remove("over");
    if (transfer.files.length) {
        show(transfer.files[0]);
    }
}

find("model").onchange = () => {
    latest++; // What was asked of the other model is not shown.
    open(openModel());
};
find("file").onchange = (event) => {
    if (event.target.files.length) {
        show(event.target.files[0]);
        event.target.value = ""; // The same file may be chosen again.
    }
};
find("camera").onclick = startCamera;
find("shoot").onclick = takePhoto;
find("end").onclick = stopCamera;
// Not every browser shows every file that the server reads, such as TIFF.
find("photo").onload = find("photo").onerror = ({ type }) => {
    find("photo").parentElement.hidden = type === "error";
};
find("show").onchange = (event) => {
    find("heat").hidden = !event.target.checked;
};
document.ondragover = (event) => {
    event.preventDefault();
    find("drop").classList.add("over");
};
document.ondragleave = () => find("drop").classList.remove("over");
document.ondrop = (event) => take(event, event.dataTransfer);
document.onpaste = (event) => take(event, event.clipboardData);

open(openModels());
