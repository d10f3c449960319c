"""How much frozen features tell of the classes. Pure NumPy.

The features are float32, as the model gives them; the few-shot regression is
solved in float64.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

PENALTY = 2.0**10
BIAS = 100.0  # Large, so that the penalty hardly holds its weight back.
EPSILON = 1e-5
TEMPERATURE = 0.07
CHUNK = 4096


class Features(NamedTuple):
    """What a model makes of two splits, and what their images show.

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
    """What is probed.

    Args:
        shots: Images of a class to learn from.
        num_seeds: How many draws of them.
        neighbors: Numbers of neighbours that vote.
    """

    shots: tuple[int, ...] = (1, 5, 10, 25)
    num_seeds: int = 3
    neighbors: tuple[int, ...] = (20,)

    def __post_init__(self):
        for name in ("shots", "neighbors"):
            numbers = getattr(self, name)
            if not numbers or min(numbers) < 1:
                raise ValueError(
                    f"`{name}` must be numbers of 1 or more. "
                    f"Received: {name}={numbers}"
                )
        if self.num_seeds < 1:
            raise ValueError(
                "`num_seeds` must be 1 or more. "
                f"Received: num_seeds={self.num_seeds}"
            )


def few_shot(
    features: Features, choices: ProbeChoices
) -> dict[str, list[float]]:
    """Return the accuracies of linear classifiers made of a few images each.

    The classifier is a ridge regression from the features, each with mean 0
    and deviation 1 over the support and a constant 100 appended, to +1 for
    the class and -1 for the others. The penalty, 2^10, is on all weights.

    Args:
        features: Of both splits.
        choices: `shots` and `num_seeds` are used.

    Returns:
        `few_shot/SHOTS`: One accuracy on all test images for each seed. A
            class with fewer images than shots gives those it has.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.1, and
        `fewshot_lsr` of big_vision, whose numbers these are.
    Differs: Solved in float64; there in float32.
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
                measure(classify, features.test, features.test_truths)
            )
    return accuracies


def shuffle_by_class(
    classes: np.ndarray, num_classes: int, seed: int
) -> list[np.ndarray]:
    """Return where each class is, in an order that the seed decides.

    Shapes:
        classes: (N,).

    Args:
        classes: The class of each image.
        num_classes: How many there are.
        seed: Of one generator, which shuffles the classes in turn.
    """
    generator = np.random.default_rng(seed)
    order = np.argsort(classes, kind="stable")
    ends = np.searchsorted(classes[order], np.arange(1, num_classes))
    return [generator.permutation(part) for part in np.split(order, ends)]


def fit_classifier(support: np.ndarray, classes: np.ndarray, num_classes: int):
    """Return the function that scores features (B, D) as (B, C).

    Shapes:
        support: (N, D). classes: (N,).

    Args:
        support: Features to learn from.
        classes: Their classes.
        num_classes: How many there are.
    """
    support = support.astype("float64")
    mean, deviation = support.mean(0), support.std(0) + EPSILON

    def prepare(features):
        scaled = (features.astype("float64") - mean) / deviation
        return np.pad(scaled, ((0, 0), (0, 1)), constant_values=BIAS)

    targets = 2.0 * np.eye(num_classes)[classes] - 1.0
    weights = fit_ridge(prepare(support), targets, PENALTY)
    return lambda features: prepare(features) @ weights


def fit_ridge(
    inputs: np.ndarray, targets: np.ndarray, penalty: float
) -> np.ndarray:
    """Return the W that minimises |inputs W - targets|^2 + penalty |W|^2.

    By the eigenvectors of X'X or of XX', whichever is smaller:
    (X'X + p)^-1 X'Y = X' (XX' + p)^-1 Y.

    Shapes:
        inputs: (N, D). targets: (N, C). returns: (D, C).

    Args:
        inputs: X.
        targets: Y.
        penalty: p, positive.
    """
    is_tall = inputs.shape[0] >= inputs.shape[1]
    gram = inputs.T @ inputs if is_tall else inputs @ inputs.T
    values, vectors = np.linalg.eigh(gram)
    right = inputs.T @ targets if is_tall else targets
    solved = vectors @ ((vectors.T @ right) / (values + penalty)[:, None])
    return solved if is_tall else inputs.T @ solved


def measure(classify, features: np.ndarray, truths: np.ndarray) -> float:
    """Return the share of images whose highest score is a right class.

    Shapes:
        features: (M, D). truths: (M, C).

    Args:
        classify: Scores features (B, D) as (B, C).
        features: What to classify, in chunks.
        truths: The right classes.
    """
    hits = 0
    for start in range(0, len(features), CHUNK):
        part = slice(start, start + CHUNK)
        hits += count_hits(classify(features[part]), truths[part])
    return hits / len(features)


def count_hits(scores: np.ndarray, truths: np.ndarray) -> int:
    """Return of how many rows the highest score is that of a right class."""
    return int(truths[np.arange(len(scores)), scores.argmax(-1)].sum())


def knn(features: Features, choices: ProbeChoices) -> dict[str, list[float]]:
    """Return the accuracy of the vote of the nearest training images.

    Near is a high cosine s, and a vote weighs exp(s / 0.07).

    Args:
        features: Of both splits.
        choices: `neighbors` is used.

    Returns:
        `knn/NEIGHBORS`: The accuracy on all test images, a list of one.

    Raises:
        ValueError: If there are fewer training images than neighbours.

    Reference: Wu et al. 2018, arXiv:1805.01978, section 3.4, with the
        numbers of neighbours of Caron et al. 2021, arXiv:2104.14294. Neither
        the paper of ViT nor its code has this probe.
    """
    most = max(choices.neighbors)
    if most > len(features.train):
        raise ValueError(
            "`neighbors` must be at most the number of training images, "
            f"{len(features.train)}. Received: neighbors={choices.neighbors}"
        )
    train, test = normalize(features.train), normalize(features.test)
    hits = dict.fromkeys(choices.neighbors, 0)
    for start, similarities, indices in find_nearest(test, train, most):
        weights = np.exp(similarities.astype("float64") / TEMPERATURE)
        classes = features.train_classes[indices]  # (B, K)
        truths = features.test_truths[start : start + len(indices)]
        rows = np.arange(len(indices))[:, None]
        for number in hits:
            votes = np.zeros(truths.shape)
            np.add.at(votes, (rows, classes[:, :number]), weights[:, :number])
            hits[number] += count_hits(votes, truths)
    return {f"knn/{n}": [hits[n] / len(test)] for n in choices.neighbors}


def normalize(features: np.ndarray) -> np.ndarray:
    """Return the features at length 1; zeros stay zeros."""
    lengths = np.linalg.norm(features, axis=-1, keepdims=True)
    return features / np.maximum(lengths, np.finfo(features.dtype).tiny)


def find_nearest(
    queries: np.ndarray,
    keys: np.ndarray,
    number: int,
    num_queries: int = 256,
    num_keys: int = 65_536,
):
    """Yield the keys of the highest products with each query, highest first.

    In chunks: all products of two large splits would not fit into memory.

    Shapes:
        queries: (M, D). keys: (N, D). yields (B, number) twice.

    Args:
        queries: What to look for.
        keys: Where to look for it.
        number: How many keys to find, N at most.
        num_queries: Queries B of a chunk.
        num_keys: Keys of a chunk.

    Yields:
        The index of the first query of a chunk, the products and the indices
        of the keys.
    """
    for start in range(0, len(queries), num_queries):
        chunk = queries[start : start + num_queries]
        products = np.empty((len(chunk), 0), chunk.dtype)
        indices = np.empty((len(chunk), 0), int)
        for first in range(0, len(keys), num_keys):
            found = chunk @ keys[first : first + num_keys].T
            places = find_highest(found, number)
            found = np.take_along_axis(found, places, -1)
            products = np.concatenate([products, found], -1)
            indices = np.concatenate([indices, places + first], -1)
            places = find_highest(products, number)
            products = np.take_along_axis(products, places, -1)
            indices = np.take_along_axis(indices, places, -1)
        order = np.lexsort((indices, -products), axis=-1)
        yield (
            start,
            np.take_along_axis(products, order, -1),
            np.take_along_axis(indices, order, -1),
        )


def find_highest(scores: np.ndarray, number: int) -> np.ndarray:
    """Return where the highest scores of each row are, in no order."""
    number = min(number, scores.shape[-1])
    return np.argpartition(scores, -number, axis=-1)[:, -number:]


PROBES = {"few_shot": few_shot, "knn": knn}
