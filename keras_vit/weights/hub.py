"""The published checkpoints: their names, and downloads into the cache.

PRETRAINED are the files of Google's two repositories, with 52,000 more by the
names of AugReg, and HUB_MODELS models on Hugging Face's hub. Neither
`keras.utils.get_file` nor pooch resumes an interrupted download or keeps two
processes from downloading the same file, so `fetch` does both.
"""

import base64
import dataclasses
import hashlib
import http.client
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
from keras_vit.tables import guess
from keras_vit.weights.containers import (
    FLAX_WEIGHTS,
    OPEN_CLIP,
    OPEN_CLIP_JSON,
    PICKLE_ENDINGS,
    SHARD_INDEX,
    TF_WEIGHTS,
    WEIGHTS,
    WHY_NO_PICKLES,
    read_json,
)

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where two downloads may collide.
    fcntl = None

STORAGE = "https://storage.googleapis.com"
HUB = "https://huggingface.co"
SCHEME = "hf://"
# A repository has one or more of each. The first one there is fetched.
CONFIGURATIONS = ("config.json", OPEN_CLIP_JSON)
WEIGHT_FILES = (WEIGHTS, SHARD_INDEX, OPEN_CLIP, TF_WEIGHTS, FLAX_WEIGHTS)
WEIGHT_FILE_ENDINGS = (
    ".safetensors",
    ".npz",
    ".h5",
    ".msgpack",
    *PICKLE_ENDINGS,
)
# Files that tell how images are read; not every repository has one.
DESCRIPTIONS = ("preprocessor_config.json", "processor_config.json")
# Those of a tokenizer, of which a repository has some.
TOKENIZER_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "spiece.model",
)
CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 60
NO_HEADERS = types.MappingProxyType({})


# ------------------------------------------------------ a name or a path


def locate(path_or_name: str | os.PathLike) -> pathlib.Path:
    """Return the local file of a path, URL or name; download it if needed.

    Args:
        path_or_name: A path, a URL (https:// or gs://), a key of PRETRAINED
            or HUB_MODELS, a name of AugReg, or a repository of Hugging Face's
            hub: "hf://owner/name", "timm/name" or the address of its page.

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
    row = find_pretrained(text)
    is_name = row is not None or text in HUB_MODELS
    if text and (holds_weights(path) if is_name else path.exists()):
        return path
    if row is not None:
        return fetch(row.url, cache_dir() / row.file)
    if text in HUB_MODELS:
        text = f"{SCHEME}{HUB_MODELS[text].repository}"
    if repository := parse_repository(text):
        return fetch_repository(repository)
    if text.startswith("gs://"):
        text = f"{STORAGE}/{text.removeprefix('gs://')}"
    if text.startswith(("https://", "http://")):
        name = pathlib.PurePosixPath(urllib.parse.urlparse(text).path).name
        # Files of different sites may have the same name.
        folder = hashlib.sha256(text.encode()).hexdigest()[:16]
        return fetch(text, cache_dir() / "url" / folder / name)
    if os.path.isabs(path) or text.startswith("."):
        raise ValueError(f"There is no file or folder {text!r}.")
    hint = guess(text, (*PRETRAINED, *HUB_MODELS), 3) or "."
    if hint == "." and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text):
        hint = f". A repository of the hub is named 'hf://{text}'."
    raise ValueError(
        f"There is no file {text!r}, and no pretrained model of that name; "
        f"`keras_vit.PRETRAINED` and `keras_vit.HUB_MODELS` list them{hint}"
    )


def holds_weights(path: str | os.PathLike) -> bool:
    """Return whether a path is a file, or a folder with files of weights.

    A folder of another kind may be called like a pretrained model.
    """
    path = pathlib.Path(path)
    return path.is_file() or (
        path.is_dir()
        and any(item.suffix in WEIGHT_FILE_ENDINGS for item in path.iterdir())
    )


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
        """Return the address of a file, on HF_ENDPOINT if that is set."""
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
            # `open_file` refuses other names.
            if file == os.path.basename(file):
                _fetch(repository, file)
    # Without a connection, the weights are enough.
    _fetch_those_there(repository, DESCRIPTIONS)
    return folder


def locate_tokenizer(path_or_name: str | os.PathLike) -> pathlib.Path:
    """Return the folder with the tokenizer of a model; fetch it of the hub."""
    path, text = locate(path_or_name), os.fspath(path_or_name)
    if text in HUB_MODELS and path.is_relative_to(cache_dir()):
        text = f"{SCHEME}{HUB_MODELS[text].repository}"
    repository = parse_repository(text)
    if repository and path == repository.folder:
        _fetch_those_there(repository, TOKENIZER_FILES)
    return path if path.is_dir() else path.parent


def _fetch_those_there(repository, files):
    """Fetch files that not every repository has, as far as they can be."""
    for file in files:
        # That there is none is remembered.
        absent = repository.folder / f".no_{file}"
        if absent.exists():
            continue
        try:
            _fetch(repository, file)
        except ConnectionError as error:
            if _status(error) == 404:
                absent.touch()


def _fetch_first(repository, files):
    """Fetch the first of some files that a repository has."""
    folder, error = repository.folder, None
    if any((folder / file).is_file() for file in files):
        return
    for file in files:
        try:
            return _fetch(repository, file)
        except ConnectionError as found:
            if _status(found) != 404:
                error = found
                break
            error = error or found
    advice = ""
    if _status(error) == 404 and files is WEIGHT_FILES:
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
    try:
        fetch(
            repository.url(file),
            repository.folder / file,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            advice="or set HF_ENDPOINT to a mirror of the hub",
        )
    except ConnectionError as error:
        if _status(error) not in (401, 403):
            raise
        raise ConnectionError(
            f"{error} Either there is no {repository.name}: the hub answers "
            "so for a mistyped name. Or it is for accounts that accepted its "
            "licence: accept it on the page of the model, and put a token of "
            "your account into the environment variable HF_TOKEN."
        ) from error


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
    headers: dict[str, str] = NO_HEADERS,
    advice: str = "or set KERAS_VIT_MIRROR to a copy of the bucket",
) -> pathlib.Path:
    """Return `path`, downloading it from `url` unless it exists.

    The first part of an interrupted download is kept beside `path`. The next
    call completes it if the server confirms that the file is unchanged. If
    several processes request the same file, one downloads it and the others
    wait. The SHA-256 of the first download is recorded beside the file, and
    later downloads must have it.

    Args:
        url: Address of the file.
        path: Path of the downloaded file.
        headers: Headers for this server, such as a token. They are not sent
            to another server that it redirects to.
        advice: What else the user can do if the download fails.

    Raises:
        ConnectionError: If the download fails. The message states where to
            place the file manually.
        ValueError: If a checksum is wrong.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # The lock is a separate file, because the process that holds the lock
    # renames or removes `part`. To close the file releases the lock.
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_file():
            return path
        try:
            with open(part, "ab") as file:
                md5 = _receive(url, file, headers)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if not part.stat().st_size:
                part.unlink()  # There is nothing to go on from.
            raise ConnectionError(
                f"{url} could not be fetched: {error}. On a machine with a "
                f"connection, download it and put it at {path}; {advice}."
            ) from error
        _check(part, path, md5)
        os.replace(part, path)
    return path


