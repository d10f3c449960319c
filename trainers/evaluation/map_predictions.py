"""Answers for each pixel of image files, written as pictures."""

import io
import os
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.analysis.colours import CLASS_COLOURS
from keras_vit.models import predict_windows
from keras_vit.preprocessing.description import to_fractions
from trainers.augment.augmentation import parse_augmentation
from trainers.data.batches import make_prepare_one, to_model_input
from trainers.data.decoding import decode_file
from trainers.data.map_pictures import limits_of, paint_over
from trainers.data.maps import IGNORED, IGNORED_16, MILLIMETRE
from trainers.data.pixels import PixelOptions
from trainers.paths import Path, RemotePath, draft_of

LEAST_SHARE = 0.001  # Of a class that is named.
OVERLAYS = "overlays"  # The folder of the pictures for people.


def name_maps(paths: Sequence[str]) -> dict[str, str]:
    """Return the names of the maps of image files, in a folder for all.

    Folders that the files do not share are kept, and so are all endings if
    two files differ in nothing else.

    Example:
        >>> name_maps(["p/a.jpg", "p/b/c.png"])
        {'p/a.jpg': 'a.png', 'p/b/c.png': 'b/c.png'}
        >>> name_maps(["a.jpg", "a.gif"])
        {'a.jpg': 'a.jpg.png', 'a.gif': 'a.gif.png'}

    Raises:
        ValueError: If a map and a picture in `overlays` have one name.
    """
    whole = {path: os.path.abspath(path) for path in paths}
    common = os.path.commonpath([os.path.dirname(x) for x in whole.values()])
    names = {path: os.path.relpath(x, common) for path, x in whole.items()}
    stems = {name: os.path.splitext(name)[0] for name in names.values()}
    has_twins = len(set(stems.values())) < len(stems)
    maps = {
        path: f"{name if has_twins else stems[name]}.png"
        for path, name in names.items()
    }
    overlays = {os.path.join(OVERLAYS, name) for name in maps.values()}
    twice = sorted(overlays & {*maps.values()})
    if twice:
        raise ValueError(
            f"`paths` must not be in a folder `{OVERLAYS}` beside others of "
            f"the same names. Received: {twice[0]!r} twice among the results"
        )
    return maps


def check_apart(files: Mapping[str, str], out: Path):
    """Raise a ValueError if a result would take the place of an image.

    Among images there may be others that are not in `files`: no file beside
    them is replaced. Neither is a file without an overlay, which is written
    before a map: it may be one that a person drew.

    Args:
        files: What `name_maps` returns.
        out: The folder to write to.
    """
    sources = {os.path.realpath(path) for path in files}
    folders = {os.path.dirname(path) for path in sources}
    is_here = not isinstance(out, RemotePath)  # There, each costs a request.
    for name in files.values() if is_here else ():
        if (out / name).exists() and not (out / OVERLAYS / name).exists():
            raise ValueError(
                "`out` must be a folder for maps of `predict` alone. Received: "
                f"out={str(out)!r} with {str(out / name)!r}, which would be "
                f"replaced and has no picture in {OVERLAYS!r}, as those of "
                "`predict` have; pass another folder"
            )
    for name in files.values():
        for place in (out / name, out / OVERLAYS / name):
            real = os.path.realpath(place)
            is_beside = os.path.dirname(real) in folders
            if is_beside and os.path.exists(real):
                raise ValueError(
                    "`out` must not be a folder whose images would be "
                    f"replaced. Received: out={str(out)!r} with {str(place)!r} "
                    "among or beside the images; pass another folder"
                )


def check_whole(preprocess: str, image_size: tuple[int, int]):
    """Raise a ValueError unless operations keep the whole image."""
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")
    kinds = [
        (getattr(operation, "step", None) or {}).get("kind")
        for _, operation in augmentation.image_operations
    ]
    if any(kind != "resize" for kind in kinds):
        raise ValueError(
            "`preprocess` must keep the whole image, for an answer for each of "
            f"its pixels. Received: preprocess={preprocess!r}"
        )


