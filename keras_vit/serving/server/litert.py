"""Running the signatures of a TFLite file with LiteRT."""

import os
import pathlib
from collections.abc import Callable

import numpy as np

from keras_vit.serving.signatures import SIGNATURE_DTYPES


def open_litert(path: pathlib.Path) -> tuple[dict[str, dict], Callable]:
    """Load a TFLite file.

    Integers with a scale are shown as the floats that they stand for, and a
    fixed batch size as any.

    Args:
        path: The file.

    Returns:
        The SignatureDefs by name, in their JSON form, and a function that
        takes the name of a signature and its inputs, and returns its outputs.

    Raises:
        ValueError: If the file is damaged.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=os.cpu_count())
    runners = {
        name: interpreter.get_signature_runner(name)
        for name in interpreter.get_signature_list()
    }

    def call(name, inputs):
        runner = runners[name]
        return run_signature(
            runner,
            runner.get_input_details(),
            runner.get_output_details(),
            inputs,
        )

    return {
        name: describe_signature(runner) for name, runner in runners.items()
    }, call


def run_signature(
    runner: Callable, into: dict, out_of: dict, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the outputs of a signature, computed in batches of its size.

    Args:
        runner: The signature.
        into: LiteRT's descriptions of the inputs.
        out_of: LiteRT's descriptions of the outputs.
        inputs: Arrays by name, with the same number of rows.
    """
    count = len(next(iter(inputs.values())))
    size = next(iter(into.values()))["shape_signature"][0]
    size = count if size < 0 else size
    parts = []
    for start in range(0, count, size):
        rows = range(start, start + size)
        outputs = runner(
            **{
                # The last row fills up the last batch.
                name: quantize(np.take(x, rows, 0, mode="clip"), into[name])
                for name, x in inputs.items()
            }
        )
        parts.append(
            {name: dequantize(x, out_of[name]) for name, x in outputs.items()}
        )
    return {
        name: np.concatenate([part[name] for part in parts])[:count]
        for name in out_of
    }


def describe_signature(runner: Callable) -> dict:
    """Return the SignatureDef of a signature, in its JSON form."""
    return {
        "inputs": describe_tensors(runner.get_input_details()),
        "outputs": describe_tensors(runner.get_output_details()),
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


def describe_tensors(details: dict[str, dict]) -> dict[str, dict]:
    """Return the TensorInfos of a signature, in their JSON form."""
    names = {name: key for key, name in SIGNATURE_DTYPES.items()}
    return {
        name: {
            "name": row["name"],
            "dtype": names[
                "float32"
                if row["quantization"][0]
                else np.dtype(row["dtype"]).name
            ],
            "tensor_shape": {
                "dim": [
                    {"size": str(size), "name": ""}
                    for size in (-1, *map(int, row["shape_signature"][1:]))
                ],
                "unknown_rank": False,
            },
        }
        for name, row in details.items()
    }


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
    """Convert the numbers of a tensor in a TFLite file to float32.

    Args:
        numbers: The numbers of the tensor.
        details: LiteRT's description of the tensor.
    """
    scale, zero_point = details["quantization"]
    numbers = numbers.astype("float32")
    return (numbers - zero_point) * scale if scale else numbers
