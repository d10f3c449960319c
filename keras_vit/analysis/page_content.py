"""The content of a page, as JSON and packed numbers."""

import base64
import dataclasses

import numpy as np

from keras_vit.analysis.embeddings import scale_filters
from keras_vit.analysis.packing import (
    encode_png,
    pack_cosines,
    pack_floats,
    pack_rows,
)
from keras_vit.analysis.representations import artefact_tokens
from keras_vit.analysis.rollout import read_prefix

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