def make_predict_maps(
    source,
    model: keras.Model,
    names: Sequence[str] | None,
    preprocess: str,
    out: Path,
    files: dict[str, str],
    use_windows: bool = False,
    top: int | None = None,
) -> Callable[[str], tuple[str, list[tuple[str, float]], str]]:
    """Return the function that writes the map of an image file.

    The map is a PNG of the size of the image: of classes, their numbers, with
    colours for people; of depths, millimetres in 16 bits, or for outputs up to
    scale and shift, from the farthest (0) to the nearest (65535). Beside it,
    in `overlays`, is the image with the map over it.

    Args:
        source: The model's source, for `pixel_range`.
        model: Has an answer for each pixel.
        names: Names of its classes; None or none of depths.
        preprocess: Operations on the images.
        out: The folder to write to.
        files: What `name_maps` returns.
        use_windows: Whether an image that is larger than those of the model
            is read in windows, in its own size, see `predict_windows`.
        top: Largest number of classes that are named; None for all.

    Returns:
        The function, which takes a path and returns that of the map, the
        classes with their shares of the pixels, and a summary.

    Raises:
        ValueError: If the operations do not keep the whole image.
    """
    size, channels = model.input_shape[1:3], model.input_shape[-1]
    check_whole(preprocess, size)
    prepare, normalization = make_prepare_one(preprocess, size)
    options = PixelOptions(channels, source.pixel_range)
    is_depth = model.output_shape[-1] == 1
    is_relative = getattr(model, "larger_depths", "far") == "near"

    def read(path):
        with open(path, "rb") as file:
            return decode_file(file.read(), options, path)

    def answer(pixels):
        """Return the outputs (H, W, D) at the size of an image."""
        height, width = pixels.shape[:2]
        if use_windows and height >= size[0] and width >= size[1]:
            outputs = predict_windows(model, in_own_size(pixels)[None])
        else:
            inputs = prepare(pixels)[None].numpy()
            outputs = np.asarray(model.predict_on_batch(inputs), "float32")
        return tf.image.resize(outputs[0], (height, width)).numpy()

    def in_own_size(pixels):
        """Return an image (H, W, C) in the range of the model."""
        image = tf.cast(pixels, tf.float32)
        return to_model_input(image, pixels.shape[:2], normalization).numpy()

    def write(name, image):
        stream = io.BytesIO()
        image.save(stream, "PNG")
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(place) as draft:
            draft.write_bytes(stream.getvalue())
        return str(place)

    def predict(path):
        pixels = read(path)
        outputs = answer(pixels)
        if not np.isfinite(outputs).all():  # An evaluation refuses it, too.
            raise ValueError(f"{path}: the model gives NaN or infinity")
        shown = to_fractions(in_own_size(pixels), normalization)
        if is_depth:
            depths = outputs[..., 0]
            limits = limits_of(depths)
            picture = Image.fromarray(encode_depths(depths, is_relative))
            shares, summary = [], "{:.2f} to {:.2f} m".format(*limits)
            if not is_relative and limits[1] > IGNORED_16 * MILLIMETRE:
                summary += ", of which the file holds 65.53 m at most"
            if is_relative:
                summary = "nearness, up to scale and shift"
                depths, limits = -depths, limits_of(-depths)
            over = paint_over(shown, depths, limits)
        else:
            classes = outputs.argmax(-1)
            picture = encode_classes(classes, outputs.shape[-1])
            counts = np.bincount(classes.ravel(), minlength=len(names))
            shares = [
                (names[index], counts[index] / classes.size)
                for index in np.argsort(-counts, kind="stable")
                if counts[index] >= LEAST_SHARE * classes.size
            ][:top]
            summary = ", ".join(f"{name} {x:.1%}" for name, x in shares)
            over = paint_over(shown, classes.astype("float32"))
        over = Image.fromarray(np.round(255 * over).astype("uint8"))
        write(os.path.join(OVERLAYS, files[path]), over)
        return write(files[path], picture), shares, summary

    return predict


def encode_classes(classes: np.ndarray, count: int) -> Image.Image:
    """Return a picture whose pixels are the numbers of classes.

    Shapes:
        classes: (H, W).

    Args:
        classes: The classes.
        count: Number of classes; more than 255 need 16 bits, without colours.
    """
    if count > IGNORED:
        return Image.fromarray(classes.astype("uint16"))
    image = Image.fromarray(classes.astype("uint8"), "P")
    colours = b"".join(bytes.fromhex(each[1:]) for each in CLASS_COLOURS)
    image.putpalette(colours)
    return image


def encode_depths(depths: np.ndarray, is_relative: bool) -> np.ndarray:
    """Return depths as whole numbers of 16 bits, see `make_predict_maps`.

    Shapes:
        depths: (H, W), metres, or nearness if they are relative.
        returns: (H, W), uint16.
    """
    if is_relative:
        low, high = limits_of(depths)
        steps = (depths - low) / max(high - low, 1e-12) * IGNORED_16
    else:
        steps = depths / MILLIMETRE
    return np.clip(np.round(steps), 0, IGNORED_16).astype("uint16")
