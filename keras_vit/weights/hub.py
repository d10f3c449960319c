"""The published checkpoints: their names, and downloads into the cache.

PRETRAINED are the files of Google's two repositories, HUB_MODELS models on
Hugging Face's hub, and `augreg` names the 52,000 files of AugReg. Neither
`keras.utils.get_file` nor pooch resumes an interrupted download or keeps two
processes from downloading the same file, so `fetch` does both.
"""

import base64
import contextlib
import dataclasses
import hashlib
import http.client
import math
import numbers
import os
import pathlib
import re
import types
import urllib.error
import urllib.parse
import urllib.request
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.progress import ProgressBar
from keras_vit.tables import guess, pick
from keras_vit.weights.containers import (
    OPEN_CLIP,
    OPEN_CLIP_JSON,
    PICKLE_ENDINGS,
    SHARD_INDEX,
    WEIGHTS,
    WHY_NO_PICKLES,
    read_json,
)

STORAGE = "https://storage.googleapis.com"
HUB = "https://huggingface.co"
SCHEME = "hf://"
# A repository has one or more of each. The first one there is fetched.
CONFIGURATIONS = ("config.json", OPEN_CLIP_JSON)
WEIGHT_FILES = (WEIGHTS, SHARD_INDEX, OPEN_CLIP)
WEIGHT_FILE_ENDINGS = (".safetensors", ".npz", ".h5", *PICKLE_ENDINGS)
# Files that tell how images are read; not every repository has one.
DESCRIPTIONS = ("preprocessor_config.json", "processor_config.json")
CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 60
NO_HEADERS = types.MappingProxyType({})


# ------------------------------------------------------ a name or a path


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
    is_name = text in HUB_MODELS or find_pretrained(text) is not None
    if text and (holds_weights(path) if is_name else path.exists()):
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


