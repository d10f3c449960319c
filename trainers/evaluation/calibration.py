"""What a model decides by: thresholds, a temperature, and what it knows."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.known import (
    SCORES,
    KnownScore,
    fit_class_means,
    fit_score,
    with_features,
)
from keras_vit.models.features import walk_back
from keras_vit.tables import check_name, list_first
from trainers.data.datasets import (
    ImageDataset,
    open_comparable,
    share_images,
)
from trainers.data.decoding import BadExamples
from trainers.evaluation.evaluation import check_classes, check_kind_of_labels
from trainers.evaluation.label_scores import choose_thresholds, sigmoid
from trainers.evaluation.predictions import predict_dataset
from trainers.evaluation.probing import (
    check_has_train_split,
    extract_features,
)
from trainers.evaluation.scores import (
    LIKELIHOODS,
    calibration_error,
    score_predictions,
)
from trainers.paths import ContentError
from trainers.training.model_card import write_card
from trainers.training.run_folder import Calibration, RunFolder

MOST_FOLDS = 5  # Groups of classes that are left out, one after the other.
LEAST_IMAGES = 10  # That can be measured on.
NUM_LISTED = 5  # Classes in a warning.
EQUAL = 0.01  # AUROCs that differ by no more count as equal.


class ChosenThresholds(NamedTuple):
    """The thresholds of labels, and what they do on the images of the choice.

    Shapes:
        each: (C,).

    Args:
        thresholds: The least probability of each label that is given.
        precisions: Of the labels that are given by them; NaN if none is.
        recalls: Share of the present labels that are given; NaN without any.
        is_measured: Whether there were images with the label and without it;
            if not, the threshold is that of before.
    """

    thresholds: np.ndarray
    precisions: np.ndarray
    recalls: np.ndarray
    is_measured: np.ndarray


def calibrate(
    run: RunFolder,
    dataset: ImageDataset,
    goal: str = "f1",
    *,
    batch_size: int = 128,
    bad_examples: BadExamples | None = None,
) -> ChosenThresholds:
    """Choose the thresholds of a run's labels, and save them in it.

    Args:
        run: A finished run whose images may have several labels.
        dataset: Its data set; the evaluation split is read.
        goal: See `choose_thresholds`.
        batch_size: Number of images per batch.
        bad_examples: See `predict_dataset`.

    Raises:
        ValueError: If the goal is unknown, the data set has other classes, or
            the images cannot be read.
    """
    check_has_all_classes(run, dataset)
    rows = [
        (logits, labels)
        for _, logits, labels, *_ in predict_dataset(
            run.load_model(),
            dataset,
            batch_size=batch_size,
            preprocess=run.preprocess,
            bad_examples=bad_examples,
        )
    ]
    logits, labels = map(np.concatenate, zip(*rows))
    probabilities = sigmoid(logits)
    is_measured = (labels == 1).any(0) & (labels == 0).any(0)
    thresholds = np.where(
        is_measured,
        choose_thresholds(probabilities, labels, goal),
        run.used_thresholds,
    )
    run.save_thresholds(
        thresholds.tolist(),
        dataset=dataset.name,
        split=dataset.eval_split,
        goal=goal,
    )
    is_given = (probabilities >= thresholds) & ~np.isnan(labels)
    hits = (is_given & (labels == 1)).sum(0)
    with np.errstate(invalid="ignore"):
        precisions = hits / is_given.sum(0)
        recalls = hits / (labels == 1).sum(0)
    return ChosenThresholds(thresholds, precisions, recalls, is_measured)


def calibrate_classes(
    run: RunFolder,
    dataset: ImageDataset,
    *,
    score: str | None = None,
    refuse: float = 0.05,
    fits_temperature: bool = True,
    unknown: Sequence[np.ndarray] = (),
    batch_size: int = 128,
    bad_examples: BadExamples | None = None,
) -> Calibration:
    """Fit probabilities and a score of known images; save them in the run.

    The images of the evaluation split measure everything; those of the train
    split are what the score compares features with. If a temperature lowers
    the calibration error, the head of model.keras is divided by it.

    Args:
        run: A finished run whose images have one class each.
        dataset: Its data set, with a train split.
        score: A key of SCORES. Default: the best one for the unknown images
            or, without them, for classes that are left out.
        refuse: Share of images like those of the split that may be unknown.
        fits_temperature: Whether to fit a temperature; if not, the model gets
            the logits that it was trained to have.
        unknown: Images of other things, (H, W, C) in the range of the model.
        batch_size: Number of images per batch.
        bad_examples: See `predict_dataset`.

    Raises:
        ValueError: If an argument is invalid, the run has several labels or
            only one class, or the data do not fit it.
    """
    check_choices(run, dataset, score, refuse)
    model, before = run.load_model(), load_temperature(run)
    both = with_features(model)
    found = extract_features(
        both, dataset, batch_size, run.preprocess, bad_examples
    )
    truths = found.test_truths
    num_classes = truths.shape[1]

    def split(outputs):
        """Return features, and the logits of the model as it was trained."""
        parts = outputs[:, :-num_classes], outputs[:, -num_classes:]
        return parts[0], parts[1] * np.float32(before)

    train, _ = split(found.train)
    warn_of_missing(dataset, run.load_class_names(), found.train_classes)
    features, logits = split(found.test)
    temperature, errors = choose_temperature(logits, truths, run.activation)
    if not fits_temperature:
        temperature = 1.0
    logits = logits / np.float32(temperature)
    outside = None
    if len(unknown):
        outside, others = split(both.predict(np.stack(unknown), verbose=0))
        outside = outside, others / np.float32(temperature)
    rows = {
        kind: judge_score(
            fit_score(kind, train, found.train_classes, run.activation),
            features,
            logits,
            outside,
        )
        for kind in SCORES
    }
    left_out = judge_left_out(
        (train, found.train_classes), (features, truths), run.activation
    )
    for kind, row in rows.items():
        row["left_out"] = left_out[kind]
    judged = "auroc" if outside else "left_out"
    kind = score or choose_score({k: row[judged] for k, row in rows.items()})
    known = fit_score(kind, train, found.train_classes, run.activation)
    scores = keras.ops.convert_to_numpy(known(features, logits))
    known = dataclasses.replace(known, threshold=cut_below(scores, refuse))
    _, logs = LIKELIHOODS[run.activation](logits.astype("float64"), truths)
    figures = {
        "dataset": dataset.name,
        "split": dataset.eval_split,
        "num_examples": len(truths),
        "num_train": len(train),
        "num_unknown": len(unknown),
        "temperature": temperature,
        "calibration_error": errors[0],
        "calibration_error_scaled": errors[1],
        "score": kind,
        "threshold": known.threshold,
        "refuse": refuse,
        "refused": float(np.mean(~known.is_known(scores))),
        "scores": rows,
    }
    if abs(temperature / before - 1) > 1e-6:
        scale_head(model, temperature / before)
        run.calibration_path.unlink(missing_ok=True)
        run.save_model(model)
    calibration = Calibration(
        known,
        np.exp(np.where(truths, logs, -np.inf).max(-1)).astype("float32"),
        figures,
    )
    run.save_calibration(calibration)
    write_card(run, model)
    return calibration


def load_temperature(run: RunFolder) -> float:
    """Return what the logits of the model were divided by before."""
    try:
        found = run.calibration
    except ContentError:
        return 1.0  # It is of another model.
    return found.figures["temperature"] if found else 1.0


def warn_of_missing(dataset, names, classes):
    """Warn of classes without images that a score can compare with."""
    missing = [
        repr(names[index])
        for index in sorted(set(range(len(names))) - set(classes))
    ]
    if missing:
        warnings.warn(
            f"the split {dataset.train_split!r} has no image of "
            f"{list_first(missing, NUM_LISTED)}: images of these may be "
            "unknown to a score",
            stacklevel=3,
        )


def check_choices(run, dataset, score, refuse):
    """Raise a ValueError unless a run can be calibrated this way."""
    if score is not None:
        check_name(SCORES, score, "score")
    if not 0 <= refuse < 1:
        raise ValueError(
            "`refuse` must be a share from 0 to below 1. "
            f"Received: refuse={refuse}"
        )
    names = run.load_class_names()
    if dataset.maps or run.has_several_labels or len(names) < 2:
        raise ValueError(
            "`run_dir` must hold a model of two classes or more that gives an "
            f"image one of them. Received: run_dir={str(run)!r}"
        )
    check_has_all_classes(run, dataset)
    check_has_train_split(dataset)
    check_images(run, dataset)


def check_has_all_classes(run: RunFolder, dataset: ImageDataset):
    """Raise a ValueError unless a data set has the classes of a run, and all.

    Figures of other images would be written into the run as those of its own.
    """
    check_classes(run, dataset)
    check_kind_of_labels(run, dataset)
    if dataset.class_names != run.load_class_names():
        raise ValueError(
            "`dataset` must have all classes of the model. Received: "
            f"{dataset.name!r} with {len(dataset.class_names)} of "
            f"{len(run.load_class_names())}"
        )


def check_images(run: RunFolder, dataset: ImageDataset):
    """Raise a ValueError unless a split can calibrate a run.

    It must have LEAST_IMAGES, and none that the model has learned from.
    """
    recipe = run.load_recipe()
    own = open_comparable(
        dataset, recipe.dataset, recipe.train_split, labels=recipe.label_options
    )
    for learned in (dataset, own):
        if (
            learned
            and learned.train_split
            and share_images(
                dataset, dataset.eval_split, learned, learned.train_split
            )
        ):
            raise ValueError(
                "`eval_split` must have none of the images that the model "
                "learned from, as it knows them too well. Received: "
                f"eval_split={dataset.eval_split!r}, with images of "
                f"{learned.train_split!r} of {learned.name}"
            )
    if dataset.num_examples(dataset.eval_split) < LEAST_IMAGES:
        raise ValueError(
            f"`eval_split` must have {LEAST_IMAGES} images or more. "
            f"Received: eval_split={dataset.eval_split!r}"
        )


# ---------------------------------------------------------------- temperature


def choose_temperature(
    logits: np.ndarray, truths: np.ndarray, activation: str = "softmax"
) -> tuple[float, tuple[float, float]]:
    """Return the temperature of probabilities, and what it is good for.

    Half of the images judge the temperature that is fitted to the other half,
    and the other way round. It is 1 unless it lowers the calibration error.

    Shapes:
        logits, truths: (N, C).

    Args:
        logits: Logits of images.
        truths: True for the right classes.
        activation: The function that turns logits into probabilities.

    Returns:
        The temperature by which logits are divided, and the calibration errors
        without and with such a temperature.

    Reference: Guo et al. 2017, arXiv:1706.04599.
    """
    order = np.random.default_rng(0).permutation(len(logits))
    halves = np.array_split(order, 2)
    errors = []
    for temperatures in (
        (1.0, 1.0),
        [
            fit_temperature(logits[i], truths[i], activation)
            for i in halves[::-1]
        ],
    ):
        rows = [
            score_predictions(logits[part] / t, truths[part], activation)
            for part, t in zip(halves, temperatures)
        ]
        errors.append(
            calibration_error(
                *(
                    np.concatenate([row[name] for row in rows])
                    for name in ("confidence", "accuracy")
                )
            )
        )
    if errors[1] >= errors[0]:
        return 1.0, tuple(errors)
    return fit_temperature(logits, truths, activation), tuple(errors)


def fit_temperature(
    logits: np.ndarray, truths: np.ndarray, activation: str = "softmax"
) -> float:
    """Return the temperature with the lowest loss, from 1/20 to 20.

    One more image counts, whose prediction is wrong: otherwise the temperature
    of a few images that are all right would claim certainty, as Platt 1999
    noticed of two classes.

    Shapes:
        logits, truths: (N, C).
    """
    from scipy.optimize import minimize_scalar

    logits = logits.astype("float64")

    def loss(log_scale):
        scaled = logits * np.exp(log_scale)
        losses, _ = LIKELIHOODS[activation](scaled, truths)
        wrong, _ = LIKELIHOODS[activation](scaled, ~truths)
        return losses.mean() + wrong.mean() / len(wrong)

    bounds = np.log([1 / 20, 20])
    found = minimize_scalar(loss, bounds=bounds, method="bounded")
    return float(np.exp(-found.x))


def scale_head(model: keras.Model, temperature: float):
    """Divide the logits of a model by a temperature, in its weights.

    Raises:
        ValueError: If the last layer is not linear in its weights.
    """
    *_, head = walk_back(model)
    images = np.random.default_rng(0).uniform(
        -1, 1, (2, *model.input_shape[1:])
    )
    before = model.predict(images, verbose=0)
    for weight in head.operation.weights:
        weight.assign(weight / temperature)
    after = model.predict(images, verbose=0)
    size = np.abs(before).max()
    if np.abs(before / temperature - after).max() > 1e-2 * size:
        raise ValueError(
            "`model` must end in a linear layer to have a temperature. "
            f"Received: {head.operation.name!r}"
        )


# -------------------------------------------------------------- known images


def judge_score(
    score: KnownScore, features, logits, outside: tuple | None
) -> dict[str, float]:
    """Return how well a score tells images of other things, if any."""
    if outside is None:
        return {}
    known, unknown = (
        keras.ops.convert_to_numpy(score(*x))
        for x in ((features, logits), outside)
    )
    return {
        "auroc": auroc(known, unknown),
        "false_positive_rate": false_positive_rate(known, unknown),
    }


def judge_left_out(
    train: tuple, test: tuple, activation: str = "softmax"
) -> dict[str, float]:
    """Return the mean AUROC of each score for classes that are left out.

    The classes are left out in turn, one fifth at a time: a linear discriminant
    and the score are fitted to the features of the others. The encoder has
    seen all of them, so the figures compare scores, and are higher than for
    things that it never saw.

    Shapes:
        train: (N, D) and (N,). test: (M, D) and (M, C).

    Args:
        train: Features and classes that scores are fitted to.
        test: Features and right classes of other images.
        activation: See `KnownScore`.

    Returns:
        The AUROCs by the keys of SCORES; NaN if no class can be left out.
    """
    (features, classes), (others, truths) = train, test
    num_classes = truths.shape[1]
    order = np.random.default_rng(0).permutation(num_classes)
    found = {kind: [] for kind in SCORES}
    for left in np.array_split(order, min(num_classes, MOST_FOLDS)):
        is_kept = ~np.isin(classes, left)
        is_known = ~truths[:, left].any(-1)
        kept = np.unique(classes[is_kept])
        if is_known.all() or not is_known.any() or len(kept) < 2:
            continue
        parts = fit_class_means(features[is_kept], classes[is_kept])
        means = parts["means"]
        x = others @ parts["whitening"] + parts["offset"]
        logits = x @ means.T - (means**2).sum(-1) / 2
        for kind in SCORES:
            score = fit_score(
                kind, features[is_kept], classes[is_kept], activation
            )
            values = keras.ops.convert_to_numpy(
                score(others, logits.astype("float32"))
            )
            found[kind].append(auroc(values[is_known], values[~is_known]))
    return {
        kind: float(np.mean(values)) if values else float("nan")
        for kind, values in found.items()
    }


def choose_score(aurocs: Mapping[str, float]) -> str:
    """Return the best score; of about equal ones, the last one of SCORES.

    Scores of features notice more of what the logits hide, and distances from
    class means let the fewest others pass in docs/results.md.
    """
    best = np.nanmax([*aurocs.values(), 0.0])
    good = [kind for kind, x in aurocs.items() if not x < best - EQUAL]
    return good[-1]


def cut_below(scores: np.ndarray, refuse: float) -> float:
    """Return the threshold that refuses a share of images like these.

    Of N images with such scores, the next one is below the k-th smallest with
    a probability of at most k / (N + 1). The threshold lies between two
    scores, so that rounding turns no decision on these images.

    Shapes:
        scores: (N,).
    """
    scores = np.sort(scores.astype("float64"))
    cut = max(int(refuse * (len(scores) + 1)) - 1, 0)  # So many are refused.
    cut = np.searchsorted(scores, scores[cut])
    below = scores[cut - 1] if cut else scores[0] - scores.std()
    return float((scores[cut] + below) / 2)


def auroc(known: np.ndarray, unknown: np.ndarray) -> float:
    """Return how often a known image has a higher score than an unknown one.

    Shapes:
        known: (N,). unknown: (M,).
    """
    from sklearn.metrics import roc_auc_score

    truths = np.repeat([1, 0], [len(known), len(unknown)])
    return float(roc_auc_score(truths, np.concatenate([known, unknown])))


def false_positive_rate(known: np.ndarray, unknown: np.ndarray) -> float:
    """Return the share of unknown images that pass where 95 % of known ones do.

    Shapes:
        known: (N,). unknown: (M,).
    """
    cut = np.sort(known)[int(0.05 * len(known))]
    return float(np.mean(unknown >= cut))


# ------------------------------------------------------------ prediction sets


def set_limit(truths: np.ndarray, coverage: float) -> float:
    """Return the least probability of a class in a prediction set.

    If all classes of at least this probability are in the set of an image, the
    right one is among them for a share of `coverage` of images like those that
    it was measured on, or more.

    Shapes:
        truths: (N,), the probabilities of the right classes of N images.

    Raises:
        ValueError: If the coverage is not a share between 0 and 1.

    Reference: Angelopoulos and Bates 2021, arXiv:2107.07511, section 1: split
        conformal prediction.
    """
    if not 0 < coverage < 1:
        raise ValueError(
            "`coverage` must be a share between 0 and 1. "
            f"Received: coverage={coverage}"
        )
    # The k-th largest of N is passed with a probability of k / (N + 1).
    rank = int(np.ceil(round(coverage * (len(truths) + 1), 9)))
    if rank > len(truths):
        return 0.0  # So few images promise nothing but all classes.
    return float(np.sort(truths)[::-1][rank - 1])
