"""PRETRAINED: the published checkpoints by name, and how they are fetched."""

import base64
import contextlib
import dataclasses
import difflib
import hashlib
import http.client
import math
import numbers
import os
import pathlib
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import NamedTuple

import keras

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.tables import pick

STORAGE = "https://storage.googleapis.com"
CHUNK = 2**20
TIMEOUT_SECONDS = 60


class Pretrained(NamedTuple):
    """A published checkpoint, for images in [-1, 1].

    Args:
        file: The bucket and its place there.
        config: The model it holds.
        sha256: Its checksum; None where none is published. The one found at
            the first download is then kept beside the file.
    """

    file: str
    config: ViTConfig
    sha256: str | None = None

    @property
    def url(self) -> str:
        """Where it is published; below KERAS_VIT_MIRROR, if that is set."""
        mirror = os.environ.get("KERAS_VIT_MIRROR") or STORAGE
        path = urllib.parse.quote(self.file, safe="/+")
        return f"{mirror.rstrip('/')}/{path}"


def _pretrained(file, variant, image_size, num_classes, **choices):
    config = dataclasses.replace(
        VARIANTS[variant].config,
        image_size=image_size,
        num_classes=num_classes,
        dropout_rate=0.0,
        **choices,
    )
    return Pretrained(file, config)


def _official_name(variant):
    """Return how the bucket calls a variant: B/16 is ViT-B_16."""
    stem, plus, size = variant.rpartition("+")
    return f"{stem}{plus}ViT-{size.replace('/', '_')}"


def _original():
    """Yield the rows of 2020: ImageNet-21k, and fine-tuned on ImageNet."""
    for variant in (
        "B/8",
        "B/16",
        "B/32",
        "L/16",
        "L/32",
        "H/14",
        "R50+B/16",
        "R26+B/32",
        "R50+L/32",
    ):
        width = VARIANTS[variant].config.width
        file = f"vit_models/imagenet21k/{_official_name(variant)}.npz"
        yield (
            f"{variant}-i21k",
            _pretrained(file, variant, 224, 21_843, representation_size=width),
        )
    for variant, size, ending in (
        ("B/8", 384, ""),
        ("B/16", 384, ""),
        ("B/16", 224, "-224"),
        ("B/32", 384, ""),
        ("L/16", 384, ""),
        ("L/16", 224, "-224"),
        ("L/32", 384, ""),
        ("R50+B/16", 384, ""),
    ):
        folder = "vit_models/imagenet21k+imagenet2012"
        file = f"{folder}/{_official_name(variant)}{ending}.npz"
        yield (
            f"{variant}-i21k+i1k{ending}",
            _pretrained(file, variant, size, 1000),
        )


AUGREG_MODELS = {
    "Ti_16": "Ti/16",
    "S_16": "S/16",
    "S_32": "S/32",
    "B_8": "B/8",
    "B_16": "B/16",
    "B_32": "B/32",
    "L_16": "L/16",
    "R_Ti_16": "R+Ti/16",
    "R26_S_32": "R26+S/32",
    "R50_L_32": "R50+L/32",
}
AUGREG_AUGMENTATIONS = (
    "none",
    "light0",
    "light1",
    "medium1",
    "medium2",
    "strong1",
    "strong2",
)
AUGREG_DATASETS = {
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "resisc45": 45,
    "kitti": 4,
}
_MODELS = "|".join(AUGREG_MODELS)
_AUGMENTATIONS = "|".join(AUGREG_AUGMENTATIONS)
_DATASETS = "|".join(AUGREG_DATASETS)
_REAL = r"\d+(\.\d+)?(e-\d+)?"
AUGREG_NAME = re.compile(
    rf"(?P<model>{_MODELS})-(?P<data>i1k|i21k)-\d+ep-lr_{_REAL}"
    rf"-aug_({_AUGMENTATIONS})-wd_{_REAL}-do_{_REAL}-sd_{_REAL}"
    rf"(--(?P<tuned>{_DATASETS})-steps_\d+k-lr_{_REAL}-res_(?P<size>\d+))?"
)


