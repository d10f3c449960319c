"""The interactive page of one inspection, or of several to compare.

Numbers are packed, see `pack_rows`; data/report has the page and its scripts.
"""

import base64
import hashlib
import html
import importlib.resources
import io
import json
import os
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.analysis.colours import NUMBER_COLOURS
from keras_vit.analysis.embeddings import scale_filters
from keras_vit.analysis.representations import artefact_tokens
from keras_vit.analysis.rollout import head_tokens
from keras_vit.errors import import_packages
from keras_vit.files import atomic_write
from keras_vit.preprocessing.description import as_colours
from keras_vit.version import __version__


def pack_rows(rows: np.ndarray, num_prefix_tokens: int, levels: int) -> bytes:
    """Pack rows of attention; data/report/numbers.js unpacks them.

    A number p in a row with the largest number s is stored as the integer
    nearest to levels * sqrt(p / s). The square root assigns most levels to
    small numbers, which are frequent in attention. The error of an unpacked
    number is at most s / levels, because the error of sqrt(p / s) is at most
    half a level.

    The attention of a token to itself and to those before the patches, such as
    the class token, can be many times larger than all other attention. It is
    stored exactly and excluded from s; otherwise, few levels would be left for
    the rest.

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
    patches = rows[:, :, num_prefix_tokens:].copy()  # (M, Q, N)
    own = rows[:, :0, 0]
    if rows.shape[1] == rows.shape[2]:
        own = np.diagonal(rows, axis1=1, axis2=2)  # (M, Q)
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
    found = []
    for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE):
        squeeze = zlib.compressobj(strategy=strategy)
        found.append(squeeze.compress(data) + squeeze.flush())
    return min(found, key=len)


def encode_png(pixels: np.ndarray) -> bytes:
    """Return an image (H, W, 1 or 3), uint8, as a PNG file. Needs Pillow."""
    import_packages("A page", ["PIL"])
    from PIL import Image

    # Pillow's grey images have no channel axis.
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


# Number of classes whose probabilities are shown.
NUM_PREDICTIONS = 5


class Detail(NamedTuple):
    """The amount of attention in a page.

    Args:
        levels: Number of levels in which numbers are stored, see `pack_rows`.
        has_all_tokens: Whether the page contains the attention of every token.
            Otherwise, it contains only the attention of the tokens that the
            head of the model reads; rollout and relevance are complete.
    """

    levels: int
    has_all_tokens: bool


# The most detailed first; a page uses the first one that fits.
DETAILS = (
    Detail(levels=255, has_all_tokens=True),
    Detail(levels=39, has_all_tokens=True),
    Detail(levels=15, has_all_tokens=True),
    Detail(levels=255, has_all_tokens=False),
)
PRECISION = (
    "Attention, rollout and relevance are stored on {} levels: in the map of "
    "one token, the error of a number is at most {:.1f} % of the largest "
    "number, and less for small numbers; the error of a mean of maps is at "
    "most the mean of their errors. The attention of a token to itself and to "
    "those before the patches is exact."
)
LEFT_OUT = (
    "To keep the page small, attention is shown only for the tokens that the "
    "head of the model reads, and not from single patches; rollout and "
    "relevance are complete."
)


class Content:
    """What a page says of inspections, with as much attention as `detail`.

    Packed numbers are in separate HTML elements. The browser unpacks an
    element when the page shows it.
    """

    def __init__(self, detail: Detail):
        self.detail = detail
        self.packets = []

    def describe(self, inspections: Sequence) -> dict:
        """Return the content of the page, for JSON."""
        levels, has_all_tokens = self.detail
        return {
            "levels": levels,
            "precision": PRECISION.format(levels + 1, 100 / levels),
            "left_out": "" if has_all_tokens else LEFT_OUT,
            "colours": NUMBER_COLOURS,
            "models": [self.describe_model(each) for each in inspections],
        }

    def add(self, data: bytes) -> int:
        """Add packed numbers; return the number of their element."""
        number = len(self.packets)
        text = base64.b64encode(data).decode("ascii")
        self.packets.append(
            f'<script type="text/plain" id="packet-{number}">{text}</script>'
        )
        return number

    def add_rows(self, inspection, rows: np.ndarray) -> dict:
        """Add rows; return the fields that the page needs to unpack them."""
        prefix, levels = inspection.num_prefix_tokens, self.detail.levels
        packed = pack_rows(rows, prefix, levels)
        return {"packet": self.add(packed), "shape": list(rows.shape)}

    def describe_model(self, inspection) -> dict:
        """Return the content of the page on a model."""
        config = inspection.config
        blocks, _, heads, *_ = inspection.maps.shape
        tokens = head_tokens(config)
        similarity = filters = None
        if inspection.similarity is not None:
            # On 255 levels from -1 to 1, with errors up to 1 / 254.
            codes = np.rint((inspection.similarity + 1) * 127).astype("u1")
            similarity = {
                "packet": self.add(zlib.compress(codes.tobytes())),
                "grid": list(codes.shape[:2]),
            }
        if inspection.filters is not None:
            pictures, shares = inspection.filters
            pictures = scale_filters(as_colours(pictures))
            pictures = np.rint(255 * pictures).astype("u1")
            filters = [
                {"png": _png(picture), "share": float(share)}
                for picture, share in zip(pictures, shares)
            ]
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
            "has_class_token": config.use_class_token,
            "reads_patches": not tokens,
            "read_prefix": list(tokens or (0,)),
            # A plot shows fewer than four digits.
            "distances": [
                [float(f"{x:.4g}") for x in row] for row in inspection.distances
            ],
            "similarity": similarity,
            "filters": filters,
            "images": [
                self.describe_image(inspection, i)
                for i in range(len(inspection.pixels))
            ],
        }

    def describe_image(self, inspection, i: int) -> dict:
        """Return the content of the page on a model and an image."""
        norms = inspection.token_norms[:, i]  # (layers, T)
        artefacts = artefact_tokens(norms, inspection.num_prefix_tokens)
        height, width, _ = inspection.pixels[i].shape
        predictions = relevance = None

        def describe_class(index):
            share = float(inspection.probabilities[i, index])
            return {"name": inspection.class_name(index), "probability": share}

        if inspection.probabilities is not None:
            best = np.argsort(-inspection.probabilities[i], kind="stable")
            predictions = list(map(describe_class, best[:NUM_PREDICTIONS]))
        if inspection.relevances is not None:
            relevance = {
                **self.add_rows(inspection, inspection.relevances[i]),
                "classes": list(map(describe_class, inspection.top_classes[i])),
            }
        packed_norms = zlib.compress(np.asarray(norms, "<f4").tobytes())
        return {
            "name": inspection.image_names[i],
            "size": [height, width],
            "png": _png(inspection.pixels[i]),
            "attention": [
                self.describe_block(inspection, maps)
                for maps in inspection.maps[:, i]
            ],
            "rollout": self.add_rows(
                inspection, inspection.rollouts[i : i + 1]
            ),
            "norms": self.add(packed_norms),
            "artefacts": [np.flatnonzero(x).tolist() for x in artefacts],
            "predictions": predictions,
            "relevance": relevance,
        }

    def describe_block(self, inspection, maps) -> dict:
        """Return the attention (K, T, T) of the heads of a block."""
        if self.detail.has_all_tokens:
            return {"heads": self.add_rows(inspection, maps)}
        # The rows that the head reads, averaged: (K, 1, T).
        read = list(head_tokens(inspection.config))
        read = read or slice(inspection.num_prefix_tokens, None)
        rows = maps[:, read].mean(axis=1, keepdims=True, dtype="float32")
        return {"read": self.add_rows(inspection, rows)}


def guess_size(inspection, detail: Detail) -> float:
    """Estimate the bytes of the attention in a page.

    The estimate is based on one head of each block, in one image.
    """
    _, images, heads, *_ = inspection.maps.shape
    content = Content(detail)
    content.describe_block(inspection, inspection.maps[:, 0, 0])
    return images * heads * len(content.packets[0])


def _png(pixels):
    return base64.b64encode(encode_png(pixels)).decode("ascii")


TITLE = "Inside a Vision Transformer"
MAX_BYTES, FRAME_BYTES = 15_000_000, 4_000_000
# The scripts of the page, in order.
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
    max_bytes: int = MAX_BYTES,
):
    """Write the interactive page of inspections. Needs Pillow.

    The page is a single file that needs neither a server nor the network. An
    existing file is replaced atomically.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        path: The file, such as "report.html". Missing folders are created.
        max_bytes: See `render_page`.

    Raises:
        ValueError: See `render_page`.
        OSError: If the file cannot be written.
    """
    page = render_page(inspections, max_bytes=max_bytes)
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def render_page(inspections: Sequence, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the interactive page of inspections, as HTML. Needs Pillow.

    The page contains as much of the attention as fits, see DETAILS. It states
    what it omits and the precision of its numbers.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        max_bytes: Largest size of the page.

    Raises:
        ValueError: If there is no inspection, if the inspections are of
            different images, if a number is not finite, or if `max_bytes` is
            too small even for the last row of DETAILS.
    """
    page = _fit(inspections, max_bytes)
    num_bytes = len(page.encode("utf-8"))
    if num_bytes > max_bytes:
        raise ValueError(
            f"`max_bytes` must be at least {num_bytes:,} for these "
            f"inspections. Received: max_bytes={max_bytes:,}"
        )
    return page


