"""The models of an export on the disk: SavedModels and TFLite files.

Each is a function of arrays by name, with the signatures of TF Serving.
"""

import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.serving.client import (
    SIGNATURE_DTYPES,
    ServingError,
    read_signatures,
)
from keras_vit.serving.tf_serving import (
    DESCRIPTION_FILE,
    WARMUP_FILE,
    find_versions,
    read_signature_defs,
    read_warmup,
)

# The folders of an export that can be served, the preferred one first.
SERVED_FORMATS = ("saved_model", "tflite")

server_logger = logging.getLogger("keras_vit.serving.server")


@dataclasses.dataclass(eq=False)
class LoadedModel:
    """A version of a model in memory.

    Args:
        signature_defs: SignatureDefs by name, in their JSON form.
        call: Takes the name of a signature and its inputs; returns its
            outputs, both arrays by name.
        description: For the page; None if the export has none. See
            `keras_vit.export.contract.ExportRequest.describe`.
        pixel_range: The black and white of image files of more than 8 bits.
    """

    signature_defs: Mapping[str, dict]
    call: Callable[[str, Mapping], dict[str, np.ndarray]]
    description: dict | None = None
    pixel_range: tuple[float, float] | None = None

    def __post_init__(self):
        self.signatures = read_signatures(self.signature_defs)
        shapes = [
            spec.shape
            for signature in self.signatures.values()
            for spec in signature.inputs.values()
            if spec.shape and len(spec.shape) == 4
        ]
        # Of the images that the model takes, in pixels; 0 if any.
        self.image_side = max(
            (m or 0 for x in shapes for m in x[1:3]), default=0
        )
        channels = shapes[0][-1] if shapes else 3
        # Of image files; those of other channels are none.
        self.channels = channels if channels in (1, 4) else 3


