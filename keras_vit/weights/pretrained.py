"""The published checkpoints by name: PRETRAINED, at the end."""

import dataclasses
import hashlib
import os
import pathlib
import re
import urllib.parse
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.tables import guess
from keras_vit.weights.augreg_names import augreg, parse_augreg
from keras_vit.weights.download import cache_dir, fetch
from keras_vit.weights.hub import fetch_repository, parse_repository
from keras_vit.weights.hub_models import HUB_MODELS

STORAGE = "https://storage.googleapis.com"


class Pretrained(NamedTuple):
    """A published checkpoint, for images in [-1, 1].

    Args:
        file: The bucket and the path in it.
        variant: A key of VARIANTS.
        image_size: Side of the images, in pixels.
        num_classes: Number of classes.
        choices: Fields of `ViTConfig` in which it differs from the variant.
        sha256: The checksum; None if it is not published. Then the checksum of
            the first download is recorded beside the file.
    """

    file: str
    variant: str
    image_size: int = 224
    num_classes: int = 1000
    choices: dict = {}
    sha256: str | None = None

    @property
    def url(self) -> str:
        """The address of the file, see `storage_url`."""
        return storage_url(self.file)

    @property
    def config(self) -> ViTConfig:
        """The configuration of the model."""
        return dataclasses.replace(
            VARIANTS[self.variant].config,
            image_size=self.image_size,
            num_classes=self.num_classes,
            dropout_rate=0.0,
            **self.choices,
        )


def storage_url(file: str) -> str:
    """Return the address of a file, on KERAS_VIT_MIRROR if that is set.

    Args:
        file: The bucket and the path in it.
    """
    mirror = os.environ.get("KERAS_VIT_MIRROR") or STORAGE
    path = urllib.parse.quote(file, safe="/+")
    return f"{mirror.rstrip('/')}/{path}"


def find_pretrained(name: str) -> Pretrained | None:
    """Return the checkpoint called `name`, of PRETRAINED or of AugReg.

    Args:
        name: A key of PRETRAINED, or a name as `augreg` returns it.
    """
    return PRETRAINED.get(name) or _find_augreg(name)


def locate(path_or_name: str | os.PathLike) -> pathlib.Path:
    """Return the local file of a path, URL or name; download it if needed.

    Args:
        path_or_name: A path, a URL (https:// or gs://), a key of PRETRAINED
            or HUB_MODELS, a name as `augreg` returns it, or a repository of
            Hugging Face's hub: "hf://owner/name", "timm/name" or the address
            of its page.

    Raises:
        ValueError: If it is none of these.
        ConnectionError: If a download fails.
    """
    if not isinstance(path_or_name, str | os.PathLike):
        raise ValueError(
            "`path_or_name` must be a path, a URL or a name. "
            f"Received: path_or_name={path_or_name!r}"
        )
    text = os.fspath(path_or_name)
    path = pathlib.Path(os.path.expanduser(text))
    if text and path.exists():
        return path
    if text.startswith("gs://"):
        text = f"{STORAGE}/{text.removeprefix('gs://')}"
    if text in HUB_MODELS:
        text = f"hf://{HUB_MODELS[text].repository}"
    repository = parse_repository(text)
    if repository is not None:
        return fetch_repository(repository)
    if text.startswith(("https://", "http://")):
        name = pathlib.PurePosixPath(urllib.parse.urlparse(text).path).name
        # Files of different sites may have the same name.
        folder = hashlib.sha256(text.encode()).hexdigest()[:16]
        return fetch(text, cache_dir() / "url" / folder / name)
    row = find_pretrained(text)
    if row is not None:
        return fetch(row.url, cache_dir() / row.file, row.sha256)
    if os.path.isabs(path) or text.startswith("."):
        raise ValueError(f"There is no file or folder {text!r}.")
    known = (*PRETRAINED, *HUB_MODELS)
    hint = guess(text, known, 3) or "."
    if hint == "." and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text):
        hint = f". A repository of the hub is named 'hf://{text}'."
    raise ValueError(
        f"There is no file {text!r}, and no pretrained model of that name; "
        f"`keras_vit.PRETRAINED` and `keras_vit.HUB_MODELS` list them{hint}"
    )


def _find_augreg(name):
    arguments = parse_augreg(name)
    if arguments is None:
        return None
    row = Pretrained(**arguments)
    try:
        row.config  # noqa: B018
    except ValueError:
        return None  # The size is not a whole number of patches.
    return row


def _path_of(folder, variant, ending=""):
    """Return the path of a file; in the bucket, B/16 is named ViT-B_16."""
    stem, plus, size = variant.rpartition("+")
    name = f"{stem}{plus}ViT-{size.replace('/', '_')}"
    return f"vit_models/{folder}/{name}{ending}.npz"


def _i21k(variant):
    """Return a model of 2020 that was trained on ImageNet-21k."""
    width = VARIANTS[variant].config.width
    file = _path_of("imagenet21k", variant)
    choices = {"representation_size": width}
    return Pretrained(file, variant, 224, 21_843, choices)


