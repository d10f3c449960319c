"""The interactive page of one inspection, or of several to compare.

Numbers are packed, see `pack_rows`; data/report has the page and its scripts.
"""

import base64
import dataclasses
import hashlib
import html
import importlib.resources
import io
import json
import os
import re
import zlib
from collections.abc import Sequence

import numpy as np

from keras_vit.analysis.embeddings import scale_filters
from keras_vit.analysis.representations import artefact_tokens
from keras_vit.analysis.rollout import read_prefix
from keras_vit.files import atomic_write
from keras_vit.version import __version__


def pack_rows(rows: np.ndarray, num_prefix_tokens: int, levels: int) -> bytes:
    """Pack rows of attention; data/report/numbers.js unpacks them.

    A number p in a row with the largest number s is stored as the integer
    nearest to levels * sqrt(p / s). The square root assigns most levels to
    small numbers, which are frequent in attention. The error of an unpacked
    number is at most s / levels, because the error of sqrt(p / s) is at most
    half a level.

    The attention of a token to itself and to the class token can be many times
    larger than all other attention. It is stored exactly and excluded from s;
    otherwise, few levels would be left for the rest.

    Shapes:
        rows: (M, Q, T), not negative. If Q is T, row q is that of token q.

    Args:
        rows: M matrices, such as those of the heads of a block.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
        levels: The largest integer, at most 255; a smaller one takes fewer
            bytes.

    Raises:
        ValueError: If a number is negative or not finite.
    """
    rows = np.asarray(rows, "float32")
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        raise ValueError(
            "`rows` must be finite and not negative. Received: numbers from "
            f"{rows.min()} to {rows.max()}"
        )
    own = _diagonal(rows)  # (M, Q)
    patches = rows[:, :, num_prefix_tokens:].copy()  # (M, Q, N)
    if own.size:
        n = np.arange(patches.shape[-1])
        patches[:, num_prefix_tokens + n, n] = 0
    scale = patches.max(axis=-1, initial=0)  # (M, Q)
    roots = np.sqrt(patches / np.where(scale > 0, scale, 1)[..., None])
    parts = (
        scale.astype("<f4"),
        own.astype("<f4"),
        rows[:, :, :num_prefix_tokens].astype("<f4"),
        np.rint(levels * roots).astype("u1"),
    )
    data = b"".join(part.tobytes() for part in parts)
    # The default strategy finds repeated rows; for noise, run-length encoding
    # gives a shorter result.
    return min(
        (_deflate(data, zlib.Z_DEFAULT_STRATEGY), _deflate(data, zlib.Z_RLE)),
        key=len,
    )


def pack_cosines(cosines: np.ndarray) -> bytes:
    """Pack numbers from -1 to 1 on 255 levels, with errors up to 1 / 254."""
    codes = np.rint((np.asarray(cosines, "float32") + 1) * 127)
    return zlib.compress(codes.astype("u1").tobytes(), 6)


def pack_floats(numbers: np.ndarray) -> bytes:
    """Pack float32 numbers without loss."""
    return zlib.compress(np.asarray(numbers, "<f4").tobytes(), 6)