def load_version(folder: pathlib.Path) -> LoadedModel:
    """Load the SavedModel or the TFLite file in the folder of a version.

    Raises:
        ValueError: If it holds neither, or several .tflite files.
        Exception: If the model cannot be loaded.
    """
    if (folder / "saved_model.pb").exists():
        return load_saved_model(folder)
    files = sorted(folder.glob("*.tflite"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "neither"
        raise ValueError(
            f"{folder} must hold saved_model.pb or one .tflite file. "
            f"Received: {names}"
        )
    path = folder / "model.json"
    description = json.loads(path.read_text("utf-8")) if path.exists() else None
    return load_litert(files[0].read_bytes(), description)


def load_saved_model(folder: pathlib.Path) -> LoadedModel:
    """Load a SavedModel, and run the requests of its warm-up file."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder), tags=["serve"])
    faults = (tf.errors.InvalidArgumentError, TypeError, ValueError)

    def call(name, inputs):
        tensors = {key: tf.constant(x) for key, x in inputs.items()}
        try:
            outputs = loaded.signatures[name](**tensors)
        except faults as error:
            text = shorten_error(str(error))
            raise ServingError(text, "INVALID_ARGUMENT") from None
        return {key: x.numpy() for key, x in sorted(outputs.items())}

    path = folder / WARMUP_FILE
    # As in TF Serving, a version that fails at its warm-up is not served.
    if path.exists() and importlib.util.find_spec("tensorflow_serving"):
        for record in read_warmup(path):
            call(record.signature, record.inputs)
    path = folder / DESCRIPTION_FILE
    about = json.loads(path.read_text("utf-8")) if path.exists() else None
    return LoadedModel(
        read_signature_defs(folder),
        call,
        about,
        pixel_range=about and about.get("pixel_range"),
    )


def shorten_error(message: str) -> str:
    r"""Return the first line of TensorFlow's message that is not about graphs.

    Example:
        >>> shorten_error("Graph execution error:\n\nDetected at node x\n"
        ...               "Unknown image file format.\n\t [[{{node x}}]]")
        'Unknown image file format.'
    """
    graph = ("Graph execution error", "Detected at node", "<stack", "\t [[")
    for line in message.splitlines():
        if line.strip() and not line.startswith(graph):
            return line.partition(" [Op:")[0].strip()
    return message.strip()


def load_litert(content: bytes, description: dict | None = None) -> LoadedModel:
    """Load a TFLite file with one signature of one input.

    Integers with a scale are shown as the floats that they stand for, and a
    fixed batch size as any.

    Raises:
        ValueError: If the file is damaged.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    signature, inputs, outputs, run = open_litert(interpreter)
    [(name, info)] = inputs.items()

    def call(_, inputs):
        images = inputs[name]
        size = max(info["shape_signature"][0], 0) or len(images)
        return run_in_batches(run, images, size)

    signature_def = {
        "inputs": _describe(inputs),
        "outputs": _describe(outputs),
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }
    return LoadedModel({signature: signature_def}, call, description)


def run_in_batches(run: Callable, inputs: np.ndarray, batch_size: int):
    """Return the outputs of `run`, arrays by name, for all inputs.

    Args:
        run: Takes a batch of inputs; returns its outputs.
        inputs: The inputs, (B, ...).
        batch_size: Size of the batches.
    """
    parts = [run(batch) for batch in batches(inputs, batch_size)]
    return {
        name: np.concatenate([part[name] for part in parts])[: len(inputs)]
        for name in parts[0]
    }


def batches(inputs: np.ndarray, batch_size: int):
    """Yield full batches; the last input is repeated to fill the last one."""
    for start in range(0, len(inputs), batch_size):
        indices = range(start, start + batch_size)
        yield np.take(inputs, indices, 0, mode="clip")


def open_litert(interpreter) -> tuple[str, dict, dict, Callable]:
    """Return what runs a TFLite file with one signature of one input.

    That is the name of the signature, LiteRT's details of its inputs and
    outputs, and a function of a batch that returns the outputs by name.
    Integers with a scale stand for floats.
    """
    [signature] = interpreter.get_signature_list()
    runner = interpreter.get_signature_runner(signature)
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    [(name, info)] = inputs.items()
    scale, zero = info["quantization"]

    wanted = [*map(int, info["shape_signature"])]

    def run(images):
        # LiteRT would take any shape of as many numbers.
        pairs = zip(wanted, images.shape, strict=False)
        if len(wanted) != images.ndim or any(
            size not in (-1, given) for size, given in pairs
        ):
            raise ValueError(
                f"`{name}` must have the shape {wanted}, -1 for any length. "
                f"Received: shape={images.shape}"
            )
        if scale:
            bounds = np.iinfo(info["dtype"])
            images = np.round(images / scale) + zero
            images = np.clip(images, bounds.min, bounds.max)
        found = runner(**{name: images.astype(info["dtype"])})
        for key, row in outputs.items():
            out_scale, out_zero = row["quantization"]
            if out_scale:
                number = found[key].astype("float32")
                found[key] = (number - out_zero) * out_scale
        return found

    return signature, inputs, outputs, run


def _describe(details):
    """Return the TensorInfos of LiteRT's tensors, in their JSON form."""
    names = {dtype: name for name, dtype in SIGNATURE_DTYPES.items()}
    infos = {}
    for name, row in details.items():
        has_scale = row["quantization"][0]
        sizes = (-1, *row["shape_signature"][1:])
        axes = [{"size": str(size), "name": ""} for size in sizes]
        infos[name] = {
            "dtype": names["float32" if has_scale else row["dtype"].__name__],
            "tensor_shape": {"dim": axes, "unknown_rank": False},
            "name": row["name"],
        }
    return infos


def find_models(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the folders of the models in a folder, by their names.

    Args:
        folder: An export, the folder of one of its formats, the folder of a
            model, or a run with an export.

    Raises:
        ValueError: If there is no model.
    """
    if (folder / "export").is_dir():
        folder = folder / "export"
    if find_versions(folder):
        return {folder.resolve().name: folder}
    for place in (*(folder / name for name in SERVED_FORMATS), folder):
        paths = sorted(place.glob("[!.]*"))
        if found := {path.name: path for path in paths if find_versions(path)}:
            return found
    hint = ""
    if folder.resolve().name.isdecimal():
        hint = ", the folder of a model and not of a version,"
    raise ValueError(
        f"EXPORT_DIR must hold an export{hint} as "
        f"{'|'.join(SERVED_FORMATS)}/NAME/VERSION; `keras-vit export` writes "
        f"one. Received: {folder}"
    )


class ServedModel:
    """The newest version of a model on the disk.

    A new version is loaded before the old one is given up. If it cannot be
    loaded, the old one stays; it is tried again once its files change.

    Args:
        name: The name in URLs.
        folder: Holds a folder for each version, named by its number.
        load: Takes the folder of a version; returns the model.
    """

    def __init__(
        self, name: str, folder: pathlib.Path, load: Callable = load_version
    ):
        self.name = name
        self.served = None  # (version, LoadedModel).
        self._folder = folder
        self._load = load
        self._failed = None  # The state of the files of a failed version.
        self._states = {}  # (state, error), by version.
        self.poll()

    def poll(self):
        """Load the newest version, unless it is served already."""
        folders = find_versions(self._folder)
        version = max(folders, default=None)
        served = self.served and self.served[0]
        if version in (None, served):
            return
        files = {
            (str(path), (status := path.stat()).st_size, status.st_mtime_ns)
            for path in folders[version].rglob("*")
        }
        if files == self._failed:
            return
        self._states[version] = "LOADING", ""
        try:
            self.served = version, self._load(folders[version])
        except Exception as error:
            self._failed = files
            reason = f"{type(error).__name__}: {error}"
            self._states[version] = "END", reason
            server_logger.error("%s/%d: %s", self.name, version, reason)
            return
        self._states[version] = "AVAILABLE", ""
        server_logger.info("%s: version %d is served", self.name, version)
        if served is not None:
            self._states[served] = "END", ""

    def find(self, version: int | None = None) -> tuple[int, LoadedModel]:
        """Return the version that is served, with its number.

        Args:
            version: The number that it must have. Default: any.

        Raises:
            ServingError: If it is not served.
        """
        if self.served and version in (None, self.served[0]):
            return self.served
        raise not_found(self.name, version)

    def status(self, version: int | None = None) -> dict:
        """Return the states of the versions, the newest first, as JSON.

        Args:
            version: The number of one. Default: all.

        Raises:
            ServingError: If there are none.
        """
        rows = [
            {
                "version": str(number),
                "state": state,
                "status": {
                    "error_code": "UNKNOWN" if fault else "OK",
                    "error_message": fault,
                },
            }
            for number, (state, fault) in sorted(self._states.items())[::-1]
            if version in (None, number)
        ]
        if not rows:
            raise not_found(self.name, version)
        return {"model_version_status": rows}


def not_found(name: str, version: int | None) -> ServingError:
    """Return the error for a model or a version that is not served."""
    wanted = (
        f"Latest({name})" if version is None else f"Specific({name}, {version})"
    )
    text = f"Servable not found for request: {wanted}"
    return ServingError(text, "NOT_FOUND")