def render_frame(inspection) -> str:
    """Return the page inside a frame, for a notebook. Needs Pillow.

    If even the last row of DETAILS is larger than FRAME_BYTES, it is used.
    """
    page = _fit(inspection, FRAME_BYTES)
    # Without allow-same-origin, the page cannot access the notebook.
    return (
        f'<iframe title="{TITLE}" sandbox="allow-scripts" '
        'style="width: 100%; height: 720px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _fit(inspections, max_bytes):
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
        guess = sum(guess_size(each, detail) for each in inspections)
        if guess > 1.25 * max_bytes:
            continue
        page = _render(inspections, detail)
        if len(page.encode("utf-8")) <= max_bytes:
            return page
    return _render(inspections, least)


def _render(inspections, detail):
    content = Content(detail)
    described = content.describe(inspections)
    packets = "\n".join(content.packets)
    return assemble(
        "report", SCRIPTS, title=TITLE, content=described, packets=packets
    )


def assemble(
    folder: str, scripts: Sequence[str], *, title: str, content, **parts: str
) -> str:
    """Return a page of one file that asks no server for anything.

    Args:
        folder: The folder in `data` of page.html, style.css and the scripts.
        scripts: Names of the scripts, in order. They share one scope.
        title: The title of the page, as text.
        content: What the scripts read, values for JSON.
        **parts: Other parts that page.html has places for, as HTML.
    """
    # A "<" in a script could end the script.
    content = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    style = f"{_read('cards.css')}\n{_read(f'{folder}/style.css')}"
    script = "\n".join(_read(f"{folder}/{name}.js") for name in scripts)
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'"
    )
    parts |= {
        "title": html.escape(title),
        "version": __version__,
        "policy": policy,
        "style": style,
        "script": script,
        "content": content,
    }
    # In one pass, so that no text in a part is read as a placeholder.
    return re.sub(
        r"\{\{(\w+)\}\}",
        lambda place: parts[place[1]],
        _read(f"{folder}/page.html"),
    )


def _read(name):
    folder = importlib.resources.files("keras_vit") / "data"
    return (folder / name).read_text(encoding="utf-8")


def _hash(text):
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
