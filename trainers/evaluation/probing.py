"""Probes of a frozen model, few-shot and k-NN, and their report."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.models.features import without_head
from keras_vit.tables import pick
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.evaluation.evaluation import choose_folder
from trainers.evaluation.predictions import predict_dataset
from trainers.paths import Path, check_writable, naming_folder
from trainers.training.run_folder import NamedModel, RunFolder, write_report

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


def probe(
    source: RunFolder | NamedModel,
    dataset: ImageDataset,
    probes: Sequence[str] = tuple(PROBES),
    choices: ProbeChoices | None = None,
    *,
    batch_size: int = 128,
    preprocess: str | None = None,
    max_bad_examples: int = 0,
    report_dir: Path | None = None,
    show: Callable[[Mapping], None] = lambda report: None,
) -> dict:
    """Fit probes to one split, and return their accuracies on another.

    The images of both splits are preprocessed in the same way, without
    augmentation. The report is written to `probe.json`.

    Args:
        source: A finished run, or a model known by name.
        dataset: The data set; images of its train split must have one class.
        probes: Keys of PROBES.
        choices: The settings of the probes; None for those of the paper.
        batch_size: Number of images per batch.
        preprocess: The operations on images before the model, see
            `eval_batches`; None for those of the run.
        max_bad_examples: Number of unreadable images to skip at most, in both
            splits together.
        report_dir: Folder to write to; None for the folder of a run, or one
            in it for another data set or preprocessing, as `choose_folder`
            says, and to write nothing for other models.
        show: Takes the report before it is written, so that it is not lost if
            that fails.

    Returns:
        model, dataset, train_split, eval_split, preprocess: The probed model
            and data.
        num_train, num_test, num_features: Numbers of images and of features.
        smallest_class: Number of training images of the smallest class.
        num_unreadable: Number of skipped images.
        probes: For each probe, the accuracies, their mean and deviation.

    Raises:
        ValueError: If a probe is unknown, the data do not fit the model, or
            more images than allowed cannot be read.
        OSError: If the report cannot be written.
    """
    choices = choices or ProbeChoices()
    functions = [pick(PROBES, name, "probes") for name in probes]
    check_has_train_split(dataset)
    # Those of a run without labels count all images.
    dataset = dataclasses.replace(dataset, needs_labels=True)
    folder = choose_folder(source, dataset, report_dir, preprocess)
    if folder:  # An error before the work, not after it.
        check_writable(folder, "report_dir")
    if preprocess is None:
        preprocess = source.preprocess
    bad_examples = BadExamples(max_bad_examples)
    features = extract_features(
        without_head(source.load_model()),
        dataset,
        batch_size,
        preprocess,
        bad_examples,
    )
    report = {
        "model": str(source),
        "dataset": dataset.name,
        "train_split": dataset.train_split,
        "eval_split": dataset.eval_split,
        "preprocess": preprocess,
        "num_train": len(features.train),
        "num_test": len(features.test),
        "num_features": features.test.shape[1],
        "smallest_class": count_smallest_class(features),
        "num_unreadable": len(bad_examples.names),
        "probes": {
            name: summarize(accuracies)
            for function in functions
            for name, accuracies in function(features, choices).items()
        },
    }
    show(report)
    if folder:
        with naming_folder(folder, "report_dir"):
            write_report(folder, "probe.json", report)
    return report


def check_has_train_split(dataset: ImageDataset):
    """Raise a ValueError if there is no split to fit the probes to.

    Neither is there one if pixels have the classes, not images.
    """
    if dataset.maps:
        raise ValueError(
            "`dataset` must have classes of images, not of pixels. "
            f"Received: dataset={dataset.name!r}"
        )
    if dataset.train_split is None:
        raise ValueError(
            "`dataset` must have a train split to learn on, or `train_split` "
            f"name one. Received: dataset={dataset.name!r}"
        )


def count_smallest_class(features: Features) -> int:
    """Return the number of training images of the smallest class."""
    num_classes = features.test_truths.shape[1]
    counts = np.bincount(features.train_classes, minlength=num_classes)
    return int(counts.min())


def summarize(accuracies: list[float]) -> dict:
    """Return the accuracies, their mean, and the deviation if several."""
    many = len(accuracies) > 1
    return {
        "mean": float(np.mean(accuracies)),
        "deviation": float(np.std(accuracies, ddof=1)) if many else None,
        "accuracies": accuracies,
    }


def extract_features(
    model: keras.Model,
    dataset: ImageDataset,
    batch_size: int = 128,
    preprocess: str = "",
    bad_examples: BadExamples | None = None,
) -> Features:
    """Return the features of the images of both splits.

    Args:
        model: Returns one vector per image.
        dataset: The data set of the images.
        batch_size: Number of images per batch.
        preprocess: See `eval_batches`.
        bad_examples: Records the images that cannot be read, which are
            skipped; None stops at the first one.

    Raises:
        ValueError: If an image of the train split has several classes.
    """

    def read(split: str, describe: Callable):
        part = dataclasses.replace(dataset, eval_split=split)
        pairs = [
            (features, describe(labels > 0))
            for _, features, labels, *_ in predict_dataset(
                model,
                part,
                batch_size=batch_size,
                preprocess=preprocess,
                bad_examples=bad_examples,
            )
        ]
        return [np.concatenate(column) for column in zip(*pairs)]

    return Features(
        *read(dataset.train_split, only_class),
        *read(dataset.eval_split, lambda truths: truths),
    )


def only_class(truths: np.ndarray) -> np.ndarray:
    """Return the one class of each row of `truths`.

    Raises:
        ValueError: If a row has no class or several.
    """
    counts = truths.sum(-1)
    if (counts != 1).any():
        raise ValueError(
            "`dataset` must have one class for each image of its train split. "
            f"Received: an image with {counts[counts != 1][0]}"
        )
    return truths.argmax(-1)
