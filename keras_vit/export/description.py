"""The description in an exported file: its classes and its preprocessing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit.export.forward import name_output
from keras_vit.export.image_steps import scale_steps
from keras_vit.export.serving_options import (
    Serving,
    check_serving,
    find_steps,
)
from keras_vit.version import __version__

KEY = "keras_vit"  # Of the description in ONNX and OpenVINO files.


def describe(
    model: keras.Model,
    serving: Serving,
    *,
    name: str | None = None,
    pixels_per_side: int | None = None,
) -> dict[str, Any]:
    """Describe an export of `model`, in values of JSON.

    `input` is the shape and the dtype of an image; `image_steps` lead from an
    upright image with pixels x from 0 to 255 to its size, see
    `keras_vit.export.image_steps`, and (x / 255 - `mean`) / `deviation` of each
    channel is the input. `output` is the kind of output,
    and `activation` is the function that turns it into probabilities.

    Args:
        model: A model with a fixed image size.
        serving: Pre- and post-processing of the model.
        name: The name of the model. Default: that of `model`.
        pixels_per_side: If the input is uint8, the number of its pixels for
            each side of a pixel of the model.

    Raises:
        ValueError: If `serving` does not fit the model.
    """
    serving = serving.for_model(model)
    check_serving(model, serving)
    height, width, channels = model.input_shape[1:]
    output = name_output(model, serving.output)
    steps = find_steps(serving, (height, width))
    mean, deviation = serving.settings.for_channels(channels)
    factor = pixels_per_side or 1
    return {
        "format": "keras_vit 1",
        "version": __version__,
        "name": name or model.name,
        "input": {
            "height": height * factor,
            "width": width * factor,
            "channels": channels,
            "dtype": "uint8" if pixels_per_side else "float32",
        },
        "image_steps": None if steps is None else scale_steps(steps, factor),
        "mean": None if pixels_per_side else mean,
        "deviation": None if pixels_per_side else deviation,
        "output": output,
        "activation": serving.activation if output == "logits" else None,
        "class_names": name_all_classes(model, serving, output),
    }


def name_all_classes(
    model: keras.Model, serving: Serving, output: str
) -> Sequence[str] | None:
    """Return the name of each class, or None if the outputs are features."""
    if output == "features":
        return None
    numbers = map(str, range(model.output_shape[-1]))
    return [*map(str, serving.class_names or numbers)]


def to_text(description: Mapping[str, Any]) -> str:
    """Return a description as JSON."""
    return json.dumps(description, ensure_ascii=False)