def _receive(url, file, headers) -> str | None:
    """Append the missing part of `url` to `file`; return the MD5 in the answer.

    The rest is requested only with a strong ETag of the first part, so parts
    of two different files are never joined (RFC 9110, 13.1.5).
    """
    version = pathlib.Path(f"{file.name}.version")
    have, rest = file.seek(0, os.SEEK_END), NO_HEADERS
    if have and version.is_file():
        rest = {"Range": f"bytes={have}-", "If-Range": version.read_text()}
    try:
        answer = _open(url, headers, rest)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        # The server has nothing left to send: start again.
        answer = _open(url, headers)
    with answer:
        if answer.status != 206:
            file.truncate(0)
            version.unlink(missing_ok=True)
            have = 0
        tag = answer.headers.get("ETag", "")
        if tag and not tag.startswith("W/"):
            version.write_text(tag)
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left else None
        with ProgressBar("Downloading", "MB", total and total / 1e6) as bar:
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                bar.update(have / 1e6)
            if total not in (None, have):
                raise ConnectionError(
                    f"it broke off after {have:,} of {total:,} B"
                )
        version.unlink(missing_ok=True)
        # Google's storage sends one line, or several.
        hashes = ",".join(answer.headers.get_all("x-goog-hash") or ())
    found = re.search(r"\bmd5=([\w+/=]+)", hashes)
    return found and base64.b64decode(found[1]).hex()


def _open(url, headers, others=NO_HEADERS):
    """Return the response; `headers` are for the first server alone."""
    request = urllib.request.Request(url, headers=others)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def _check(part, path, md5):
    """Remove `part` and raise a ValueError if its checksum is wrong."""
    record = path.with_name(path.name + ".sha256")
    recorded = record.read_text().split() if record.is_file() else []
    for name, wanted in ("md5", md5), ("sha256", (recorded or [None])[0]):
        with open(part, "rb") as file:
            found = hashlib.file_digest(file, name).hexdigest()
        if wanted not in (None, found):
            part.unlink()
            raise ValueError(
                f"{path.name} was damaged in transfer or has changed: its "
                f"{name} is {found} and should be {wanted}. If the change is "
                f"meant, remove {record}."
            )
    record.write_text(f"{found}  {path.name}\n")


# ----------------------------------------------------------------- tables


