"""The preprocessing of the images that a checkpoint was trained with."""

import dataclasses
import pathlib
import re
import warnings
from collections.abc import Iterable

import numpy as np

from keras_vit.models.config import ViTConfig
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.weights.containers import Checkpoint
from keras_vit.weights.layouts import Layout
from keras_vit.weights.stated_preprocessing import find_stated, name_of


def find_preprocessing(
    checkpoint: Checkpoint, layout: Layout, config: ViTConfig
) -> Preprocessing | None:
    """Return the preprocessing of the model of a checkpoint.

    The JSON files of timm, OpenCLIP, Hugging Face and keras-hub state it.
    Without them, the family has one normalisation, or that of well-known
    models is recognised by the name of the architecture or of the file. What
    is not stated has its default.

    Args:
        checkpoint: The open file or folder.
        layout: Its family.
        config: Configuration of its model.

    Returns:
        The settings; None if nothing is known about the normalisation.
    """
    found = find_stated(checkpoint)
    if found is not None:
        if len(found.mean) in (1, config.channels):
            return found
        warnings.warn(
            f"{checkpoint.path} states the mean and the deviation of "
            f"{len(found.mean)} channels for images of {config.channels}; "
            "their averages are used for all, as in timm. Pass "
            "`preprocessing=` for others.",
            stacklevel=2,
        )
        return averaged(found)
    # A file of the official code may have any name.
    mode = layout.normalization or guess_normalization(_names_of(checkpoint))
    return None if mode is None else Preprocessing(mode)


def averaged(settings: Preprocessing) -> Preprocessing:
    """Return settings with one mean and one deviation for all channels.

    Args:
        settings: Those with a mean and a deviation of each channel.
    """
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

    Args:
        settings: Those of its images; None for pixels from 0 to 1.
        mean: The mean that the model itself subtracts; None if it does not.
        deviation: The deviation by which it divides.

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

    Args:
        config: The configuration of the checkpoint.
        changes: Fields to replace.
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


def _names_of(checkpoint):
    """Return the names of a model: entries of its JSON, and its file name."""
    path = pathlib.Path(checkpoint.path)
    texts = [checkpoint.config.get(key) for key in NAME_KEYS]
    return [text for text in (*texts, path.name) if isinstance(text, str)]


def guess_normalization(names: Iterable[str]) -> str | None:
    """Return the normalisation of a well-known model.

    Args:
        names: Names of its architecture, its tag and its file.

    Returns:
        A key of NORMALIZATIONS; None if the names do not tell.

    Example:
        >>> weights.image_settings.guess_normalization(
        ...     ["vit_base_patch16_224", "mae"]
        ... )
        'imagenet'
    """
    text = " ".join(names).lower()
    for pattern, mode in MODES_BY_NAME.items():
        if re.search(rf"(?<![a-z])({pattern})(?![a-z])", text):
            return mode
    return None


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
