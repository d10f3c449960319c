"""What a Keras model reads: pixels that it scales itself, or scaled ones.

A model around a VisionTransformer may begin with layers that scale pixels, such
as `keras.layers.Rescaling`. Then its images must not be normalised again.
"""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_vit.preprocessing.description import Preprocessing, from_range

RAW = from_range(0, 255)
ZERO_ONE = from_range(0, 1)
# The inputs that models are made for; as for `preprocess_input`, -1 to 1 is
# the usual one of a VisionTransformer.
USUAL = (RAW, ZERO_ONE, from_range(-1, 1))
LEVELS = (0.0, 0.25, 0.5, 1.0, 64.0, 128.0, 255.0)
DEFAULT_SIDE = 224  # Of images of any size.


def input_preprocessing(model: keras.Model) -> Preprocessing:
    """Return how the images of a model are prepared, from its first layers.

    The layers between the input and the VisionTransformer, or the first layer
    with a kernel, are computed for images of one colour:

    * Without any, or if they change nothing, the model reads images as the
      VisionTransformer does.
    * If they bring pixels from 0 to 255, or from 0 to 1, to numbers around 0
      and 1, the model reads such pixels.

    Args:
        model: A VisionTransformer, or a functional or Sequential model.

    Raises:
        ValueError: If the layers do not tell, such as a nonlinear function,
            or a model without a VisionTransformer that scales nothing.
    """
    found = find_scaling(model)
    if found is None:
        refuse(model, "no layer scales its pixels")
    return found


def find_scaling(model: keras.Model) -> Preprocessing | None:
    """Return `input_preprocessing`; None if nothing says it."""
    settings, _ = read_first_layers(model)
    return settings


def read_first_layers(model) -> tuple[Preprocessing | None, bool]:
    """Return `find_scaling`, and whether layers scale the pixels.

    If they do, the normalisation was measured. Otherwise, it is what the
    configuration of the VisionTransformer says.

    Raises:
        ValueError: If there are layers that do not tell.
    """
    settings = stated(model)
    if settings is not None:
        return settings, False
    before, reader = find_reader(model, ())
    settings = stated(reader)
    if not before:
        return settings, False
    scale, offset, is_same_place = measure(model, before)
    if settings and not is_same_place:  # They resize or crop themselves.
        settings = Preprocessing(settings.normalization)
    if is_near(scale, 1) and is_near(offset, 0):
        return settings, False
    normalization = choose(scale, offset, settings)
    if normalization is None:
        refuse(
            model,
            f"its first layers compute {scale.mean():.4g} x + "
            f"{offset.mean():.4g}",
        )
    settings = settings or Preprocessing()
    return dataclasses.replace(settings, normalization=normalization), True


def stated(layer) -> Preprocessing | None:
    """Return the preprocessing of a VisionTransformer; None for others."""
    found = getattr(getattr(layer, "config", None), "preprocessing", None)
    return found if isinstance(found, Preprocessing) else None


def find_reader(model, before):
    """Return what comes before the layer that reads the image, and the layer.

    The reader is a VisionTransformer, or the first layer with a kernel.

    Args:
        model: A model.
        before: (model, tensor) pairs: the tensor of each outer model that the
            inner one takes.

    Returns:
        The pairs, and the layer; None if no layer has a kernel.
    """
    graph = getattr(model, "_functional", None) or model  # Of Sequential.
    if not hasattr(graph, "_nodes_by_depth") or len(graph.inputs) != 1:
        refuse(model, "it is no functional or Sequential model of one input")
    depths = sorted(graph._nodes_by_depth, reverse=True)
    for node in (n for depth in depths for n in graph._nodes_by_depth[depth]):
        operation = node.operation
        if len(node.input_tensors) != 1:
            continue  # The input, or a sum of branches.
        (tensor,) = node.input_tensors
        is_first = tensor is graph.inputs[0]
        here = before if is_first else (*before, (graph, tensor))
        if stated(operation) is not None:
            return here, operation
        if isinstance(operation, keras.Model):
            if operation.weights and not is_scaling(operation):
                return find_reader(operation, here)
            continue
        inner = getattr(operation, "_flatten_layers", list)()
        if any(stated(layer) is not None for layer in inner):
            refuse(model, f"a layer of its own, {operation.name!r}, holds it")
        if getattr(operation, "kernel", None) is not None:
            return here, operation
    return before, None


