// The page of the server: a photo, its classes, and where the model looks.

// The signatures of an export that take image files.
const CLASSES = "serve_bytes";
const ATTENTION = "attention_bytes";

const find = (id) => document.getElementById(id);
let signatures = {};
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

async function openModels() {
    const names = await ask("models.json");
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
    const outputs = signatures[CLASSES]?.outputs ?? {};
    say("labels" in outputs ? "" :
        "This export does not return the classes of image files. A SavedModel " +
        "of a classifier does: export with --formats=saved_model.");
}

function read(file) {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
        reader.onerror = () => reject(new Error("The file cannot be read."));
        reader.readAsDataURL(file);
    });
}

async function predict(signature, text) {
    const body = { signature_name: signature, instances: [{ b64: text }] };
    const answer = await ask(`${address()}:predict`, JSON.stringify(body));
    return answer.predictions[0];
}

function showClasses({ labels, probabilities }) {
    find("classes").replaceChildren(...labels.map((label, i) => {
        const row = document.createElement("tr");
        const bar = document.createElement("progress");
        bar.value = probabilities[i];
        bar.ariaHidden = "true";
        row.insertCell().textContent = label;
        row.insertCell().append(bar, ` ${(100 * probabilities[i]).toFixed(1)} %`);
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
    document.documentElement.dataset.state = "busy";
    find("message").textContent = "The model is looking at the photo …";
    find("result").hidden = true;
    try {
        const text = await read(file);
        const classes = await predict(CLASSES, text);
        const looks = ATTENTION in signatures && await predict(ATTENTION, text);
        if (mine !== latest) {
            return; // Another photo was chosen meanwhile.
        }
        URL.revokeObjectURL(find("photo").src);
        find("photo").src = URL.createObjectURL(file);
        showClasses(classes);
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

find("model").onchange = () => openModel().catch((error) => say(error.message));
find("file").onchange = (event) => {
    if (event.target.files.length) {
        show(event.target.files[0]);
        event.target.value = ""; // The same file may be chosen again.
    }
};
find("camera").onclick = startCamera;
find("shoot").onclick = takePhoto;
find("end").onclick = stopCamera;
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

openModels().catch((error) => say(error.message));
