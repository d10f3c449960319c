"""A page to look into models with: one file for a browser."""

import base64
import dataclasses
import hashlib
import html
import importlib.resources
import json
import os
import re
from collections.abc import Sequence

import numpy as np

from keras_vit.analysis.embeddings import scale_filters
from keras_vit.analysis.packing import (
    encode_png,
    pack_cosines,
    pack_floats,
    pack_rows,
)
from keras_vit.analysis.representations import artefact_tokens
from keras_vit.files import atomic_write
from keras_vit.version import __version__

TITLE = "Inside a Vision Transformer"
# Classes whose probabilities are shown.
NUM_PREDICTIONS = 5


@dataclasses.dataclass(frozen=True)
class Detail:
    """How much of the attention of a model a page holds.

    Args:
        levels: Of the numbers, see `pack_rows`.
        has_heads: Whether each head is kept, as seen from each token; if not
            their mean is, and of each head only what the head of the model
            reads.
        block_step: The last block is kept and, counted from it, each
            `block_step`-th; of the others, or of all if it is 0, only what
            the head of the model reads.
        has_whole_rollout: Whether rollout and relevance are kept as seen from
            each token; if not, only what the head of the model reads.
    """

    levels: int
    has_heads: bool = False
    block_step: int = 0
    has_whole_rollout: bool = True

    def keeps(self, block: int, depth: int) -> bool:
        """Return whether attention from each token is kept of a block."""
        return bool(self.block_step) and not (
            (depth - 1 - block) % self.block_step
        )


