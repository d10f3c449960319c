"""Image augmentation, written as a line of operations.

`"inception_crop|flip_lr|randaugment(2, 10)|mixup(0.2)"` is applied from left
to right. An operation is `name` or `name(arguments)`; arguments are numbers or
names, by position or by keyword. Operations on single images (OPS) come first,
those on batches (BATCH_OPS) last. The random numbers of an operation depend
only on the seed of the example and on the place of the operation in the line,
so a run can be repeated with any number of threads.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from keras_vit.preprocessing.description import (
    INTERPOLATIONS,
    NORMALIZATIONS,
    RESIZE_MODES,
    ImageStep,
    Normalization,
    Preprocessing,
    crop_fraction_of,
    resize_step,
)
from keras_vit.preprocessing.model_inputs import RAW
from trainers.augment.operations import (
    BATCH_OPS,
    BUILT_IN,
    NORMALIZING,
    OPS,
    Crop,
    WindowCrop,
    mix_pairs,
)
from trainers.augment.parser import read_calls

# The settings that a step stands for, by its kind and its method.
MODES = {kind: name for name, kind in RESIZE_MODES.items()}
INTERPOLATION_OF = {method: name for name, method in INTERPOLATIONS.items()}
# The place of a function in the line of operations, and the function.
Placed = tuple[int, Callable]


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The operations of a line, on images and on batches.

    Args:
        image_operations: Functions of an image and a seed.
        batch_operations: Functions for `mix_pairs`.
        stated: Mean and deviation by which the caller must normalise the
            pixels of 0 to 255; None if the line does not state them.
    """

    image_operations: tuple[Placed, ...] = ()
    batch_operations: tuple[Placed, ...] = ()
    stated: Normalization | None = None

    @property
    def normalization(self) -> Normalization:
        """Mean and deviation; by default, those of the range -1 to 1."""
        return self.stated or NORMALIZATIONS["vit"]

    def steps(self, image_size: tuple[int, int]) -> list[ImageStep] | None:
        """Return the operations on images as data; None if one is random.

        Args:
            image_size: (height, width) of the model, to which images of other
                sizes are resized at the end.
        """
        steps = [getattr(x, "step", None) for _, x in self.image_operations]
        if None in steps:
            return None
        last = steps[-1] if steps else {}
        # One that covers the size may be larger than that.
        is_exact = last.get("kind") in ("resize", "central_crop")
        size = last.get("height"), last.get("width")
        if not is_exact or size != tuple(image_size):
            # As in trainers.data.batches.to_model_input.
            steps.append(resize_step(image_size, "bilinear"))
        return steps

    @property
    def pick_window(self) -> Callable | None:
        """Picks the window that the first operation cuts out of an image.

        A function that takes the shape (3,) of an image and a seed, and
        returns top, left, height and width. Only this window must be decoded:
        pass it to `image` with `is_window=True`. None if the first operation
        reads the whole image.
        """
        if not self.image_operations:
            return None
        place, first = self.image_operations[0]
        if not isinstance(first, WindowCrop):
            return None
        return lambda shape, seed: first.pick_window(
            shape, tf.random.fold_in(seed, place)
        )

    def image(
        self,
        image: tf.Tensor,
        seed: tf.Tensor,
        is_window: bool = False,
        name: str | tf.Tensor = "",
    ) -> tf.Tensor:
        """Return an image after the operations on images.

        Shapes:
            image: (H, W, C), floats from 0 to 255. seed: (2,), integers.
            returns: (H', W', C).

        Args:
            image: Image to change.
            seed: Seed of all random numbers.
            is_window: Whether `image` is the window that `pick_window` picks.
            name: Name of the image in error messages.
        """
        operations = self.image_operations
        if is_window:
            image, operations = operations[0][1].resize(image), operations[1:]
        for place, operation in operations:
            if isinstance(operation, Crop):
                image = operation.check(image, name)
            image = operation(image, tf.random.fold_in(seed, place))
        return image

    def both(
        self,
        image: tf.Tensor,
        target: tf.Tensor,
        seed: tf.Tensor,
        name: str | tf.Tensor = "",
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return an image and its map after the operations on images.

        Both move alike; of the map, the nearest pixel counts.

        Shapes:
            image: (H, W, C), floats from 0 to 255. target: (H, W, 1), NaN
            where nothing is known. seed: (2,), integers.
            returns: (H', W', C) and (H', W', 1).

        Args:
            image: The image.
            target: Its map.
            seed: Seed of all random numbers.
            name: Name of the image in error messages.
        """
        for place, operation in self.image_operations:
            if isinstance(operation, Crop):
                image = operation.check(image, name)
            key = tf.random.fold_in(seed, place)
            image = operation(image, key)
            target = operation.on_maps(target, key)
        return image, target

    def batch(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        weights: tf.Tensor,
        seed: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return images and labels after one of the operations on batches.

        The operation is drawn for each batch. See `mix_pairs` for the
        arguments.
        """
        return mix_pairs(self.batch_operations, images, labels, weights, seed)


def parse_augmentation(
    text: str, image_size: tuple[int, int], argument: str = "augment"
) -> Augmentation:
    """Return the augmentation that `text` describes.

    If there are several operations on batches, one of them is drawn for each
    batch, all with the same probability.

    Args:
        text: Operations separated by `|`; an empty text changes nothing.
        image_size: Default (height, width) of the results of crops and
            resizes.
        argument: Name of the argument that contains `text`, for errors.

    Raises:
        ValueError: If an operation is unknown, has wrong arguments or is out
            of place. The message points at the operation.

    Example:
        >>> augmentation = parse_augmentation("flip_lr|random_crop", (4, 4))
        >>> image = augmentation.image(np.ones((8, 6, 3), "float32"), (0, 0))
        >>> tuple(image.shape)
        (4, 4, 3)
    """
    image_operations, batch_operations, stated = [], [], None
    for place, call in enumerate(read_calls(text, argument)):
        operation = call.make(OPS | BATCH_OPS, image_size=tuple(image_size))
        if call.name in BATCH_OPS:
            batch_operations.append((place, operation))
            continue
        if batch_operations:
            call.fail(
                "operations on images must come before those on batches. "
                f"Received: {call.name} after them"
            )
        if stated:
            call.fail(
                f"{' and '.join(NORMALIZING)} must be the last operation on "
                f"images. Received: {call.name} after one"
            )
        if call.name in NORMALIZING:
            stated = operation
        else:
            image_operations.append((place, operation))
    return Augmentation(
        tuple(image_operations),
        tuple(batch_operations),
        stated,
    )


def try_operations(
    text: str, argument: str, channels: int, has_maps: bool = False
):
    """Call operations that may refuse images once, with black images.

    Args:
        text: Operations separated by `|`.
        argument: Name of the argument that contains `text`, for errors.
        channels: Channels of the images.
        has_maps: Whether the images have an answer for each pixel.

    Raises:
        ValueError: If one does not return what an operation returns, or
            cannot move a map as its image. What it raises itself is not
            changed.
    """
    size, seed = (96, 64), tf.constant([1, 2])
    images = tf.zeros((2, *size, channels))
    for call in read_calls(text, argument):
        operation = call.make(OPS | BATCH_OPS, image_size=size)
        if has_maps and call.name not in NORMALIZING:
            if not hasattr(operation, "on_maps"):
                why = "does not say how they move with the image (`on_maps`)"
                if call.name in BATCH_OPS:
                    why = "mixes images, and has no such answer for a mixture"
                call.fail(
                    "the images have an answer for each pixel, and "
                    f"{call.name} {why}"
                )
        if call.name in BUILT_IN:
            if call.name == "randaugment":  # It needs grey levels or colours.
                operation(images[0], seed)
            continue
        if not callable(operation):
            call.fail(
                f"{call.name} must return a function. Received: {operation!r}"
            )
        if call.name in OPS:
            found = operation(images[0], seed)
            shape = tuple(getattr(found, "shape", ()))
            if len(shape) != 3 or shape[-1] != channels:
                call.fail(
                    f"{call.name} must return an image (H, W, {channels}) for "
                    f"one of the shape {(*size, channels)}. Received: "
                    f"{shape or found!r}"
                )
            continue
        mixed, share = operation(images, images, seed)
        shapes = tuple(mixed.shape), tuple(tf.shape(share))
        if shapes != (tuple(images.shape), ()):
            call.fail(
                f"{call.name} must return images of the shape "
                f"{tuple(images.shape)} and one share, of the shape (). "
                f"Received: shapes {shapes[0]} and {shapes[1]}"
            )


def line_of(settings: Preprocessing, image_size: tuple[int, int]) -> str:
    """Return the operations that prepare images for a model.

    With the default settings, the line is empty: the official code does not
    antialias. Nor do the functions with which Keras reads files for a model
    that scales pixels itself.

    Example:
        >>> settings = Preprocessing("clip", "shortest", "bicubic", 0.875)
        >>> line_of(settings, (224, 224))
        'resize_to_cover(256, bicubic)|central_crop|normalize(clip)'
    """
    mode = settings.normalization
    plain = Preprocessing(mode, pixel_range=settings.pixel_range)
    if mode in ("vit", RAW) and settings == plain:
        return add_normalization("", settings)
    operations = []
    for step in settings.steps(image_size):
        if step["kind"] == "resize_small":
            method = "" if step["method"] == "area" else f", {step['method']}"
            operations.append(f"resize_small({step['size']}{method})")
            continue
        size = step["height"], step["width"]
        # A line has no name for other sizes than squares and the model's own.
        is_named = size[0] == size[1] and size != tuple(image_size)
        side = size[0] if is_named else None
        if "method" in step:
            operations.append(f"{step['kind']}({side}, {step['method']})")
        elif not operations[0].startswith("resize(None"):
            operations.append("central_crop")
    return add_normalization("|".join(operations), settings)


def add_normalization(line: str, settings: Preprocessing) -> str:
    """Return a line that normalises images for a model.

    Args:
        line: Operations, on batches as well.
        settings: The preprocessing of the model. A line that normalises
            images by itself does not change.
    """
    calls = read_calls(line, "augment")
    states_it = any(call.name in NORMALIZING for call in calls)
    if states_it or settings.normalization == "vit":
        return line
    mode = settings.normalization
    if mode == RAW:
        operation = "value_range(0, 255)"
    elif isinstance(mode, str):
        operation = f"normalize({mode})"
    else:
        operation = f"normalize({mode[0]}, {mode[1]})"
    operations = [text.strip() for text in line.split("|") if text.strip()]
    # Operations on batches come last.
    place = sum(call.name not in BATCH_OPS for call in calls)
    operations.insert(place, operation)
    return "|".join(operations)


def preprocessing_in(line: str, image_size: tuple[int, int]) -> Preprocessing:
    """Return the preprocessing that comes next to a line of operations.

    Its normalisation is exact, and so is what it does to a square; other
    operations than resizing and the crop are left out. The antialiased bilinear
    resizing stands for `bilinear`.

    Example:
        >>> preprocessing_in("resize_small(256)|central_crop", (224, 224))
        Preprocessing(normalization='vit', resize_mode='shortest_rounded', \
interpolation='area', crop_fraction=0.875, pixel_range=None)
    """
    augmentation = parse_augmentation(line, image_size)
    choices = {}
    for _, operation in augmentation.image_operations:
        step = getattr(operation, "step", None) or {"kind": ""}
        if step["kind"].startswith("resize"):
            method = INTERPOLATION_OF.get(step["method"], "bilinear")
            choices = {
                "resize_mode": MODES[step["kind"]],
                "interpolation": method,
            }
            is_small = step["kind"] == "resize_small"
            side = max(image_size) if is_small else min(image_size)
            whole = step.get("size") or min(step["height"], step["width"])
        elif step["kind"] == "central_crop" and choices:
            fraction = crop_fraction_of(side, whole)
            choices["crop_fraction"] = min(fraction, 1.0)
    return Preprocessing(augmentation.normalization, **choices)
