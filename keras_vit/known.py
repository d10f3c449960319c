"""Whether an image shows something that a classifier has learned.

A classifier answers with one of its classes whatever it is shown. A score of
its features and logits tells how well an image fits what it was trained on;
below a threshold, the image is unknown.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import is_number
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS, split_at_head
from keras_vit.tables import check_name, pick

SHRINKAGE = 0.1  # Of the covariance towards a multiple of the identity.
NUM_NEIGHBORS = 2000  # Largest number of images that are kept.


@dataclasses.dataclass(frozen=True, eq=False)
class KnownScore:
    """How well images fit what a classifier was trained on.

    Args:
        kind: A key of SCORES.
        threshold: An image is known if its score is at least this number.
        vectors: What the score compares features with, arrays by name; see
            `fit_score`.
        activation: The function that turns the logits into probabilities, a
            key of CLASSIFIER_ACTIVATIONS.

    Raises:
        ValueError: If an argument is not one of these.
    """

    kind: str
    threshold: float = float("-inf")
    vectors: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    activation: str = "softmax"

    def __post_init__(self):
        row = pick(SCORES, self.kind, "kind")
        check_name(CLASSIFIER_ACTIVATIONS, self.activation, "activation")
        if not is_number(self.threshold):
            raise ValueError(
                "`threshold` must be a number. "
                f"Received: threshold={self.threshold!r}"
            )
        if {*self.vectors} != {*row.vectors}:
            raise ValueError(
                f"`vectors` must be {', '.join(row.vectors) or 'empty'} for "
                f"kind={self.kind!r}. "
                f"Received: {', '.join(self.vectors) or 'none'}"
            )

    def __call__(self, features, logits):
        """Return the scores of images; the higher, the better they fit.

        Shapes:
            features: (B, D), the input of the head. logits: (B, C).
            returns: (B,), float32.
        """
        features = ops.cast(flatten(features), "float32")
        logits = ops.cast(logits, "float32")
        return SCORES[self.kind].compute(self, features, logits)

    def is_known(self, scores):
        """Return which images are known.

        Shapes:
            scores: (B,), float32. returns: (B,), truth values.
        """
        return scores >= np.float32(self.threshold)


def fit_score(
    kind: str,
    features: np.ndarray,
    classes: np.ndarray,
    activation: str = "softmax",
) -> KnownScore:
    """Return a score with the vectors of training images, and no threshold.

    Shapes:
        features: (N, D). classes: (N,), integers.

    Args:
        kind: A key of SCORES.
        features: The inputs of the head for images of known classes.
        classes: Their classes.
        activation: See `KnownScore`.
    """
    fit = pick(SCORES, kind, "kind").fit
    vectors = fit(np.asarray(features, "float64"), np.asarray(classes))
    vectors = {name: x.astype("float32") for name, x in vectors.items()}
    return KnownScore(kind, vectors=vectors, activation=activation)


def with_features(model: keras.Model) -> keras.Model:
    """Return a model from images to its features and logits, (B, D + C).

    They are side by side, in float32. Both models share their layers.
    """
    parts = split_at_head(model, has_head=True, is_short=False)(model.inputs[0])
    parts = [ops.cast(flatten(x), "float32") for x in parts]
    return keras.Model(model.inputs[0], ops.concatenate(parts, axis=-1))


def flatten(features):
    """Return one row an image; a distilled head reads two tokens.

    Shapes:
        features: (B, D) or (B, N, D). returns: (B, D) or (B, N D).
    """
    return ops.reshape(features, (-1, math.prod(features.shape[1:])))


def max_probability(score: KnownScore, features, logits):
    """Return the probability of the most probable class."""
    activate = CLASSIFIER_ACTIVATIONS[score.activation]
    return ops.max(activate(logits), axis=-1)


def energy(score: KnownScore, features, logits):
    """Return the negative free energy of the logits, log sum exp.

    Reference: Liu et al. 2020, arXiv:2010.03759.
    """
    return ops.logsumexp(logits, axis=-1)


def class_means(score: KnownScore, features, logits):
    """Return the negative distance from the nearest class mean.

    It is the Mahalanobis distance with one covariance for all classes, divided
    by the root of the number of features: about 1 for training images.

    Reference: Lee et al. 2018, arXiv:1807.03888; for Vision Transformers, Fort
        et al. 2021, arXiv:2106.03004.
    """
    means = score.vectors["means"]
    x = ops.matmul(features, score.vectors["whitening"])
    x = ops.add(x, score.vectors["offset"])
    squares = ops.sum(x * x, axis=-1, keepdims=True)
    squares = squares - 2 * ops.matmul(x, means.T)
    squares = ops.add(squares, np.sum(means * means, axis=-1))
    nearest = ops.maximum(ops.min(squares, axis=-1), 0)
    return -ops.sqrt(nearest / means.shape[1])


def fit_class_means(features: np.ndarray, classes: np.ndarray) -> dict:
    """Return what makes features white, and the class means among those."""
    present, index = np.unique(classes, return_inverse=True)
    means = np.stack(
        [features[index == n].mean(0, "float64") for n in range(len(present))]
    )
    rest = features - means[index]
    covariance = rest.T @ rest / len(rest)
    size = np.trace(covariance) / len(covariance)
    covariance *= 1 - SHRINKAGE
    covariance[np.diag_indices_from(covariance)] += SHRINKAGE * size + 1e-12
    whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
    # Near zero, float32 computes distances exactly.
    offset = -means.mean(0) @ whitening
    return {
        "whitening": whitening,
        "offset": offset,
        "means": means @ whitening + offset,
    }


def neighbors(score: KnownScore, features, logits):
    """Return the cosine similarity to the most similar training image.

    Reference: Sun et al. 2022, arXiv:2204.06507, with one neighbour.
    """
    norms = ops.sqrt(ops.sum(features * features, axis=-1, keepdims=True))
    x = features / ops.maximum(norms, 1e-12)
    cosines = ops.matmul(x, score.vectors["neighbors"].T)
    return ops.max(cosines, axis=-1)


def fit_neighbors(features: np.ndarray, classes: np.ndarray) -> dict:
    """Return the directions of features, evenly of all classes."""
    order = np.argsort(classes, kind="stable")
    count = min(NUM_NEIGHBORS, len(order))
    chosen = features[order[np.linspace(0, len(order) - 1, count).astype(int)]]
    norms = np.linalg.norm(chosen, axis=-1, keepdims=True)
    return {"neighbors": chosen / np.maximum(norms, 1e-12)}


class Score(NamedTuple):
    """A kind of score.

    Args:
        compute: Takes a KnownScore, features and logits; returns the scores.
        vectors: Names of the arrays that it needs.
        fit: Takes features (N, D) and classes (N,); returns these arrays.
    """

    compute: Callable
    vectors: tuple[str, ...] = ()
    fit: Callable[[np.ndarray, np.ndarray], dict] = lambda *_: {}


SCORES = {
    "max_probability": Score(max_probability),
    "energy": Score(energy),
    "neighbors": Score(neighbors, ("neighbors",), fit_neighbors),
    "class_means": Score(
        class_means, ("whitening", "offset", "means"), fit_class_means
    ),
}
