"""How the images of a checkpoint's model are read.

The JSON files of timm, OpenCLIP, Hugging Face and keras-hub state it. Without
them, the family has one normalisation, or that of a well-known model is
recognised by the name of its architecture or of its file.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Iterable

import numpy as np

from keras_vit.models.config import ViTConfig
from keras_vit.preprocessing.description import (
    INTERPOLATIONS,
    NORMALIZATIONS,
    PILLOW_FILTERS,
    Preprocessing,
    crop_fraction_of,
)
from keras_vit.weights.containers import File, is_of_folder, read_json

# Modes of timm and OpenCLIP that keep the whole image, with a margin.
PADDING_MODES = ("border", "longest")
# Numbers in JSON files are rounded, such as 0.4815 for 0.48145466.
TOLERANCE = 1e-3
MAX_CHANNELS = 1000


def find_preprocessing(
    file: File, family, config: ViTConfig, architecture: str | None
) -> Preprocessing | None:
    """Return the preprocessing of the model of a checkpoint.

    What this package wrote into the file counts first, then the JSON files
    that describe the images, then the JSON of the model, and at last the
    family, or the names of the architecture and of the file. None if nothing
    is known about the normalisation. `architecture` is that which the caller
    names, in place of the JSON's.
    """
    path, beside = pathlib.Path(file.path), []
    if path.is_dir() or is_of_folder(path):
        folder = path if path.is_dir() else path.parent
        found = [folder / name for name in BESIDE if (folder / name).is_file()]
        beside = map(_read_beside, found)
    names = ("preprocessing", "pretrained_cfg", "preprocess_cfg")
    own, of_timm, of_open_clip = map(file.json.get, names)
    if "model_cfg" in file.json and isinstance(of_open_clip, dict | None):
        stated = {
            k: x for k, x in (of_open_clip or {}).items() if x is not None
        }
        of_open_clip = {**OPEN_CLIP_DEFAULTS, **stated}
    rows = (own, *beside, of_timm, of_open_clip, file.json)
    rows = [row for row in rows if isinstance(row, dict)]
    for row in rows:
        for keys, read in READERS:
            settings = None
            if row.keys() & keys:
                settings = read(row, file.notes.append)
            if settings is None:
                continue
            if pairs := [r["pixel_range"] for r in rows if "pixel_range" in r]:
                # The key of this package in the JSON files of others.
                settings = dataclasses.replace(settings, pixel_range=pairs[0])
            if len(settings.mean) in (1, config.channels):
                return settings
            file.notes.append(
                f"{file.path} states the mean and the deviation of "
                f"{len(settings.mean)} channels for images of "
                f"{config.channels}; their averages are used for all, as in "
                "timm. Pass `preprocessing=` for others."
            )
            return averaged(settings)
    stated = {**file.json}
    if architecture is not None:
        stated["architecture"] = architecture
    texts = [stated.get(key) for key in NAME_KEYS]
    names = [text for text in (*texts, path.name) if isinstance(text, str)]
    # A file of the official code may have any name.
    mode = family.normalization or guess_normalization(names)
    return None if mode is None else Preprocessing(mode)


def averaged(settings: Preprocessing) -> Preprocessing:
    """Return settings with one mean and one deviation for all channels."""
    pair = tuple(
        (float(np.mean(part)),) for part in settings.mean_and_deviation
    )
    return dataclasses.replace(settings, normalization=pair)


def add_conditioner(
    settings: Preprocessing | None,
    mean: np.ndarray | None,
    deviation: np.ndarray | None,
) -> Preprocessing | None:
    """Return settings that include the normalisation inside a model.

    Those of its images may be None, for pixels from 0 to 1, and so may the mean
    that the model itself subtracts and the deviation by which it divides.

    Raises:
        ValueError: If only one of the two is there.
    """
    if mean is None and deviation is None:
        return settings
    if mean is None or deviation is None:
        raise ValueError("its input conditioner lacks the mean or deviation")
    settings = settings or Preprocessing("zero_one")
    first, scale = map(np.array, settings.for_channels(mean.size))
    pair = (first + scale * mean.ravel(), scale * deviation.ravel())
    pair = tuple(tuple(map(float, part)) for part in pair)
    return dataclasses.replace(
        settings, normalization=name_of(*pair, rtol=1e-6, atol=1e-7)
    )


def change_config(config: ViTConfig, changes: dict) -> ViTConfig:
    """Return the configuration of a checkpoint with other fields.

    For images of other channels, one mean and one deviation hold for all. The
    first layer is adapted to them and gets a bias, except in a stem, for which
    they are the averages. A tanh layer before the head is of the pooled token;
    all tokens come without.
    """
    channels = changes.get("channels", config.channels)
    if len(config.preprocessing.mean) not in (1, channels):
        settings = dataclasses.replace(
            config.preprocessing, normalization="vit"
        )
        if config.stem_stages is not None:
            settings = averaged(config.preprocessing)
        changes = {"preprocessing": settings, **changes}
        if config.stem_stages is None:
            changes = {"use_patch_bias": True, **changes}
    if changes.get("pooling") == "none" != config.pooling:
        changes = {"representation_size": None, **changes}
    return dataclasses.replace(config, **changes)


def guess_normalization(names: Iterable[str]) -> str | None:
    """Return the normalisation of a well-known model.

    It is a key of NORMALIZATIONS; None if the names do not tell.

    Example:
        >>> weights.images.guess_normalization(
        ...     ["vit_base_patch16_224", "mae"]
        ... )
        'imagenet'
    """
    text = " ".join(names).lower()
    for pattern, mode in MODES_BY_NAME.items():
        if re.search(rf"(?<![a-z])({pattern})(?![a-z])", text):
            return mode
    return None


def _read_beside(path) -> dict:
    """Return a JSON file in the folder of a checkpoint."""
    content = read_json(path)
    inner = content.get("image_processor", content.get("config", content))
    return inner if isinstance(inner, dict) else content


def _read_own(row, note):
    """Read the settings that this package wrote into a file."""
    try:
        return Preprocessing(**row)
    except (TypeError, ValueError):
        return None


def _read_mean_and_std(row, note):
    """Read timm's `pretrained_cfg` or OpenCLIP's `preprocess_cfg`."""
    modes = row.get("crop_mode"), row.get("resize_mode")
    for name in PADDING_MODES:
        if name in modes:
            _note_padding(note, name)
    interpolation = row.get("interpolation")
    return _make(
        note,
        _numbers(row.get("mean")),
        _numbers(row.get("std")),
        "squash" if "squash" in modes else "shortest",
        # The default of both.
        interpolation if interpolation in PILLOW_FILTERS else "bicubic",
        row.get("crop_pct"),
    )


def _note_padding(note, name):
    note(
        f"The images of this model are padded to a square ({name!r}), which "
        "this package does not do; it crops their middle."
    )


def _read_huggingface(row, note):
    """Read a `preprocessor_config.json` of Hugging Face."""
    # A processor computes (x * factor - mean) / deviation.
    [factor] = _numbers([row.get("rescale_factor", 1 / 255)]) or (1 / 255,)
    factor = 255 * factor if row.get("do_rescale", True) else 255.0
    if factor <= 0:
        return None
    mean, deviation = (_numbers(row.get(f"image_{x}")) for x in ("mean", "std"))
    if row.get("do_normalize") is False:
        mean, deviation = (0.0,), (1.0,)
    if mean and deviation and not math.isclose(factor, 1, rel_tol=1e-3):
        mean, deviation = (
            tuple(number / factor for number in part)
            for part in (mean, deviation)
        )
    size, crop = row.get("size"), _sides(row.get("crop_size"))
    is_shortest = isinstance(size, dict) and "shortest_edge" in size
    kinds = ("image_processor_type", "feature_extractor_type")
    kinds = [str(row[key]) for key in kinds if key in row]
    if type(size) is int:
        # One number is the short side of CLIP's images, both sides of others.
        is_shortest = any(kind.startswith("CLIP") for kind in kinds)
    if other := [kind for kind in kinds if kind.startswith(OTHER_PROCESSORS)]:
        note(
            f"The images of this model are for {other[0]}, which crops or "
            "scales them in its own way; this package takes its settings for "
            "those of ViTImageProcessor."
        )
    sides, fraction = _sides(size), None
    if row.get("do_center_crop", False) and sides and crop:
        fraction = crop_fraction_of(max(crop), max(sides))
        if len(sides) == 2 and crop[0] * sides[-1] != crop[-1] * sides[0]:
            note(
                "The images of this model are resized to another ratio of "
                "sides than that of the part that is cut out of them; this "
                "package resizes them to that of the part."
            )
    if row.get("do_resize") is False:
        note(
            "The images of this model are not resized ('do_resize'); this "
            "package resizes them."
        )
    # The second one is of as many patches as fit, in any grid.
    keeps = [k for k in ("keep_aspect_ratio", "max_num_patches") if row.get(k)]
    if keeps and not is_shortest:
        note(
            "The images of this model keep the ratio of their sides "
            f"({keeps[0]!r}); this package resizes them to the size of "
            "the model. A model of any size, (None, None, 3), takes both."
        )
    code = row.get("resample")
    is_code = type(code) is int and 0 <= code < len(PILLOW_FILTERS)
    return _make(
        note,
        mean,
        deviation,
        "shortest" if is_shortest else "squash",
        PILLOW_FILTERS[code] if is_code else None,
        fraction,
    )


def _read_keras_hub(row, note):
    """Read an image converter of keras-hub.

    It computes (x * scale + offset - norm_mean) / norm_std.
    """
    converter = row.get("image_converter", row)
    if isinstance(converter, dict):
        converter = converter.get("config", converter)
    if not isinstance(converter, dict):
        return None
    if not converter.keys() & KERAS_HUB_NUMBERS.keys():
        return None
    numbers = []
    for key, default in KERAS_HUB_NUMBERS.items():
        value = converter.get(key)
        numbers.append(_numbers(default if value is None else value))
    if None in numbers or min(*numbers[0], *numbers[3]) <= 0:
        return None
    if len({len(part) for part in numbers} - {1}) > 1:
        return None
    scale, offset, mean, std = np.broadcast_arrays(*map(np.array, numbers))
    scale, offset = scale / std, (offset - mean) / std
    deviation = 1 / (255 * scale)
    keeps_aspect = converter.get("crop_to_aspect_ratio", True)
    if converter.get("pad_to_aspect_ratio") is True:
        _note_padding(note, "pad_to_aspect_ratio")
        keeps_aspect = True
    return _make(
        note,
        tuple(map(float, -offset * deviation)),
        tuple(map(float, deviation)),
        "shortest" if keeps_aspect else "squash",
        converter.get("interpolation"),
    )


def _make(
    note, mean, deviation, resize_mode, interpolation, crop_fraction=None
):
    """Return settings, with defaults for missing and unknown values.

    None without a mean and a deviation.
    """
    if not mean or not deviation or len(mean) != len(deviation):
        return None
    if min(deviation) <= 0:
        return None
    if interpolation == "box":
        note(
            "The images of this model are resized by Pillow's 'box'; this "
            "package averages areas, which counts pixels at the edge of two "
            "areas in both."
        )
        interpolation = "area"
    if interpolation not in tuple(INTERPOLATIONS):
        if interpolation in PILLOW_FILTERS:
            note(
                f"The images of this model are resized by {interpolation!r}, "
                "which this package does not have; it resizes them bilinearly."
            )
        interpolation = "bilinear"
    is_fraction = isinstance(crop_fraction, (int, float)) and (
        0 < crop_fraction <= 1
    )
    if not is_fraction and crop_fraction is not None:
        note(
            f"The images of this model are cropped to {crop_fraction!r} of "
            "their sides; this package keeps the whole, 1.0."
        )
    return Preprocessing(
        name_of(mean, deviation),
        resize_mode,
        interpolation,
        float(crop_fraction) if is_fraction else 1.0,
    )


def _sides(value):
    """Return the sides in an entry of Hugging Face, or None."""
    if type(value) is int:
        value = {"height": value, "width": value}
    if not isinstance(value, dict):
        return None
    keys = ["shortest_edge"] if "shortest_edge" in value else HEIGHT_AND_WIDTH
    sides = [value.get(key) for key in keys]
    is_right = all(type(s) is int and 0 < s < 2**20 for s in sides)
    return sides if is_right else None


def _numbers(value):
    """Return a number or a list of them as a tuple, None for anything else."""
    value = [value] if type(value) in (int, float) else value
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHANNELS:
        return None
    # The comparison also excludes NaN and infinity.
    if not all(type(n) in (int, float) and abs(n) < 1e9 for n in value):
        return None
    return tuple(map(float, value))


def name_of(
    mean: tuple, deviation: tuple, rtol: float = 0, atol: float = TOLERANCE
) -> str | tuple[tuple, tuple]:
    """Return the key of NORMALIZATIONS, or mean and deviation.

    Both have a number for each channel, or one for all, as fractions of 255.
    """
    found = np.array([mean, deviation])
    for name, row in NORMALIZATIONS.items():
        known = np.array([np.broadcast_to(part, 3) for part in row])
        if found.shape[1] in (1, 3):
            if np.allclose(found, known, rtol, atol):
                return name
    return mean, deviation


# Files beside the weights, of Hugging Face and keras-hub.
BESIDE = (
    "preprocessor_config.json",
    "processor_config.json",
    "image_converter.json",
    "preprocessor.json",
)
# Keys that descriptions have, and what reads them. It takes the description,
# and what notes what is not kept.
READERS = (
    ({"crop_fraction"}, _read_own),
    ({"image_mean", "do_normalize"}, _read_huggingface),
    ({"mean"}, _read_mean_and_std),
    ({"scale", "image_converter"}, _read_keras_hub),
)
# What an image converter of keras-hub computes with, and what None stands for.
KERAS_HUB_NUMBERS = {"scale": 1, "offset": 0, "norm_mean": 0, "norm_std": 1}
# What OpenCLIP does with images unless its file says otherwise.
OPEN_CLIP_DEFAULTS = {
    "mean": [*NORMALIZATIONS["clip"][0]],
    "std": [*NORMALIZATIONS["clip"][1]],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
# Image processors of Hugging Face that compute more than their settings say.
OTHER_PROCESSORS = (
    *("ConvNext", "EfficientNet", "Levit", "MobileViT", "Perceiver", "Vivit"),
)
HEIGHT_AND_WIDTH = ("height", "width")
# Keys of JSON files that name the architecture.
NAME_KEYS = ("architecture", "tag", "_name_or_path", "model_type")
# Patterns of model names -> normalisation, for files that do not state it. The
# first one that is found counts.
# Source: the configurations of timm 1.0.31.
MODES_BY_NAME = {
    "sat493m": "satellite",
    "vit_large_patch14_clip_(224|336)[. ]laion2b\\w*": "vit",
    "mci_224|miil|mobileclip|tipsv2": "zero_one",
    "eva_giant_patch14_(336|560)[. ]m30m": "imagenet",
    "aimv2|bamboo|clip|c_radio|eva(02)?|rope_reg4_gap_256[. ]sbb": "clip",
    "beit(v2|3)|deit3?|dino(v[23])?|i?jepa|intern300m|lingbot|mae": "imagenet",
    "naver_in1k|ogvl|robbyant|samvit|sapiens2?|vit_mae": "imagenet",
}