class Pretrained(NamedTuple):
    """A published checkpoint, for images in [-1, 1].

    Args:
        file: The bucket and the path in it.
        variant: A key of VARIANTS.
        image_size: Side of the images, in pixels.
        num_classes: Number of classes.
        choices: Fields of `ViTConfig` in which it differs from the variant.
    """

    file: str
    variant: str
    image_size: int = 224
    num_classes: int = 1000
    choices: dict = {}

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

    `file` is the bucket and the path in it.
    """
    mirror = os.environ.get("KERAS_VIT_MIRROR") or STORAGE
    path = urllib.parse.quote(file, safe="/+")
    return f"{mirror.rstrip('/')}/{path}"


def find_pretrained(name: str) -> Pretrained | None:
    """Return the checkpoint called `name`, of PRETRAINED or of AugReg.

    Args:
        name: A key of PRETRAINED, or the name of a file in `augreg/index.csv`
            of the bucket, which lists the 52,000 checkpoints of AugReg, such
            as "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0".

    Reference: Steiner et al. 2021, arXiv:2106.10270.
    """
    found = AUGREG_NAME.fullmatch(name)
    if not found:
        return PRETRAINED.get(name)
    stem, _, patch = found["model"].rpartition("_")
    variant = f"{stem.replace('_', '+')}/{patch}"
    classes = AUGREG_CLASSES[found["tuned"] or found["data"]]
    size = int(found["size"] or 224)
    return Pretrained(f"vit_models/augreg/{name}.npz", variant, size, classes)


# Data set -> number of classes.
AUGREG_CLASSES = {
    "i21k": 21_843,
    "i1k": 1000,
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "resisc45": 45,
    "kitti": 4,
}
# The models of AugReg that its authors recommend: augmentation and weight decay
# of the pre-training on ImageNet-21k, its rate of dropout and of stochastic
# depth, learning rate and image size of the fine-tuning on ImageNet.
AUGREG = {
    "L/16": ("strong1", 0.1, 0.0, 0.01, 384),
    "B/16": ("medium1", 0.1, 0.0, 0.03, 384),
    "S/16": ("light1", 0.03, 0.0, 0.03, 384),
    "R50+L/32": ("medium1", 0.1, 0.1, 0.01, 384),
    "R26+S/32": ("light1", 0.1, 0.0, 0.01, 384),
    "Ti/16": ("none", 0.03, 0.0, 0.03, 384),
    "B/32": ("light1", 0.1, 0.0, 0.01, 384),
    "S/32": ("none", 0.1, 0.0, 0.01, 384),
    "R+Ti/16": ("none", 0.03, 0.0, 0.03, 384),
    "B/8": ("medium2", 0.1, 0.0, 0.03, 224),
}
_STEMS = {variant: re.sub(r"\W", "_", variant) for variant in AUGREG}
_REAL = r"\d+(\.\d+)?(e-\d+)?"
AUGREG_NAME = re.compile(
    rf"(?P<model>{'|'.join(_STEMS.values())})-(?P<data>i1k|i21k)-\d+ep-lr_{_REAL}"
    r"-aug_(none|light0|light1|medium1|medium2|strong1|strong2)"
    rf"-wd_{_REAL}-do_{_REAL}-sd_{_REAL}"
    rf"(--(?P<tuned>{'|'.join(list(AUGREG_CLASSES)[2:])})"
    rf"-steps_\d+k-lr_{_REAL}-res_(?P<size>\d+))?"
)


def _list_pretrained():
    """Yield the names and the rows of PRETRAINED."""

    def of_2020(folder, variant, size, classes=1000, ending="", **choices):
        # In the bucket, R50+B/16 is called R50+ViT-B_16.
        stem, plus, last = variant.rpartition("+")
        name = f"{stem}{plus}ViT-{last.replace('/', '_')}{ending}"
        file = f"vit_models/{folder}/{name}.npz"
        return Pretrained(file, variant, size, classes, choices)

    both = ("B/8", "B/16", "B/32", "L/16", "L/32")
    for variant in (*both, "H/14", "R50+B/16", "R26+B/32", "R50+L/32"):
        width = VARIANTS[variant].config.width
        yield (
            f"{variant}-i21k",
            of_2020(
                "imagenet21k", variant, 224, 21_843, representation_size=width
            ),
        )
    tuned = "imagenet21k+imagenet2012"
    for variant in (*both, "R50+B/16"):
        yield f"{variant}-i21k+i1k", of_2020(tuned, variant, 384)
        if variant in ("B/16", "L/16"):
            row = of_2020(tuned, variant, 224, ending="-224")
            yield f"{variant}-i21k+i1k-224", row
    for variant, (augmentation, decay, rate, tuning, size) in AUGREG.items():
        name = (
            f"{_STEMS[variant]}-i21k-300ep-lr_0.001-aug_{augmentation}"
            f"-wd_{decay}-do_{rate}-sd_{rate}"
        )
        yield f"{variant}-augreg", find_pretrained(name)
        name += f"--imagenet2012-steps_20k-lr_{tuning}-res_{size}"
        yield f"{variant}-augreg-i1k", find_pretrained(name)
    for epochs in (90, 150, 300):
        file = f"big_vision/vit_s16_i1k_{epochs}ep.npz"
        choices = {"position_embedding": "sincos_2d"}
        choices["representation_size"] = 384
        row = Pretrained(file, "S/16-gap", choices=choices)
        yield f"S/16-i1k-{epochs}ep", row
    for variant in ("S/16", "B/16", "B/32", "L/16", "L/32"):
        yield f"{variant}-sam", of_2020("sam", variant, 224)


# A name consists of the variant and the training data. Sources: the READMEs
# of google-research/vision_transformer and google-research/big_vision.
PRETRAINED = dict(_list_pretrained())


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