def holds_weights(path: str | os.PathLike) -> bool:
    """Return whether a path is a file, or a folder with files of weights.

    A folder of another kind may be called like a pretrained model.

    Args:
        path: The path.
    """
    path = pathlib.Path(path)
    return path.is_file() or (
        path.is_dir()
        and any(item.suffix in WEIGHT_FILE_ENDINGS for item in path.iterdir())
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


# ------------------------------------------------- repositories of the hub


class Repository(NamedTuple):
    """A repository of the hub.

    Args:
        name: "owner/name".
        revision: A branch, a tag, a commit or a proposal ("refs/pr/1").
    """

    name: str
    revision: str = "main"

    @property
    def folder(self) -> pathlib.Path:
        """Where its files are kept."""
        name = self.name
        if self.revision != "main":
            # A slash would be one folder in another.
            name += f"@{urllib.parse.quote(self.revision, safe='')}"
        return cache_dir() / "huggingface" / name

    def url(self, file: str) -> str:
        """Return the address of a file, on HF_ENDPOINT if that is set.

        Args:
            file: Name of the file.
        """
        endpoint = os.environ.get("HF_ENDPOINT") or HUB
        revision = urllib.parse.quote(self.revision, safe="")
        path = f"{self.name}/resolve/{revision}/{urllib.parse.quote(file)}"
        return f"{endpoint.rstrip('/')}/{path}"


def parse_repository(text: str) -> Repository | None:
    """Return the repository that a text names, or None.

    Args:
        text: "hf://owner/name", with "@revision" behind it or not,
            "timm/name", or the address of the page of a repository.

    Raises:
        ValueError: If it starts with "hf://" and names no repository.
    """
    name = r"\w[\w.-]*"
    revision = rf"(?:@|/tree/)({name}(?:/{name})*)"
    start = f"(?:{SCHEME}|{re.escape(HUB)}/)"
    match = re.fullmatch(rf"{start}({name}/{name})(?:{revision})?/?", text)
    if match:
        return Repository(match[1], match[2] or "main")
    if text.startswith(SCHEME):
        raise ValueError(
            "A model of the hub is named hf://OWNER/NAME or "
            f"hf://OWNER/NAME@REVISION. Received: {text!r}"
        )
    if match := re.fullmatch(rf"(timm/{name})/?", text):
        return Repository(match[1])
    return None


def fetch_repository(repository: Repository) -> pathlib.Path:
    """Return the folder of a repository's model; download missing files.

    The token of the environment variable HF_TOKEN is sent to the hub, for
    models that need an account.

    Args:
        repository: The repository.

    Raises:
        ConnectionError: If a download fails. The message states which file to
            put where.
    """
    folder = repository.folder
    _fetch_first(repository, CONFIGURATIONS)
    _fetch_first(repository, WEIGHT_FILES)
    if (folder / SHARD_INDEX).is_file():
        shards = read_json(folder / SHARD_INDEX).get("weight_map") or {}
        for file in sorted(set(map(str, shards.values()))):
            # open_checkpoint refuses other names.
            if file == os.path.basename(file):
                _fetch(repository, file)
    for file in DESCRIPTIONS:
        _fetch_if_there(repository, file)
    return folder


def _fetch_first(repository, files):
    """Fetch the first of some files that a repository has."""
    folder, errors = repository.folder, []
    if any((folder / file).is_file() for file in files):
        return
    for file in files:
        try:
            return _fetch(repository, file)
        except ConnectionError as error:
            errors.append(error)
            if _status(error) != 404:
                break
    are_absent = _status(errors[-1]) == 404
    error = errors[0] if are_absent else errors[-1]
    advice = ""
    if are_absent and files is WEIGHT_FILES:
        advice = (
            f" If {repository.name} has its weights as .bin or .pt alone: "
            f"such a file is {WHY_NO_PICKLES}."
        )
    raise ConnectionError(
        f"{error} In all, the folder {folder} needs {CONFIGURATIONS[0]} or "
        f"{CONFIGURATIONS[1]}, one of {', '.join(WEIGHT_FILES)} with its "
        f"shards, and {DESCRIPTIONS[0]}, as far as {repository.name} has them."
        f"{advice}"
    ) from error.__cause__


def _fetch(repository, file):
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        fetch(
            repository.url(file),
            repository.folder / file,
            headers=headers,
            advice="or set HF_ENDPOINT to a mirror of the hub",
        )
    except ConnectionError as error:
        if _status(error) in (401, 403):
            raise ConnectionError(
                f"{error} Either there is no {repository.name}: the hub "
                "answers so for a mistyped name. Or it is for accounts that "
                "accepted its licence: accept it on the page of the model, "
                "and put a token of your account into the environment "
                "variable HF_TOKEN."
            ) from error
        raise


def _fetch_if_there(repository, file):
    """Fetch a file that not every repository has; remember if it has not."""
    absent = repository.folder / f".no_{file}"
    if absent.exists():
        return
    try:
        _fetch(repository, file)
    except ConnectionError as error:
        # Without a connection, the weights are enough.
        if _status(error) == 404:
            absent.touch()


def _status(error) -> int | None:
    """Return the HTTP status behind an error of `fetch`."""
    return getattr(error.__cause__, "code", None)


# -------------------------------------------------------------- downloads


def cache_dir() -> pathlib.Path:
    """Return the download folder: KERAS_VIT_CACHE or ~/.keras/keras_vit."""
    folder = os.environ.get("KERAS_VIT_CACHE")
    if folder:
        return pathlib.Path(folder).expanduser()
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(home).expanduser() / "keras_vit"


def fetch(
    url: str,
    path: pathlib.Path,
    sha256: str | None = None,
    headers: dict[str, str] = NO_HEADERS,
    advice: str = "or set KERAS_VIT_MIRROR to a copy of the bucket",
) -> pathlib.Path:
    """Return `path`, downloading it from `url` unless it exists.

    The first part of an interrupted download is kept beside `path`. The next
    call completes it if the server confirms that the file is unchanged. If
    several processes request the same file, one downloads it and the others
    wait.

    Args:
        url: Address of the file.
        path: Path of the downloaded file.
        sha256: Checksum of the file; None records the checksum of the first
            download beside the file.
        headers: Headers for this server, such as a token. They are not sent
            to another server that it redirects to.
        advice: What else the user can do if the download fails.

    Raises:
        ConnectionError: If the download fails. The message states where to
            place the file manually.
        ValueError: If the checksum is wrong.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # The lock is a separate file, because the process that holds the lock
    # renames or removes `part`.
    with open(path.with_name(path.name + ".lock"), "w") as lock, _alone(lock):
        if path.is_file():
            return path
        try:
            with open(part, "ab") as file:
                checksums = _receive(url, file, headers)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if not part.stat().st_size:
                part.unlink()  # There is nothing to go on from.
            raise ConnectionError(
                f"{url} could not be fetched: {error}. On a machine with a "
                f"connection, download it and put it at {path}; {advice}."
            ) from error
        _check(part, path, checksums, sha256)
        os.replace(part, path)
    return path


def _receive(url, file, headers) -> dict[str, str]:
    """Append the missing part of `url` to `file`; return its checksums."""
    version = pathlib.Path(f"{file.name}.version")
    with _ask(url, file, version, headers) as answer:
        if answer.status != 206:
            file.truncate(0)
            version.unlink(missing_ok=True)
        have = file.seek(0, os.SEEK_END)
        tag = answer.headers.get("ETag", "")
        if tag and not tag.startswith("W/"):
            version.write_text(tag)
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left else None
        _copy(answer, file, have, total)
        version.unlink(missing_ok=True)
        return _published_checksums(answer.headers)


def _ask(url, file, version, headers):
    """Return the server's response: the rest of the file, or all of it.

    The rest is requested only with a strong ETag of the first part, so parts
    of two different files are never joined (RFC 9110, 13.1.5).
    """
    have = file.seek(0, os.SEEK_END)
    if have and version.is_file():
        rest = {"Range": f"bytes={have}-", "If-Range": version.read_text()}
        request = _request(url, headers, rest)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # The server has nothing left to send: start again.
            error.close()
    return urllib.request.urlopen(
        _request(url, headers), timeout=TIMEOUT_SECONDS
    )


def _request(url, headers, others=NO_HEADERS):
    """Return a request; `headers` are for the first server alone."""
    request = urllib.request.Request(url, headers=others)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return request


def _copy(answer, file, have, total):
    """Append the response to `file` and show the progress."""
    megabytes = None if total is None else total / 1e6
    with ProgressBar("Downloading", "MB", megabytes) as bar:
        while chunk := answer.read(CHUNK_BYTES):
            file.write(chunk)
            have += len(chunk)
            bar.update(have / 1e6)
        file.flush()
        if total is not None and have != total:
            raise ConnectionError(f"it broke off after {have:,} of {total:,} B")


def _published_checksums(headers) -> dict[str, str]:
    """Return the checksum in the headers of Google's storage, as hex."""
    text = ",".join(headers.get_all("x-goog-hash") or ())
    found = re.search(r"\bmd5=([\w+/=]+)", text)
    return {"md5": base64.b64decode(found[1]).hex()} if found else {}


def _check(part, path, checksums, sha256):
    """Remove `part` and raise a ValueError if its checksum is wrong."""
    record = path.with_name(path.name + ".sha256")
    recorded = record.read_text().split() if record.is_file() else []
    recorded = recorded[0] if recorded else None
    digests = {"sha256": hashlib.sha256(), "md5": hashlib.md5()}
    with open(part, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            for digest in digests.values():
                digest.update(chunk)
    found = {name: digest.hexdigest() for name, digest in digests.items()}
    wanted = {**checksums, "sha256": sha256 or recorded or found["sha256"]}
    for name, value in wanted.items():
        if found[name] != value:
            part.unlink()
            raise ValueError(
                f"{path.name} was damaged in transfer or has changed: its "
                f"{name} is {found[name]} and should be {value}."
            )
    if sha256 is None and recorded is None:
        record.write_text(f"{found['sha256']}  {path.name}\n")
        if path.suffix == ".json":
            return
        print(
            f"No checksum is published for {path.name}; {found['sha256']} "
            f"(sha256) is recorded in {record}."
        )


@contextlib.contextmanager
def _alone(file):
    """Hold the lock `file`; wait until no other process holds it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows, where two downloads may collide.
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


# ----------------------------------------------------------------- AugReg


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

    The name can be used in place of a key of PRETRAINED. The file
    `augreg/index.csv` of the bucket lists the existing checkpoints; the
    authors select by its column `final_val`.

    Args:
        model: "Ti_16", "S_16", "S_32", "B_8", "B_16", "B_32", "L_16",
            "R_Ti_16", "R26_S_32" or "R50_L_32".
        data: The data of the pre-training: "i21k" or "i1k".
        epochs: Number of epochs of the pre-training.
        learning_rate: Learning rate of the pre-training.
        augmentation: "none", "light0", "light1", "medium1", "medium2",
            "strong1" or "strong2". The file names count the light levels from
            zero, and the paper counts them from one.
        weight_decay: Weight decay of the pre-training.
        dropout_rate: Dropout rate of the pre-training.
        stochastic_depth_rate: Rate of stochastic depth in the pre-training.
        dataset: The data of the fine-tuning, such as "imagenet2012"; None for
            the pre-trained model.
        steps: Number of updates of the fine-tuning. The name contains this
            number in thousands, rounded down.
        tuning_rate: Learning rate of the fine-tuning.
        image_size: Side of the images of the fine-tuning, in pixels.

    Raises:
        ValueError: If no checkpoint name contains one of the values.

    Example:
        >>> augreg("Ti_16", augmentation="none", weight_decay=0.03)
        'Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0'

    Reference: Steiner et al. 2021, arXiv:2106.10270.
    """
    pick(AUGREG_MODELS, model, "model")
    pick(PRETRAINING_CLASSES, data, "data")
    pick(dict.fromkeys(AUGREG_AUGMENTATIONS), augmentation, "augmentation")
    _check_numbers(
        numbers.Real,
        "number",
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        dropout_rate=dropout_rate,
        stochastic_depth_rate=stochastic_depth_rate,
        tuning_rate=tuning_rate,
    )
    _check_numbers(
        numbers.Integral,
        "whole number",
        epochs=epochs,
        steps=steps,
        image_size=image_size,
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


def _check_numbers(kind, title, **arguments):
    for argument, value in arguments.items():
        if not isinstance(value, kind) or not 0 <= value < math.inf:
            raise ValueError(
                f"`{argument}` must be a {title}, 0 or more. "
                f"Received: {argument}={value!r}"
            )


def parse_augreg(name: str) -> dict | None:
    """Parse an AugReg name into the arguments of `Pretrained`.

    Args:
        name: A name as `augreg` returns it.

    Returns:
        The arguments; None if `name` is not a name of AugReg.
    """
    found = AUGREG_NAME.fullmatch(name)
    if not found:
        return None
    return {
        "file": f"vit_models/augreg/{name}.npz",
        "variant": AUGREG_MODELS[found["model"]],
        "image_size": int(found["size"] or 224),
        "num_classes": AUGREG_DATASETS.get(
            found["tuned"], PRETRAINING_CLASSES[found["data"]]
        ),
    }


# Model in the file name -> variant.
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
    "none light0 light1 medium1 medium2 strong1 strong2".split()
)
# Data set of the fine-tuning -> number of classes.
AUGREG_DATASETS = {
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "resisc45": 45,
    "kitti": 4,
}
# Data set of the pre-training -> number of classes.
PRETRAINING_CLASSES = {"i21k": 21_843, "i1k": 1000}
_REAL = r"\d+(\.\d+)?(e-\d+)?"
AUGREG_NAME = re.compile(
    rf"(?P<model>{'|'.join(AUGREG_MODELS)})-(?P<data>i1k|i21k)-\d+ep-lr_{_REAL}"
    rf"-aug_({'|'.join(AUGREG_AUGMENTATIONS)})-wd_{_REAL}-do_{_REAL}-sd_{_REAL}"
    rf"(--(?P<tuned>{'|'.join(AUGREG_DATASETS)})-steps_\d+k-lr_{_REAL}-res_(?P<size>\d+))?"
)


# ----------------------------------------------------------------- tables


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


class HubModel(NamedTuple):
    """A model on the hub.

    Args:
        repository: "owner/name".
        image_size: Side of its images, in pixels.
        licence: Its licence, as the repository names it.
    """

    repository: str
    image_size: int
    licence: str


def _timm(name, image_size, licence="apache-2.0"):
    return HubModel(f"timm/{name}", image_size, licence)


# Name -> model. Source of addresses, sizes and licences: timm 1.0.31.
HUB_MODELS = {
    "S/14-dinov2": _timm("vit_small_patch14_dinov2.lvd142m", 518),
    "B/14-dinov2": _timm("vit_base_patch14_dinov2.lvd142m", 518),
    "L/14-dinov2": _timm("vit_large_patch14_dinov2.lvd142m", 518),
    "g/14-dinov2": _timm("vit_giant_patch14_dinov2.lvd142m", 518),
    "B/14-dinov2-reg4": _timm("vit_base_patch14_reg4_dinov2.lvd142m", 518),
    "S/16-dinov3": _timm(
        "vit_small_patch16_dinov3.lvd1689m", 256, "dinov3-license"
    ),
    "B/16-dinov3": _timm(
        "vit_base_patch16_dinov3.lvd1689m", 256, "dinov3-license"
    ),
    "L/16-dinov3": _timm(
        "vit_large_patch16_dinov3.lvd1689m", 256, "dinov3-license"
    ),
    "B/32-clip-openai": _timm("vit_base_patch32_clip_224.openai", 224),
    "B/16-clip-openai": _timm("vit_base_patch16_clip_224.openai", 224),
    "L/14-clip-openai": _timm("vit_large_patch14_clip_224.openai", 224),
    "B/16-clip-laion2b": _timm("vit_base_patch16_clip_224.laion2b", 224),
    "L/14-clip-laion2b": _timm("vit_large_patch14_clip_224.laion2b", 224),
    "H/14-clip-laion2b": _timm("vit_huge_patch14_clip_224.laion2b", 224),
    "B/16-siglip": _timm("vit_base_patch16_siglip_224.webli", 224),
    "So400m/14-siglip": _timm("vit_so400m_patch14_siglip_384.webli", 384),
    "B/16-siglip2": _timm("vit_base_patch16_siglip_224.v2_webli", 224),
    "So400m/16-siglip2": _timm("vit_so400m_patch16_siglip_384.v2_webli", 384),
    "B/14-eva02": _timm(
        "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", 448, "mit"
    ),
    "L/14-eva02": _timm(
        "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", 448, "mit"
    ),
    "B/16-beit": _timm("beit_base_patch16_224.in22k_ft_in22k_in1k", 224),
    "B/16-beit2": _timm("beitv2_base_patch16_224.in1k_ft_in22k_in1k", 224),
    "B/16-deit3": _timm("deit3_base_patch16_224.fb_in22k_ft_in1k", 224),
    "L/16-deit3": _timm("deit3_large_patch16_384.fb_in22k_ft_in1k", 384),
    "B/16-deit-distilled": _timm(
        "deit_base_distilled_patch16_224.fb_in1k", 224
    ),
    "B/16-mae": _timm("vit_base_patch16_224.mae", 224, "cc-by-nc-4.0"),
    "L/16-mae": _timm("vit_large_patch16_224.mae", 224, "cc-by-nc-4.0"),
    "L/14-aimv2": _timm("aimv2_large_patch14_224.apple_pt", 224, "apple-ascl"),
    "B/16-pe-core": _timm("vit_pe_core_base_patch16_224.fb", 224),
    "L/14-pe-core": _timm("vit_pe_core_large_patch14_336.fb", 336),
}