def augreg(
    model: str,
    *,
    data: str = "i21k",
    epochs: int = 300,
    learning_rate: float = 0.001,
    augmentation: str,
    weight_decay: float,
    dropout_rate: float = 0.0,
    stochastic_depth_rate: float = 0.0,
    dataset: str | None = None,
    steps: int = 20_000,
    tuning_rate: float = 0.01,
    image_size: int = 384,
) -> str:
    """Return the name of one of the 52,000 checkpoints of AugReg.

    The name goes wherever one of PRETRAINED does. Which of them exist is in
    `augreg/index.csv` of the bucket; the authors choose by its `final_val`.

    Args:
        model: "Ti_16", "S_16", "S_32", "B_8", "B_16", "B_32", "L_16",
            "R_Ti_16", "R26_S_32" or "R50_L_32".
        data: What it was pre-trained on: "i21k" or "i1k".
        epochs: Of the pre-training.
        learning_rate: Of the pre-training.
        augmentation: "none", "light0", "light1", "medium1", "medium2",
            "strong1" or "strong2". The file names count the light levels from
            zero, the paper from one.
        weight_decay: Of the pre-training.
        dropout_rate: Of the pre-training.
        stochastic_depth_rate: Of the pre-training.
        dataset: What it was fine-tuned on, such as "imagenet2012"; None for
            the pre-trained model.
        steps: Of the fine-tuning; written in thousands, rounded down.
        tuning_rate: Learning rate of the fine-tuning.
        image_size: Of the fine-tuning, in pixels.

    Raises:
        ValueError: If a value is not one of the grammar.

    Example:
        >>> augreg("Ti_16", augmentation="none", weight_decay=0.03)
        'Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0'

    Reference: Steiner et al. 2021, arXiv:2106.10270.
    """
    pick(AUGREG_MODELS, model, "model")
    pick(dict.fromkeys(("i21k", "i1k")), data, "data")
    pick(dict.fromkeys(AUGREG_AUGMENTATIONS), augmentation, "augmentation")
    for argument, value, kind in (
        ("epochs", epochs, numbers.Integral),
        ("learning_rate", learning_rate, numbers.Real),
        ("weight_decay", weight_decay, numbers.Real),
        ("dropout_rate", dropout_rate, numbers.Real),
        ("stochastic_depth_rate", stochastic_depth_rate, numbers.Real),
        ("steps", steps, numbers.Integral),
        ("tuning_rate", tuning_rate, numbers.Real),
        ("image_size", image_size, numbers.Integral),
    ):
        if not isinstance(value, kind) or not 0 <= value < math.inf:
            whole = "whole " if kind is numbers.Integral else ""
            raise ValueError(
                f"`{argument}` must be a {whole}number, 0 or more. "
                f"Received: {argument}={value!r}"
            )
    name = (
        f"{model}-{data}-{epochs}ep-lr_{learning_rate}-aug_{augmentation}"
        f"-wd_{float(weight_decay)}-do_{float(dropout_rate)}"
        f"-sd_{float(stochastic_depth_rate)}"
    )
    if dataset is None:
        return name
    pick(AUGREG_DATASETS, dataset, "dataset")
    return (
        f"{name}--{dataset}-steps_{steps // 1000}k-lr_{tuning_rate}"
        f"-res_{image_size}"
    )


def _augreg_row(name) -> Pretrained | None:
    """Return the checkpoint that a name of AugReg's grammar stands for."""
    found = AUGREG_NAME.fullmatch(name)
    if not found:
        return None
    classes = {"i1k": 1000, "i21k": 21_843}[found["data"]]
    classes = AUGREG_DATASETS.get(found["tuned"], classes)
    file = f"vit_models/augreg/{name}.npz"
    variant, size = AUGREG_MODELS[found["model"]], int(found["size"] or 224)
    try:
        return _pretrained(file, variant, size, classes)
    except ValueError:
        return None  # A size that is not whole patches.


