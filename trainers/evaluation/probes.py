"""PROBES: classifiers that are fitted to frozen features.

The features are float32, as the model returns them; the few-shot regression
is solved in float64.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PENALTY = 2.0**10
BIAS = 100.0  # Large, so that the penalty hardly affects the weight of it.
EPSILON = 1e-5
TEMPERATURE = 0.07
CHUNK_IMAGES = 4096
MOST_NEIGHBORS = 20  # If no number is given.


class Features(NamedTuple):
    """The features of the images of two splits, and their classes.

    Shapes:
        train: (N, D). train_classes: (N,), integers. test: (M, D).
        test_truths: (M, C), True for the right classes, one or more.
    """

    train: np.ndarray
    train_classes: np.ndarray
    test: np.ndarray
    test_truths: np.ndarray


@dataclasses.dataclass(frozen=True)
class ProbeChoices:
    """The settings of the probes.

    Args:
        shots: Numbers of images per class that the regression is fitted to.
        num_seeds: Number of random draws of these images.
        neighbors: Numbers of neighbours that vote; None for MOST_NEIGHBORS, or
            all training images if there are fewer.
    """

    shots: tuple[int, ...] = (1, 5, 10, 25)
    num_seeds: int = 3
    neighbors: tuple[int, ...] | None = None

    def __post_init__(self):
        _check_positive("shots", self.shots)
        if self.neighbors is not None:
            _check_positive("neighbors", self.neighbors)
        if self.num_seeds < 1:
            raise ValueError(
                "`num_seeds` must be 1 or more. "
                f"Received: num_seeds={self.num_seeds}"
            )


def _check_positive(name, numbers):
    if not numbers or min(numbers) < 1:
        raise ValueError(
            f"`{name}` must be numbers of 1 or more. Received: {name}={numbers}"
        )


def few_shot(
    features: Features, choices: ProbeChoices
) -> dict[str, list[float]]:
    """Return the accuracies of linear classifiers fitted to a few images.

    The classifier is a ridge regression from the features to +1 for the class
    and -1 for the others. Each feature is normalised to mean 0 and standard
    deviation 1 over the support, and a constant feature of 100 is appended.
    The penalty, 2^10, applies to all weights.

    Args:
        features: Features of both splits.
        choices: `shots` and `num_seeds` are used.

    Returns:
        `few_shot/SHOTS`: For each seed, the accuracy on all test images. A
            class with fewer images than shots uses all of them.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.1; the
        constants are those of `fewshot_lsr` of big_vision.
    Differs: Solved in float64; big_vision solves it in float32.
    """
    num_classes = features.test_truths.shape[1]
    accuracies = {f"few_shot/{shots}": [] for shots in choices.shots}
    for seed in range(choices.num_seeds):
        drawn = shuffle_by_class(features.train_classes, num_classes, seed)
        for shots in choices.shots:
            support = np.concatenate([indices[:shots] for indices in drawn])
            classify = fit_classifier(
                features.train[support],
                features.train_classes[support],
                num_classes,
            )
            accuracies[f"few_shot/{shots}"].append(
                top1_accuracy(classify, features.test, features.test_truths)
            )
    return accuracies


def shuffle_by_class(
    classes: np.ndarray, num_classes: int, seed: int
) -> list[np.ndarray]:
    """Return the indices of the images of each class, shuffled.

    Shapes:
        classes: (N,).

    Args:
        classes: The class of each image.
        num_classes: Number of classes.
        seed: Seed of the generator, which shuffles one class after the other.
    """
    generator = np.random.default_rng(seed)
    order = np.argsort(classes, kind="stable")
    ends = np.searchsorted(classes[order], np.arange(1, num_classes))
    return [generator.permutation(part) for part in np.split(order, ends)]


def fit_classifier(
    support: np.ndarray, classes: np.ndarray, num_classes: int
) -> Callable:
    """Return a function that maps features (B, D) to scores (B, C).

    Shapes:
        support: (N, D). classes: (N,).

    Args:
        support: Features to fit the classifier to.
        classes: Classes of these features.
        num_classes: Number of classes.
    """
    from sklearn.linear_model import Ridge

    support = support.astype("float64")
    mean, deviation = support.mean(0), support.std(0) + EPSILON

    def prepare(features):
        scaled = (features.astype("float64") - mean) / deviation
        return np.pad(scaled, ((0, 0), (0, 1)), constant_values=BIAS)

    targets = 2.0 * np.eye(num_classes)[classes] - 1.0
    # The bias is one of the weights: the penalty is on it, too.
    ridge = Ridge(alpha=PENALTY, fit_intercept=False, solver="cholesky")
    ridge.fit(prepare(support), targets)
    return lambda features: ridge.predict(prepare(features))


def top1_accuracy(classify, features: np.ndarray, truths: np.ndarray) -> float:
    """Return the share of images whose highest score is a right class.

    Shapes:
        features: (M, D). truths: (M, C).

    Args:
        classify: Maps features (B, D) to scores (B, C).
        features: Features to classify, in chunks.
        truths: The right classes.
    """
    hits = 0
    for start in range(0, len(features), CHUNK_IMAGES):
        part = slice(start, start + CHUNK_IMAGES)
        hits += count_hits(classify(features[part]), truths[part])
    return hits / len(features)


def count_hits(scores: np.ndarray, truths: np.ndarray) -> int:
    """Return the number of rows whose highest score is of a right class."""
    return int(truths[np.arange(len(scores)), scores.argmax(-1)].sum())


def knn(features: Features, choices: ProbeChoices) -> dict[str, list[float]]:
    """Return the accuracy of a vote of the nearest training images.

    The nearest images have the highest cosine similarity s; the weight of a
    vote is exp(s / 0.07).

    Args:
        features: Features of both splits.
        choices: `neighbors` is used.

    Returns:
        `knn/NEIGHBORS`: A list with the accuracy on all test images.

    Raises:
        ValueError: If there are fewer training images than neighbours.

    Reference: Wu et al. 2018, arXiv:1805.01978, section 3.4, with the
        numbers of neighbours of Caron et al. 2021, arXiv:2104.14294. Neither
        the paper of ViT nor its code has this probe.
    """
    from sklearn.neighbors import NearestNeighbors

    numbers = choices.neighbors
    if numbers is None:
        numbers = (min(MOST_NEIGHBORS, len(features.train)),)
    most = max(numbers)
    if most > len(features.train):
        raise ValueError(
            "`neighbors` must be at most the number of training images, "
            f"{len(features.train)}. Received: neighbors={numbers}"
        )
    # For vectors of length 1, the nearest have the highest cosine, 1 - d^2 / 2.
    # scikit-learn's own cosine copies all training features for each chunk.
    search = NearestNeighbors(n_neighbors=most, algorithm="brute")
    search.fit(normalize(features.train))
    hits = dict.fromkeys(numbers, 0)
    for start in range(0, len(features.test), CHUNK_IMAGES):
        part = slice(start, start + CHUNK_IMAGES)
        distances, indices = search.kneighbors(normalize(features.test[part]))
        cosines = 1 - distances.astype("float64") ** 2 / 2
        weights = np.exp(cosines / TEMPERATURE)
        classes = features.train_classes[indices]  # (B, K)
        truths = features.test_truths[part]
        rows = np.arange(len(indices))[:, None]
        for number in hits:
            votes = np.zeros(truths.shape)
            np.add.at(votes, (rows, classes[:, :number]), weights[:, :number])
            hits[number] += count_hits(votes, truths)
    total = len(features.test)
    return {f"knn/{n}": [hits[n] / total] for n in numbers}


def normalize(features: np.ndarray) -> np.ndarray:
    """Return the features with norm 1; zeros stay zeros."""
    lengths = np.linalg.norm(features, axis=-1, keepdims=True)
    return features / np.maximum(lengths, np.finfo(features.dtype).tiny)


PROBES = {"few_shot": few_shot, "knn": knn}