def is_scaling(model) -> bool:
    """Return whether all weights are of layers that normalise pixels."""
    return all(
        isinstance(layer, keras.layers.Normalization)
        for layer in model._flatten_layers(recursive=True)
        if layer.weights and not isinstance(layer, keras.Model)
    )


def measure(model, before):
    """Return what the layers before the reader do to images of one colour.

    Args:
        model: The model, for errors.
        before: See `find_reader`.

    Returns:
        Scale and offset of each channel that the reader gets, (C,), and
        whether each pixel stays at its place.

    Raises:
        ValueError: If they do not multiply and add alone.
    """
    *sides, channels = before[0][0].inputs[0].shape[1:]
    if len(sides) != 2 or channels is None:
        refuse(model, "its input is no image")
    height, width = (side or DEFAULT_SIDE for side in sides)
    images = np.empty((len(LEVELS) + 1, height, width, channels), "float32")
    images[:-1] = np.reshape(LEVELS, (-1, 1, 1, 1))
    noise = np.random.default_rng(0).uniform(0, 255, (height, width, 1))
    images[-1] = noise
    results = ops.convert_to_tensor(images)
    for graph, tensor in before:
        part = keras.Model(graph.inputs[0], tensor)
        results = part(results, training=False)
    results = ops.convert_to_numpy(ops.cast(results, "float32"))
    if results.ndim != 4:  # They are flat.
        results = results.reshape(len(results), 1, -1, 1)
    middle = results[:-1, results.shape[1] // 2, results.shape[2] // 2]
    levels = np.array(LEVELS)
    offset = middle[0]
    scale = (middle[-1] - offset) / levels[-1]
    expected = levels[:, None] * scale + offset
    # Half types round.
    allowed = 1e-2 * (np.abs(levels[:, None] * scale) + np.abs(offset)) + 1e-6
    if not np.all(np.abs(middle - expected) <= allowed):
        refuse(model, "its first layers do more than to scale pixels")
    is_same_place = results.shape[1:3] == (height, width) and np.allclose(
        results[-1], noise * scale + offset, atol=2 * np.abs(scale).max()
    )
    return scale, offset, bool(is_same_place)


def choose(scale, offset, settings):
    """Return the normalisation of the input; None if it cannot be told.

    Args:
        scale: What the first layers multiply each channel by.
        offset: What they add then.
        settings: What the VisionTransformer says; None without one.
    """
    if settings is not None:
        mean, deviation = map(np.asarray, settings.mean_and_deviation)
        for usual in USUAL:
            # The numbers for black and white that the reader gets.
            low, high = (
                scale * (x - usual[0][0]) / usual[1][0] + offset for x in (0, 1)
            )
            if is_near(low, -mean / deviation) and is_near(
                high, (1 - mean) / deviation
            ):
                return usual
    if np.any(np.abs(scale) < 1e-9):
        return None
    centers, widths = -offset / scale, np.abs(1 / scale)
    # Networks read numbers of about -3 to 3, so the deviation of what the
    # first layers take tells its range.
    if np.all((widths > 12) & (widths < 2560) & (np.abs(centers) < 2560)):
        return RAW
    is_zero_one = (widths > 0.1) & (widths < 0.7)
    if np.all(is_zero_one & (centers > 0.15) & (centers < 0.85)):
        return ZERO_ONE
    return None


def is_near(values, wanted) -> bool:
    """Return whether all values are as wanted, but for rounding."""
    return bool(np.all(np.abs(values - wanted) <= 0.02))


def refuse(model, reason: str):
    """Raise the ValueError of a model that does not tell what it reads."""
    raise ValueError(
        "`model` does not tell how its images are normalised: "
        f"{reason}. Say it with --preprocess, or `Serving(preprocessing=...)`: "
        "value_range(0, 255) for a model that takes pixels as they are, "
        "value_range(0, 1) or value_range(-1, 1) for one that takes scaled "
        f"ones. Received: {type(model).__name__} {model.name!r}"
    )