def _recommended():
    """Yield the models that the authors of AugReg recommend."""
    for model, augmentation, decay, rate, tuning_rate, size in (
        ("L_16", "strong1", 0.1, 0.0, 0.01, 384),
        ("B_16", "medium1", 0.1, 0.0, 0.03, 384),
        ("S_16", "light1", 0.03, 0.0, 0.03, 384),
        ("R50_L_32", "medium1", 0.1, 0.1, 0.01, 384),
        ("R26_S_32", "light1", 0.1, 0.0, 0.01, 384),
        ("Ti_16", "none", 0.03, 0.0, 0.03, 384),
        ("B_32", "light1", 0.1, 0.0, 0.01, 384),
        ("S_32", "none", 0.1, 0.0, 0.01, 384),
        ("R_Ti_16", "none", 0.03, 0.0, 0.03, 384),
        ("B_8", "medium2", 0.1, 0.0, 0.03, 224),
    ):
        before = {
            "augmentation": augmentation,
            "weight_decay": decay,
            "dropout_rate": rate,
            "stochastic_depth_rate": rate,
        }
        nickname = f"{AUGREG_MODELS[model]}-augreg"
        yield nickname, _augreg_row(augreg(model, **before))
        tuned = augreg(
            model,
            **before,
            dataset="imagenet2012",
            tuning_rate=tuning_rate,
            image_size=size,
        )
        yield f"{nickname}-i1k", _augreg_row(tuned)


def _others():
    """Yield big_vision's S/16 and the models trained with SAM."""
    for epochs in (90, 150, 300):
        yield (
            f"S/16-i1k-{epochs}ep",
            _pretrained(
                f"big_vision/vit_s16_i1k_{epochs}ep.npz",
                "S/16-gap",
                224,
                1000,
                position_embedding="sincos_2d",
                representation_size=384,
            ),
        )
    for variant in ("S/16", "B/16", "B/32", "L/16", "L/32"):
        file = f"vit_models/sam/{_official_name(variant)}.npz"
        yield f"{variant}-sam", _pretrained(file, variant, 224, 1000)


# Variant, then what it was trained on. Sources: the READMEs of
# google-research/vision_transformer and google-research/big_vision.
PRETRAINED = dict([*_original(), *_recommended(), *_others()])


def find_pretrained(name: str) -> Pretrained | None:
    """Return the checkpoint called `name`: of PRETRAINED, or of AugReg.

    Args:
        name: A key of PRETRAINED, or a name as `augreg` returns it.
    """
    return PRETRAINED.get(name) or _augreg_row(name)


def locate(path_or_name: str | os.PathLike) -> pathlib.Path:
    """Return the file that `path_or_name` stands for, fetching it if needed.

    Args:
        path_or_name: A path, a URL (https:// or gs://), a key of PRETRAINED
            or a name as `augreg` returns it.

    Raises:
        ValueError: If it is none of them.
        ConnectionError: If a file must be fetched and cannot be.
    """
    text = os.fspath(path_or_name)
    path = pathlib.Path(os.path.expanduser(text))
    if text and path.exists():
        return path
    if text.startswith("gs://"):
        text = f"{STORAGE}/{text.removeprefix('gs://')}"
    if text.startswith(("https://", "http://")):
        name = pathlib.PurePosixPath(urllib.parse.urlparse(text).path).name
        # Two sites may call different files the same.
        folder = hashlib.sha256(text.encode()).hexdigest()[:16]
        return fetch(text, cache_dir() / "url" / folder / name)
    row = find_pretrained(text)
    if row is not None:
        return fetch(row.url, cache_dir() / row.file, row.sha256)
    close = difflib.get_close_matches(text, PRETRAINED, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"There is no file {text!r}, and no pretrained model of that name; "
        f"`keras_vit.weights.PRETRAINED` lists them.{hint}"
    )


def cache_dir() -> pathlib.Path:
    """Return where fetched files go: KERAS_VIT_CACHE, or below ~/.keras."""
    folder = os.environ.get("KERAS_VIT_CACHE")
    if folder:
        return pathlib.Path(folder).expanduser()
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(home).expanduser() / "keras_vit"