def encode_png(pixels: np.ndarray) -> bytes:
    """Return an image as a PNG file. Needs Pillow.

    Shapes:
        pixels: (H, W, 1 or 3), uint8.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("A page needs Pillow: pip install Pillow") from error
    # Pillow's grey images have no channel axis.
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _deflate(data, strategy):
    squeeze = zlib.compressobj(strategy=strategy)
    return squeeze.compress(data) + squeeze.flush()


def _diagonal(rows):
    """Return the attention of tokens to themselves: (M, T), or (M, 0)."""
    if rows.shape[1] != rows.shape[2]:
        return rows[:, :0, 0]
    return np.diagonal(rows, axis1=1, axis2=2)


# Number of classes whose probabilities are shown.
NUM_PREDICTIONS = 5


@dataclasses.dataclass(frozen=True)
class Detail:
    """The amount of attention in a page.

    Args:
        levels: Number of levels in which numbers are stored, see `pack_rows`.
        has_all_tokens: Whether the page contains the attention of every token.
            Otherwise, it contains only the attention of the tokens that the
            head of the model reads; rollout and relevance are complete.
    """

    levels: int
    has_all_tokens: bool

    @property
    def precision(self) -> str:
        """The precision of the numbers of the page."""
        return (
            "Attention, rollout and relevance are stored on "
            f"{self.levels + 1} levels: in the map of one token, the error of "
            f"a number is at most {100 / self.levels:.1f} % of the largest "
            "number, and less for small numbers; the error of a mean of maps "
            "is at most the mean of their errors. The attention of a token to "
            "itself and to the class token is exact."
        )

    @property
    def left_out(self) -> str:
        """The parts that the page omits."""
        if self.has_all_tokens:
            return ""
        return (
            "To keep the page small, attention is shown only for the tokens "
            "that the head of the model reads, and not from single patches; "
            "rollout and relevance are complete."
        )


class Packets:
    """The packed numbers of a page, in separate HTML elements.

    The browser unpacks an element when the page shows it.
    """

    def __init__(self):
        self.elements = []

    def add(self, data: bytes) -> int:
        """Add packed numbers; return the number of their element."""
        number = len(self.elements)
        text = base64.b64encode(data).decode("ascii")
        self.elements.append(
            f'<script type="text/plain" id="packet-{number}">{text}</script>'
        )
        return number

    def add_rows(
        self, rows: np.ndarray, num_prefix_tokens: int, levels: int
    ) -> dict:
        """Add rows; return the fields that the page needs to unpack them."""
        return {
            "packet": self.add(pack_rows(rows, num_prefix_tokens, levels)),
            "shape": list(rows.shape),
        }


def describe_model(inspection, detail: Detail, packets: Packets) -> dict:
    """Return the content of the page for a model, for JSON.

    Args:
        inspection: The inspection of the model.
        detail: The amount of attention in the page.
        packets: Receives the packed numbers.
    """
    config = inspection.config
    blocks, _, heads, *_ = inspection.maps.shape
    return {
        "name": inspection.model_name,
        "summary": (
            f"depth {config.depth}, {config.num_heads} heads, width "
            f"{config.width}, patches of {inspection.patch_size} pixels"
        ),
        "blocks": blocks,
        "heads": heads,
        "grid": list(inspection.grid_size),
        "patch_size": inspection.patch_size,
        "num_prefix_tokens": inspection.num_prefix_tokens,
        "reads_patches": inspection.reads_patches,
        "read_prefix": list(read_prefix(inspection.config)),
        "distances": _round(inspection.distances),
        "similarity": _describe_similarity(inspection, packets),
        "filters": _describe_filters(inspection),
        "images": [
            _describe_image(inspection, i, detail, packets)
            for i in range(len(inspection.pixels))
        ],
    }


def guess_size(inspection, detail: Detail) -> float:
    """Estimate the bytes of the attention in a page.

    The estimate is based on one head of each block, in one image.

    Args:
        inspection: The inspection of the model.
        detail: The amount of attention in the page.
    """
    _, images, heads, *_ = inspection.maps.shape
    maps = inspection.maps[:, 0, 0]  # (layers, T, T)
    rows = maps if detail.has_all_tokens else _read_rows(inspection, maps)
    packed = pack_rows(rows, inspection.num_prefix_tokens, detail.levels)
    # Base64 encodes three bytes as four.
    return 4 / 3 * images * heads * len(packed)


def _describe_image(inspection, i, detail, packets):
    prefix, levels = inspection.num_prefix_tokens, detail.levels
    norms = inspection.token_norms[:, i]  # (layers, T)
    artefacts = artefact_tokens(norms, prefix)
    height, width, _ = inspection.pixels[i].shape
    rollout = inspection.rollouts[i : i + 1]
    return {
        "name": inspection.image_names[i],
        "size": [height, width],
        "png": _png(inspection.pixels[i]),
        "attention": [
            _describe_block(inspection, maps, detail, packets)
            for maps in inspection.maps[:, i]
        ],
        "rollout": packets.add_rows(rollout, prefix, levels),
        "norms": packets.add(pack_floats(norms)),
        "artefacts": [np.flatnonzero(block).tolist() for block in artefacts],
        "predictions": _describe_predictions(inspection, i),
        "relevance": _describe_relevance(inspection, i, levels, packets),
    }


def _describe_block(inspection, maps, detail, packets):
    """Describe the attention (K, T, T) of the heads of a block."""
    prefix, levels = inspection.num_prefix_tokens, detail.levels
    if detail.has_all_tokens:
        return {"heads": packets.add_rows(maps, prefix, levels)}
    read = _read_rows(inspection, maps)
    return {"read": packets.add_rows(read, prefix, levels)}


def _read_rows(inspection, matrices):
    """Return the rows that the head reads, averaged: (M, T, T) to (M, 1, T)."""
    prefix = inspection.num_prefix_tokens
    read = list(read_prefix(inspection.config))
    read = slice(prefix, None) if inspection.reads_patches else read
    return matrices[:, read].mean(axis=1, keepdims=True, dtype="float32")


def _describe_predictions(inspection, i):
    if inspection.probabilities is None:
        return None
    likeliest = np.argsort(-inspection.probabilities[i], kind="stable")
    return [
        _describe_class(inspection, i, index)
        for index in likeliest[:NUM_PREDICTIONS]
    ]


def _describe_relevance(inspection, i, levels, packets):
    if inspection.relevances is None:
        return None
    rows = inspection.relevances[i]  # (k, T, T)
    classes = [
        _describe_class(inspection, i, index)
        for index in inspection.top_classes[i]
    ]
    packed = packets.add_rows(rows, inspection.num_prefix_tokens, levels)
    return {**packed, "classes": classes}


def _describe_class(inspection, i, index):
    return {
        "name": inspection.class_name(int(index)),
        "probability": float(inspection.probabilities[i, index]),
    }


def _describe_similarity(inspection, packets):
    similarity = inspection.similarity
    if similarity is None:
        return None
    return {
        "packet": packets.add(pack_cosines(similarity)),
        "grid": list(similarity.shape[:2]),
    }


def _describe_filters(inspection):
    if inspection.filters is None:
        return None
    filters, shares = inspection.filters
    if filters.shape[-1] not in (1, 3):
        filters = filters.mean(axis=-1, keepdims=True)
    pictures = np.rint(255 * scale_filters(filters)).astype("u1")
    return [
        {"png": _png(picture), "share": float(share)}
        for picture, share in zip(pictures, shares)
    ]


def _png(pixels):
    return base64.b64encode(encode_png(pixels)).decode("ascii")


def _round(numbers):
    # A plot shows fewer than four digits.
    return [[float(f"{x:.4g}") for x in row] for row in numbers]


# The most detailed first; a page uses the first one that fits.
DETAILS = (
    Detail(levels=255, has_all_tokens=True),
    Detail(levels=39, has_all_tokens=True),
    Detail(levels=15, has_all_tokens=True),
    Detail(levels=255, has_all_tokens=False),
)


TITLE = "Inside a Vision Transformer"
# The scripts of the page, in order. They share one scope.
SCRIPTS = (
    "numbers",
    "state",
    "views",
    "drawing",
    "panel",
    "details",
    "distances",
    "controls",
    "main",
)


def write_page(
    inspections: Sequence,
    path: str | os.PathLike,
    *,
    max_bytes: int = 15_000_000,
    title: str = TITLE,
):
    """Write the interactive page of inspections. Needs Pillow.

    The page is a single file that needs neither a server nor the network. An
    existing file is replaced atomically.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        path: The file, such as "report.html". Missing folders are created.
        max_bytes: See `render_page`.
        title: Title of the page.

    Raises:
        ValueError: See `render_page`.
        OSError: If the file cannot be written.
    """
    page = render_page(inspections, max_bytes=max_bytes, title=title)
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def render_page(
    inspections: Sequence, *, max_bytes: int = 15_000_000, title: str = TITLE
) -> str:
    """Return the interactive page of inspections, as HTML. Needs Pillow.

    The page contains as much of the attention as fits, see DETAILS. It states
    what it omits and the precision of its numbers.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        max_bytes: Largest size of the page.
        title: Title of the page.

    Raises:
        ValueError: If there is no inspection, if the inspections are of
            different images, if a number is not finite, or if `max_bytes` is
            too small even for the last row of DETAILS.
    """
    page = _fit(inspections, max_bytes, title)
    num_bytes = len(page.encode("utf-8"))
    if num_bytes > max_bytes:
        raise ValueError(
            f"`max_bytes` must be at least {num_bytes:,} for these "
            f"inspections. Received: max_bytes={max_bytes:,}"
        )
    return page


def render_frame(
    inspections: Sequence, *, max_bytes: int = 4_000_000, height: int = 720
) -> str:
    """Return the page inside a frame, for a notebook. Needs Pillow.

    Args:
        inspections: See `render_page`.
        max_bytes: Preferred largest size of the page. The last row of DETAILS
            is used even if the page is larger.
        height: Height of the frame, in pixels.
    """
    page = _fit(inspections, max_bytes, TITLE)
    # Without allow-same-origin, the page cannot access the notebook.
    return (
        f'<iframe title="{TITLE}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {height}px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _fit(inspections, max_bytes, title):
    """Return the page with the first of DETAILS that fits, or the last."""
    if not isinstance(inspections, Sequence):
        inspections = (inspections,)
    names = {inspection.image_names for inspection in inspections}
    if len(names) != 1 or names == {()}:
        raise ValueError(
            "`inspections` must be one or more, of the same images. "
            f"Received: {len(inspections)} inspections, of images called "
            f"{sorted(names)}"
        )
    *greater, least = DETAILS
    for detail in greater:
        # Packing the maps of a large model in vain would take minutes.
        guess = sum(
            guess_size(inspection, detail) for inspection in inspections
        )
        if guess > 1.25 * max_bytes:
            continue
        page = _render(inspections, detail, title)
        if len(page.encode("utf-8")) <= max_bytes:
            return page
    return _render(inspections, least, title)


def _render(inspections: Sequence, detail: Detail, title: str):
    packets = Packets()
    content = {
        "levels": detail.levels,
        "precision": detail.precision,
        "left_out": detail.left_out,
        "models": [
            describe_model(inspection, detail, packets)
            for inspection in inspections
        ],
    }
    # A "<" in a script could end the script.
    content = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    style = f"{_read('cards.css')}\n{_read('report/style.css')}"
    script = _join_scripts()
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'"
    )
    # File names may contain bytes that are not UTF-8, as surrogates.
    title = title.encode("utf-8", "replace").decode("utf-8")
    parts = {
        "title": html.escape(title),
        "version": __version__,
        "policy": policy,
        "style": style,
        "script": script,
        "content": content,
        "packets": "\n".join(packets.elements),
    }
    # In one pass, so that no text in a part is read as a placeholder.
    return re.sub(
        r"\{\{(\w+)\}\}",
        lambda place: parts[place[1]],
        _read("report/page.html"),
    )


def _join_scripts():
    """Return all scripts as one, in a separate scope."""
    scripts = "\n".join(_read(f"report/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{scripts}}})();\n'


def _read(name):
    folder = importlib.resources.files("keras_vit") / "data"
    return (folder / name).read_text(encoding="utf-8")


def _hash(text):
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
