"""The worker for exported graphs: it writes them, or runs one of them.

Runs in our environment, and in that of timm without TensorFlow, Keras and
keras_vit: what only one of them has is imported where it is needed.
"""

import functools
import importlib.metadata
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.pipe import answer_requests

ONNX_OPSET = 17  # The first with a layer norm, which is faster than its parts.


def make_functions(case: dict) -> tuple[dict[str, Callable], dict]:
    """Run the action of `case`, and return a function that repeats it.

    Its name is "step"; an action that only writes files has none.
    """
    action = ACTIONS[case["action"]]
    versions = {
        name: importlib.metadata.version(name) for name in action.libraries
    }
    run = action.start(case)
    if run is None:
        return {}, versions
    check_output(run(), (case["batch_size"], case["config"]["num_classes"]))
    return {"step": run}, versions


def check_output(answer, shape: tuple[int, ...]):
    """Raise a ValueError unless an answer is the output of a classifier.

    It is an array of `shape` (B, classes), or a sequence that begins with one.
    """
    answer = answer if isinstance(answer, np.ndarray) else answer[0]
    if answer.shape != shape:
        raise ValueError(
            f"The answer must have the shape {shape}. Received: {answer.shape}"
        )
    if not np.all(np.isfinite(answer)):
        raise ValueError("The answer must be finite. Received: inf or nan")
    if np.any(np.ptp(answer, axis=-1) == 0):
        raise ValueError(
            "The answer must tell classes apart. Received: equal numbers"
        )


def check_num_parameters(found: int, case: dict):
    """Raise a ValueError unless a model has the size that all must have."""
    if found != case["num_parameters"]:
        raise ValueError(
            f"The model must have {case['num_parameters']:,} parameters, as "
            f"those it is compared with. Received: {found:,}"
        )


def write_ours(case: dict):
    """Write `case["files"]` of our model to `case["folder"]`."""
    import keras

    from benchmarks.worker_keras import our_model
    from keras_vit import export
    from keras_vit.export.agreement import make_noise

    keras.utils.set_random_seed(0)
    model = our_model(case, {})
    check_num_parameters(model.count_params(), case)
    # The head is new, zeros: every graph would agree with every other.
    kernel = model.layers[-1].kernel
    kernel.assign(keras.random.normal(kernel.shape, stddev=0.02))
    images = make_noise((2, *model.input_shape[1:]), "float32")
    for file in case["files"]:
        path = pathlib.Path(case["folder"], file)
        if path.suffix == ".keras":
            model.save(path)
        elif path.suffix == ".tflite":
            quantization, batch_size = split_name(path)
            export.export_file(
                model,
                path,
                images,
                tflite_quantizations=[quantization],
                tflite_batch_size=batch_size,
                # On noise, so the classes of two images say nothing.
                tolerance=export.Tolerance(cosine=0.999),
            )
        else:
            export.export_file(model, path, images)


def write_timm(case: dict):
    """Write `case["files"]`, all ONNX, of timm's model to `case["folder"]`."""
    import torch

    from benchmarks.worker_torch import batch

    model = start_timm(case)
    for file in case["files"]:
        path = pathlib.Path(case["folder"], file)
        _, batch_size = split_name(path)
        images, _ = batch({**case, "batch_size": batch_size})
        # For one batch size, so that the graph computes no shapes.
        torch.onnx.export(
            model, (images,), path, dynamo=False, opset_version=ONNX_OPSET
        )


def split_name(path: pathlib.Path) -> tuple[str, int]:
    """Return the name of a file without its batch size, and the batch size.

    Example:
        >>> split_name(pathlib.Path("dynamic_int8_8.tflite"))
        ('dynamic_int8', 8)
    """
    name, _, batch_size = path.stem.rpartition("_")
    return name, int(batch_size)


def start_timm(case: dict):
    """Return timm's model, ready for inference."""
    import torch

    from benchmarks.worker_torch import timm_model

    torch.manual_seed(0)
    model = timm_model(case, {}).eval()
    check_num_parameters(sum(p.numel() for p in model.parameters()), case)
    return model


def start_torch(case: dict) -> Callable:
    """Return a function that runs timm's model on a batch, eager PyTorch."""
    import torch

    from benchmarks.worker_torch import forward_step

    torch.set_num_threads(case["threads"])
    return forward_step(start_timm(case), case)


def start_keras(case: dict) -> Callable:
    """Return a function that runs our model on a batch, in Keras."""
    import keras

    from keras_vit.export.agreement import make_noise
    from keras_vit.export.latency import set_threads

    set_threads(case["threads"])
    model = keras.saving.load_model(case["path"], compile=False)
    return functools.partial(
        model.predict_on_batch, make_noise(case["shape"], "float32")
    )


def start_export(case: dict) -> Callable:
    """Return a function that runs an exported file on a batch."""
    from keras_vit.export.agreement import make_noise
    from keras_vit.export.formats import find_format
    from keras_vit.export.latency import set_threads

    if case["action"] == "tensorflow":
        set_threads(case["threads"])
    batch_size, *shape = case["shape"]
    row = find_format(case["path"])
    loaded = row.load(case["path"], case["threads"], batch_size)
    images = make_noise((batch_size, *shape), loaded.dtype)
    return lambda: [*loaded.call(images).values()]


class Action(NamedTuple):
    """An action of a worker, and the libraries whose versions it reports."""

    start: Callable
    libraries: tuple[str, ...]


ACTIONS = {
    "write_ours": Action(write_ours, ("tensorflow", "keras", "tf2onnx")),
    "write_timm": Action(write_timm, ("torch", "timm", "onnx")),
    "keras": Action(start_keras, ("tensorflow", "keras")),
    "tensorflow": Action(start_export, ("tensorflow",)),
    "litert": Action(start_export, ("ai-edge-litert",)),
    "onnxruntime": Action(start_export, ("onnxruntime",)),
    "openvino": Action(start_export, ("openvino",)),
    "torch": Action(start_torch, ("torch", "timm")),
}

if __name__ == "__main__":
    answer_requests(make_functions)
