"""Running the signatures of a TFLite file with LiteRT.

Integers with a scale are shown as the floats that they stand for, and a fixed
batch size as any.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.serving.server.loaded_model import LoadedModel
from keras_vit.serving.signatures import SIGNATURE_DTYPES


def open_litert(content: bytes) -> LoadedModel:
    """Load a TFLite file.

    Args:
        content: The file.

    Raises:
        ValueError: If the file is damaged.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    runners = {
        name: interpreter.get_signature_runner(name)
        for name in interpreter.get_signature_list()
    }
    signature_defs = {
        name: {
            "inputs": describe_tensors(runner.get_input_details()),
            "outputs": describe_tensors(runner.get_output_details()),
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        for name, runner in runners.items()
    }
    return LoadedModel(
        signature_defs,
        lambda name, inputs: run_signature(runners[name], inputs),
    )


def run_signature(
    runner: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the outputs of a signature, computed in batches of its size.

    Args:
        runner: LiteRT's runner of the signature.
        inputs: Arrays by name, with the same number of rows.
    """
    into, out_of = runner.get_input_details(), runner.get_output_details()
    num_rows = len(next(iter(inputs.values())))
    size = next(iter(into.values()))["shape_signature"][0]
    size = num_rows if size < 0 else size
    parts = []
    for start in range(0, num_rows, size):
        rows = range(start, start + size)
        # The last row fills up the last batch.
        batch = {n: np.take(x, rows, 0, mode="clip") for n, x in inputs.items()}
        outputs = runner(**{n: quantize(x, into[n]) for n, x in batch.items()})
        parts.append({n: dequantize(x, out_of[n]) for n, x in outputs.items()})
    return {
        name: np.concatenate([part[name] for part in parts])[:num_rows]
        for name in out_of
    }


def describe_tensors(details: dict[str, dict]) -> dict[str, dict]:
    """Return the TensorInfos of a signature, in their JSON form.

    Args:
        details: LiteRT's descriptions of the tensors, by name.
    """
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


def quantize(numbers: np.ndarray, details: dict) -> np.ndarray:
    """Convert float32 numbers to the type of a tensor in a TFLite file.

    Args:
        numbers: The numbers.
        details: LiteRT's description of the tensor.
    """
    dtype = details["dtype"]
    scale, zero_point = details["quantization"]
    if not scale:
        return numbers.astype(dtype)
    bounds = np.iinfo(dtype)
    numbers = np.round(numbers / scale) + zero_point
    return np.clip(numbers, bounds.min, bounds.max).astype(dtype)


def dequantize(numbers: np.ndarray, details: dict) -> np.ndarray:
    """Convert the numbers of a tensor that has a scale to float32.

    Args:
        numbers: The numbers of the tensor.
        details: LiteRT's description of the tensor.
    """
    scale, zero_point = details["quantization"]
    if not scale:
        return numbers
    return (numbers.astype("float32") - zero_point) * scale