def write_page(
    inspections: Sequence,
    path: str | os.PathLike,
    *,
    max_bytes: int = 15_000_000,
    title: str = TITLE,
):
    """Write a page to explore what models see, in the place of what is there.

    One file that needs nothing else: no server, no network.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        path: The file, such as "report.html". Its folder is made.
        max_bytes: See `render_page`.
        title: What stands above the page.

    Raises:
        ValueError: See `render_page`.
        OSError: If it cannot be written.
    """
    page = render_page(inspections, max_bytes=max_bytes, title=title)
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def render_page(
    inspections: Sequence, *, max_bytes: int = 15_000_000, title: str = TITLE
) -> str:
    """Return a page to explore what models see, as HTML.

    It holds the numbers at the greatest of DETAILS for which there is room,
    and says at which.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        max_bytes: How large the page may be.
        title: What stands above it.

    Raises:
        ValueError: If there is no inspection, if their images are not called
            the same, if something in them is not finite, or if `max_bytes`
            does not even hold the least of DETAILS.
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
    """Return a page inside a frame, to be shown in a notebook.

    Args:
        inspections: See `render_page`.
        max_bytes: How large the page in the frame should be. One that is
            larger at the least of DETAILS is shown all the same.
        height: Of the frame, in pixels.
    """
    page = _fit(inspections, max_bytes, TITLE)
    # Without allow-same-origin the page cannot touch the notebook.
    return (
        f'<iframe title="{TITLE}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {height}px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _fit(inspections, max_bytes, title):
    """Return the page at the greatest of DETAILS with room, or the least."""
    if not isinstance(inspections, Sequence):
        inspections = (inspections,)
    names = {inspection.image_names for inspection in inspections}
    if len(names) != 1 or names == {()}:
        raise ValueError(
            "`inspections` must be one or more, of the same images. "
            f"Received: {len(inspections)} inspections, of images called "
            f"{sorted(names)}"
        )
    samples = [_Sample(inspection) for inspection in inspections]
    *greater, least = DETAILS
    for detail in greater:
        guess = sum(sample.guess_size(detail) for sample in samples)
        # The guess may be a little too large.
        if 0.95 * guess > max_bytes:
            continue
        page = _render(inspections, detail, title)
        if len(page.encode("utf-8")) <= max_bytes:
            return page
    return _render(inspections, least, title)


def _render(inspections, detail, title):
    packets = _Packets()
    content = {
        "levels": detail.levels,
        "precision": _describe_precision(detail),
        "left_out": _describe_left_out(detail),
        "models": [
            _describe_model(inspection, detail, packets)
            for inspection in inspections
        ],
    }
    # No "<" in a script: it could end it.
    content = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    style, script = _read("report.css"), _read("report.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'"
    )
    # File names may hold bytes that are no UTF-8, as surrogates.
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
    # In one go, so that nothing in a part is taken for a place.
    return re.sub(
        r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read("report.html")
    )


class _Packets:
    """The packed numbers of a page, each in an element of its own.

    The browser decodes an element when it is looked at.
    """

    def __init__(self):
        self.elements = []

    def add(self, data: bytes) -> int:
        """Add packed numbers. Returns the number of their element."""
        number = len(self.elements)
        text = base64.b64encode(data).decode("ascii")
        self.elements.append(
            f'<script type="text/plain" id="packet-{number}">{text}</script>'
        )
        return number

    def add_rows(self, rows, num_prefix_tokens, levels) -> dict:
        """Add rows. Returns what the page must know to read them."""
        return {
            "packet": self.add(pack_rows(rows, num_prefix_tokens, levels)),
            "shape": list(rows.shape),
        }


class _Sample:
    """A few maps of an inspection, to guess the size of a page from.

    To pack all of them at each of DETAILS could take minutes.
    """

    def __init__(self, inspection):
        self.inspection = inspection
        blocks, _, heads, length, _ = inspection.maps.shape
        few = np.arange(np.clip(1_000_000 // length**2, 2, 6))
        places = np.linspace(0, blocks - 1, len(few)).astype(int)
        maps = inspection.maps[places, 0]  # (few, K, T, T)
        whole = [inspection.rollouts[:1]]
        if inspection.relevances is not None:
            whole.append(inspection.relevances[0])
        self.maps = {
            "head": maps[few, few % heads],
            "mean": maps.mean(axis=1, dtype="float32"),
            "whole": np.concatenate(whole),
        }
        self.picture_bytes = sum(len(encode_png(p)) for p in inspection.pixels)
        self.map_bytes = {}  # Of a map, by kind and levels.

    def measure(self, kind, levels):
        """Return how many bytes a map takes."""
        if (kind, levels) not in self.map_bytes:
            maps = self.maps[kind]
            packed = pack_rows(maps, self.inspection.num_prefix_tokens, levels)
            self.map_bytes[kind, levels] = len(packed) / len(maps)
        return self.map_bytes[kind, levels]

    def guess_size(self, detail: Detail) -> float:
        """Return about how many bytes the page takes for this model."""
        blocks, images, heads, length, _ = self.inspection.maps.shape
        kept = sum(detail.keeps(block, blocks) for block in range(blocks))
        whole = len(self.maps["whole"])
        if not detail.has_whole_rollout:
            whole /= length
        size = whole * self.measure("whole", detail.levels)
        head = heads * self.measure("head", detail.levels)
        if detail.has_heads:
            size += kept * head
        else:
            size += blocks * head / length  # What the head reads.
            size += kept * self.measure("mean", detail.levels)
        # Base64 makes four bytes of three.
        return 4 / 3 * (self.picture_bytes + images * size)


def _describe_model(inspection, detail, packets):
    config = inspection.config
    blocks, _, heads, *_ = inspection.maps.shape
    return {
        "name": inspection.model_name,
        "summary": (
            f"{config.depth} blocks, {config.num_heads} heads, width "
            f"{config.width}, patches of {inspection.patch_size} pixels"
        ),
        "blocks": blocks,
        "heads": heads,
        "grid": list(inspection.grid_size),
        "patch_size": inspection.patch_size,
        "num_prefix_tokens": inspection.num_prefix_tokens,
        "reads_patches": inspection.reads_patches,
        "distances": _round(inspection.distances),
        "similarity": _describe_similarity(inspection, packets),
        "filters": _describe_filters(inspection),
        "images": [
            _describe_image(inspection, i, detail, packets)
            for i in range(len(inspection.pixels))
        ],
    }


def _describe_image(inspection, i, detail, packets):
    prefix = inspection.num_prefix_tokens
    norms = inspection.token_norms[:, i]  # (blocks, T)
    artefacts = artefact_tokens(norms, prefix)
    height, width, _ = inspection.pixels[i].shape
    image = {
        "name": inspection.image_names[i],
        "size": [height, width],
        "png": _png(inspection.pixels[i]),
        "attention": [
            _describe_block(inspection, i, block, detail, packets)
            for block in range(len(inspection.maps))
        ],
        "rollout": _describe_whole(
            inspection, inspection.rollouts[i : i + 1], detail, packets
        ),
        "norms": packets.add(pack_floats(norms)),
        "artefacts": [np.flatnonzero(block).tolist() for block in artefacts],
        "predictions": None,
        "relevance": None,
    }
    if inspection.probabilities is not None:
        probabilities = inspection.probabilities[i]
        likeliest = np.argsort(-probabilities, kind="stable")
        image["predictions"] = [
            _describe_class(inspection, i, index)
            for index in likeliest[:NUM_PREDICTIONS]
        ]
    if inspection.relevances is not None:
        image["relevance"] = {
            **_describe_whole(
                inspection, inspection.relevances[i], detail, packets
            ),
            "classes": [
                _describe_class(inspection, i, index)
                for index in inspection.top_classes[i]
            ],
        }
    return image


def _describe_class(inspection, i, index):
    return {
        "name": inspection.class_name(int(index)),
        "probability": float(inspection.probabilities[i, index]),
    }


def _describe_block(inspection, i, block, detail, packets):
    """Return where the attention of a block is: of all heads, or less."""
    maps = inspection.maps[block, i]  # (K, T, T)
    prefix, levels = inspection.num_prefix_tokens, detail.levels
    kept = detail.keeps(block, len(inspection.maps))
    if kept and detail.has_heads:
        return {"heads": packets.add_rows(maps, prefix, levels)}
    read = _read_rows(inspection, maps)
    found = {"read": packets.add_rows(read, prefix, levels)}
    if kept:
        mean = maps.mean(axis=0, keepdims=True, dtype="float32")  # (1, T, T)
        found["mean"] = packets.add_rows(mean, prefix, levels)
    return found


def _describe_whole(inspection, matrices, detail, packets):
    """Return where matrices (M, T, T) through all the blocks are."""
    if not detail.has_whole_rollout:
        matrices = _read_rows(inspection, matrices)
    return packets.add_rows(
        matrices, inspection.num_prefix_tokens, detail.levels
    )


def _read_rows(inspection, matrices):
    """Return what the head of the model reads: (M, T, T) to (M, 1, T)."""
    prefix = inspection.num_prefix_tokens
    read = slice(prefix, None) if inspection.reads_patches else slice(1)
    return matrices[:, read].mean(axis=1, keepdims=True, dtype="float32")


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


def _describe_precision(detail):
    return (
        "Attention, rollout and relevance are stored on "
        f"{detail.levels + 1} levels: in a map seen from one token a number "
        f"is off by at most {100 / detail.levels:.1f} % of the largest, a "
        "small one by less; a mean of maps is off by no more than they are on "
        "average. What a token gives to itself and to the class token is "
        "exact."
    )


def _describe_left_out(detail):
    """Return what the page does not hold, in words."""
    if detail.has_heads:
        return ""
    if not detail.has_whole_rollout:
        return (
            "To keep the page small, attention, rollout and relevance are "
            "shown for what the head of the model reads only, and not from "
            "single patches."
        )
    if not detail.block_step:
        return (
            "To keep the page small, attention is shown for what the head of "
            "the model reads only, and not from single patches; rollout and "
            "relevance are complete."
        )
    text = (
        "To keep the page small, single heads are shown for what the head of "
        "the model reads only; a patch shows the mean of the heads."
    )
    if detail.block_step > 1:
        text += (
            f" That it shows in every {ORDINALS[detail.block_step]} block, "
            "counted from the last."
        )
    return text


def _png(pixels):
    return base64.b64encode(encode_png(pixels)).decode("ascii")


def _round(numbers):
    # Four digits are more than a plot shows.
    return [[float(f"{x:.4g}") for x in row] for row in numbers]


def _read(name):
    file = importlib.resources.files("keras_vit") / "data" / name
    return file.read_text(encoding="utf-8")


def _hash(text):
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


ORDINALS = {2: "second", 4: "fourth", 8: "eighth"}
LEVELS = (255, 191, 127, 95, 63, 47, 39, 31, 23, 15)
# What a page may hold, greatest first.
DETAILS = (
    *(Detail(levels, has_heads=True, block_step=1) for levels in LEVELS),
    *(
        Detail(levels, block_step=step)
        for step in (1, *ORDINALS)
        for levels in LEVELS
    ),
    *(Detail(levels) for levels in LEVELS),
    *(Detail(levels, has_whole_rollout=False) for levels in LEVELS),
)