def _i1k(variant, image_size, ending=""):
    """Return a model of 2020 that was fine-tuned on ImageNet."""
    file = _path_of("imagenet21k+imagenet2012", variant, ending)
    return Pretrained(file, variant, image_size)


def _augreg(model, augmentation, weight_decay, rate=0.0, tuned=None):
    """Return a model that the authors of AugReg recommend.

    Args:
        model: See `augreg`.
        augmentation: See `augreg`.
        weight_decay: See `augreg`.
        rate: Rate of dropout and of stochastic depth.
        tuned: (learning rate, image size) of the fine-tuning on ImageNet.
    """
    tuning = {}
    if tuned is not None:
        tuning = {
            "dataset": "imagenet2012",
            "tuning_rate": tuned[0],
            "image_size": tuned[1],
        }
    return _find_augreg(
        augreg(
            model,
            augmentation=augmentation,
            weight_decay=weight_decay,
            dropout_rate=rate,
            stochastic_depth_rate=rate,
            **tuning,
        )
    )


def _big_vision(epochs):
    """Return the S/16 that big_vision trained on ImageNet."""
    choices = {"position_embedding": "sincos_2d", "representation_size": 384}
    file = f"big_vision/vit_s16_i1k_{epochs}ep.npz"
    return Pretrained(file, "S/16-gap", choices=choices)


def _sam(variant):
    """Return a model that was trained with sharpness-aware minimisation."""
    return Pretrained(_path_of("sam", variant), variant)


# A name consists of the variant and the training data. Sources: the READMEs
# of google-research/vision_transformer and google-research/big_vision.
PRETRAINED = {
    "B/8-i21k": _i21k("B/8"),
    "B/16-i21k": _i21k("B/16"),
    "B/32-i21k": _i21k("B/32"),
    "L/16-i21k": _i21k("L/16"),
    "L/32-i21k": _i21k("L/32"),
    "H/14-i21k": _i21k("H/14"),
    "R50+B/16-i21k": _i21k("R50+B/16"),
    "R26+B/32-i21k": _i21k("R26+B/32"),
    "R50+L/32-i21k": _i21k("R50+L/32"),
    "B/8-i21k+i1k": _i1k("B/8", 384),
    "B/16-i21k+i1k": _i1k("B/16", 384),
    "B/16-i21k+i1k-224": _i1k("B/16", 224, "-224"),
    "B/32-i21k+i1k": _i1k("B/32", 384),
    "L/16-i21k+i1k": _i1k("L/16", 384),
    "L/16-i21k+i1k-224": _i1k("L/16", 224, "-224"),
    "L/32-i21k+i1k": _i1k("L/32", 384),
    "R50+B/16-i21k+i1k": _i1k("R50+B/16", 384),
    "L/16-augreg": _augreg("L_16", "strong1", 0.1),
    "L/16-augreg-i1k": _augreg("L_16", "strong1", 0.1, tuned=(0.01, 384)),
    "B/16-augreg": _augreg("B_16", "medium1", 0.1),
    "B/16-augreg-i1k": _augreg("B_16", "medium1", 0.1, tuned=(0.03, 384)),
    "S/16-augreg": _augreg("S_16", "light1", 0.03),
    "S/16-augreg-i1k": _augreg("S_16", "light1", 0.03, tuned=(0.03, 384)),
    "R50+L/32-augreg": _augreg("R50_L_32", "medium1", 0.1, 0.1),
    "R50+L/32-augreg-i1k": _augreg(
        "R50_L_32", "medium1", 0.1, 0.1, tuned=(0.01, 384)
    ),
    "R26+S/32-augreg": _augreg("R26_S_32", "light1", 0.1),
    "R26+S/32-augreg-i1k": _augreg(
        "R26_S_32", "light1", 0.1, tuned=(0.01, 384)
    ),
    "Ti/16-augreg": _augreg("Ti_16", "none", 0.03),
    "Ti/16-augreg-i1k": _augreg("Ti_16", "none", 0.03, tuned=(0.03, 384)),
    "B/32-augreg": _augreg("B_32", "light1", 0.1),
    "B/32-augreg-i1k": _augreg("B_32", "light1", 0.1, tuned=(0.01, 384)),
    "S/32-augreg": _augreg("S_32", "none", 0.1),
    "S/32-augreg-i1k": _augreg("S_32", "none", 0.1, tuned=(0.01, 384)),
    "R+Ti/16-augreg": _augreg("R_Ti_16", "none", 0.03),
    "R+Ti/16-augreg-i1k": _augreg("R_Ti_16", "none", 0.03, tuned=(0.03, 384)),
    "B/8-augreg": _augreg("B_8", "medium2", 0.1),
    "B/8-augreg-i1k": _augreg("B_8", "medium2", 0.1, tuned=(0.03, 224)),
    "S/16-i1k-90ep": _big_vision(90),
    "S/16-i1k-150ep": _big_vision(150),
    "S/16-i1k-300ep": _big_vision(300),
    "S/16-sam": _sam("S/16"),
    "B/16-sam": _sam("B/16"),
    "B/32-sam": _sam("B/32"),
    "L/16-sam": _sam("L/16"),
    "L/32-sam": _sam("L/32"),
}