def fetch(
    url: str, path: pathlib.Path, sha256: str | None = None
) -> pathlib.Path:
    """Return `path`, downloading it from `url` unless it is there.

    What was received of a download that broke off is kept beside `path` and
    completed the next time. Several processes may ask for one file: one
    fetches it, the others wait.

    Args:
        url: Where the file is.
        path: Where it goes.
        sha256: What its checksum must be; None to record it.

    Raises:
        ConnectionError: If it cannot be fetched; says what to put where.
        ValueError: If it is not the file that was asked for.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # A file of its own: `part` is renamed, or thrown away, by who holds it.
    with open(path.with_name(path.name + ".lock"), "w") as lock, _alone(lock):
        if path.is_file():
            return path
        try:
            with open(part, "ab") as file:
                checksums = _receive(url, file)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise ConnectionError(
                f"{url} could not be fetched: {error}. On a machine with a "
                f"connection, download it and put it at {path}; or set "
                "KERAS_VIT_MIRROR to a copy of the bucket."
            ) from error
        _check(part, path, checksums, sha256)
        os.replace(part, path)
    return path


def _receive(url, file) -> dict[str, str]:
    """Append to `file` what is missing of `url`; return its checksums."""
    have = file.seek(0, os.SEEK_END)
    version = pathlib.Path(f"{file.name}.version")
    request = urllib.request.Request(url)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if version.is_file():
            # Or two halves of different files would be put together.
            request.add_header("If-Range", version.read_text())
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        # Nothing is left to send, or the file has changed: start again.
        file.truncate(0)
        request = urllib.request.Request(url)
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    with answer:
        if answer.status != 206:
            file.truncate(0)
            have = 0
        tag = answer.headers.get("ETag")
        if tag and not tag.startswith("W/"):
            version.write_text(tag)
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left else None
        # On a terminal the bar moves; a log gets a line now and then.
        interval = 0.1 if sys.stdout.isatty() else 10
        bar = keras.utils.Progbar(total, unit_name="B", interval=interval)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            have += len(chunk)
            bar.update(have, finalize=False)
        file.flush()
        if total is not None and have != total:
            raise ConnectionError(f"it broke off after {have:,} of {total:,} B")
        bar.update(have, finalize=True)
        version.unlink(missing_ok=True)
        return _published_checksums(answer.headers)


def _published_checksums(headers) -> dict[str, str]:
    """Return the checksums that Google's storage sends, in hexadecimals."""
    sums = {}
    for line in headers.get_all("x-goog-hash") or ():
        for item in line.split(","):
            name, _, value = item.strip().partition("=")
            if name == "md5":
                sums[name] = base64.b64decode(value).hex()
    return sums


def _check(part, path, checksums, sha256):
    """Raise a ValueError, and drop `part`, if it is not what was published."""
    record = path.with_name(path.name + ".sha256")
    recorded = record.read_text().split() if record.is_file() else []
    recorded = recorded[0] if recorded else None
    digests = {"sha256": hashlib.sha256(), "md5": hashlib.md5()}
    with open(part, "rb") as file:
        while chunk := file.read(CHUNK):
            for digest in digests.values():
                digest.update(chunk)
    found = {name: digest.hexdigest() for name, digest in digests.items()}
    wanted = {**checksums, "sha256": sha256 or recorded or found["sha256"]}
    for name, value in wanted.items():
        if found[name] != value:
            part.unlink()
            raise ValueError(
                f"{path.name} was damaged on the way or has changed: its "
                f"{name} is {found[name]} and should be {value}."
            )
    if sha256 is None and recorded is None:
        record.write_text(f"{found['sha256']}  {path.name}\n")
        print(
            f"No checksum is published for {path.name}; {found['sha256']} "
            f"(sha256) is recorded in {record}."
        )


@contextlib.contextmanager
def _alone(file):
    """Hold other processes up that write to the same file."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows; two downloads would collide there.
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
