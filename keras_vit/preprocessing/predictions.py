"""From scores to the names of classes."""

import functools
import importlib.resources
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_vit.arguments import as_whole


def decode_predictions(
    predictions, top: int = 5, class_names: Sequence[str] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Name the highest scores of each image.

    Shapes:
        predictions: (B, C).

    Args:
        predictions: Scores, probabilities or logits, an array or a tensor.
        top: Largest number of classes to return.
        class_names: Names of the C classes. Default: the 1000 classes of
            ImageNet (ILSVRC 2012) in their official order, with their WordNet
            lemmas as names.

    Returns:
        For each image, a list of (identifier, name, score), highest first. The
        identifier of an ImageNet class is that of WordNet; otherwise, it is
        the index.

    Raises:
        ValueError: If the predictions are not (B, C), or C is not the number
            of names.

    Example:
        >>> decode_predictions(np.eye(1, 1000, 2), top=1)[0][0][:2]
        ('n01484850', 'great white shark, white shark, man-eater, ...')
    """
    top = as_whole(top, "top")
    scores = ops.convert_to_numpy(predictions)
    if scores.ndim != 2:
        raise ValueError(
            "`predictions` must have the shape (B, C). "
            f"Received: shape={scores.shape}"
        )
    classes = (
        imagenet_classes()
        if class_names is None
        else [(str(i), str(name)) for i, name in enumerate(class_names)]
    )
    if scores.shape[1] != len(classes):
        raise ValueError(
            f"`predictions` must have one column for each of {len(classes)} "
            "classes; pass `class_names` for classes of your own. "
            f"Received: shape={scores.shape}"
        )
    # As floats: negating the lowest integer would overflow.
    order = np.argsort(-scores.astype("float64"), axis=1, kind="stable")
    order = order[:, :top]
    return [
        [(*classes[i], float(row[i])) for i in indices]
        for row, indices in zip(scores, order)
    ]


@functools.cache
def imagenet_classes() -> list[tuple[str, str]]:
    """Return (WordNet identifier, name) of the ImageNet classes, in order.

    Example:
        >>> imagenet_classes()[0]
        ('n01440764', 'tench, Tinca tinca')
    """
    file = importlib.resources.files("keras_vit") / "data" / "imagenet1k.tsv"
    lines = file.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]
