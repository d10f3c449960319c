"""Evaluation of a classifier on a data set: metrics and examples."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.known import KnownScore, with_features
from keras_vit.models.features import name_activation
from trainers.augment.augmentation import parse_augmentation, try_operations
from trainers.data.datasets import (
    ImageDataset,
    is_same_dataset,
    open_comparable,
    share_images,
)
from trainers.data.decoding import BadExamples
from trainers.evaluation.evaluation_page import write_evaluation_page
from trainers.evaluation.image_predictions import (
    PREDICTIONS_NAME,
    Examples,
    ImagePrediction,
    OtherModel,
    TellingImages,
    check_same_images,
    make_pictures,
    write_confusion,
    write_image_predictions,
)
from trainers.evaluation.label_predictions import (
    LabelExamples,
    LabelPrediction,
    TellingLabels,
    write_label_predictions,
)
from trainers.evaluation.label_scores import LabelTally
from trainers.evaluation.map_evaluation import start_map_results
from trainers.evaluation.predictions import (
    predict_dataset,
    split_scores,
    to_probabilities,
)
from trainers.evaluation.scores import Tally
from trainers.models.factory import with_other_tokens
from trainers.paths import (
    Path,
    check_writable,
    naming_folder,
    written_together,
)
from trainers.training.model_card import (
    entries_of_model,
    read_notes,
    write_card,
)
from trainers.training.objectives import MeanOverImages, make_metrics
from trainers.training.run_folder import (
    NamedModel,
    RunFolder,
    check_has_classes,
    check_outside,
    write_report,
)


def evaluate(
    source: RunFolder | NamedModel,
    dataset: ImageDataset,
    *,
    batch_size: int = 128,
    preprocess: str | None = None,
    max_bad_examples: int = 0,
    report_dir: Path | None = None,
    other: OtherModel | None = None,
    patch_size: int | None = None,
    merged_tokens: int | None = None,
    show: Callable[[Mapping], None] = lambda report: None,
) -> dict[str, float | int | str]:
    """Return the accuracy of a model on a data set, and draw some examples.

    Writes `evaluation.json`, the report, `confusion.csv`, the confusion matrix
    of up to 2,000 classes, `image_predictions.csv`, the prediction for each
    image, `predictions.png`, some images with their predicted classes, mistakes
    first, and `evaluation.html`, a page of all of these with the most telling
    images and where the model looked. An image may have
    several right classes, see `score_predictions`; images without a class are
    ignored. If the images have several labels, there is no `confusion.csv`.

    Args:
        source: A finished run, or a model known by name.
        dataset: The data set; its evaluation split is read. It must have the
            classes of the model, see `ImageDataset.with_forms_of`, or be one
            of the test sets of ImageNet with some of them: then only the
            logits of these count.
        batch_size: Number of images per batch.
        preprocess: The operations on images before the model, see
            `eval_batches`; None for those of the run.
        max_bad_examples: Number of unreadable images to skip at most.
        report_dir: Folder to write to; None for the folder of a run, or one in
            it for another data set, preprocessing or other tokens (see
            `choose_folder`), and to write nothing for other models.
        other: The evaluation of another model on the same images, to show
            beside this one on the page.
        patch_size: Side of the patches in pixels, to which the kernel of the
            model is resized as in FlexiViT. Default: that of the model.
        merged_tokens: Number of patches that each block merges with similar
            ones. Default: that of the model.
        show: Takes the report before a file is written, so that it is not lost
            if that fails or `other` is of other images. Then none of the files
            is written.

    Returns:
        model, dataset, split, preprocess: The evaluated model and data.
        patch_size, merged_tokens: The numbers that were given.
        chosen_on_split: What a training or a calibration chose by images of
            this split: "model", "thresholds", "calibration".
        was_trained_on: True if the run has learned from images of this split.
        num_left_out: Number of ignored images, which have no label or cannot
            be read.
        num_unreadable: Number of images that cannot be read.
        num_examples, accuracy, ...: See `Tally.report`; of several labels,
            `LabelTally.report`; of pixels, those of `map_scores.py`.

    Raises:
        ValueError: If the classes are not those of the model, or one of both
            has several labels an image and the other has not; more images than
            allowed cannot be read, or `other` is of other images.
        OSError: If a file cannot be written.
    """
    tokens = {"patch_size": patch_size, "merged_tokens": merged_tokens}
    tokens = {name: x for name, x in tokens.items() if x is not None}
    # Before the model is read: a training may replace its file meanwhile.
    entries = entries_of_model(source)
    folder = choose_folder(source, dataset, report_dir, preprocess, **tokens)
    check_report_dir(source, folder, dataset.name)
    preprocess = source.preprocess if preprocess is None else preprocess
    model = with_other_tokens(source.load_model(), **tokens)
    check_classes(source, dataset)
    bad_examples = BadExamples(max_bad_examples)
    if dataset.maps:
        try_operations(preprocess, "preprocess", dataset.channels, True)
        results = start_map_results(model, dataset)
    else:
        check_kind_of_labels(source, dataset)
        check_logits(model, dataset)
        # Other tokens give other features than were calibrated.
        calibration = None if tokens else source.calibration
        known = calibration and calibration.known
        results = start_results(source, model, dataset, other, known)
    for batch in predict_dataset(
        results.reader,
        dataset,
        batch_size=batch_size,
        preprocess=preprocess,
        bad_examples=bad_examples,
    ):
        results.add(*batch)
    found = results.report()
    report = {
        **entries,
        "dataset": dataset.name,
        "split": dataset.eval_split,
        "preprocess": preprocess,
        **tokens,
        **name_chosen(source, dataset),
        **({"was_trained_on": True} if was_trained_on(source, dataset) else {}),
        "num_left_out": dataset.num_examples(dataset.eval_split)
        - found["num_examples"],
        "num_unreadable": len(bad_examples.names),
        **found,
    }
    show(report)
    if other:
        has_one_class = not dataset.has_several_labels and not (
            dataset.has_several_classes(dataset.eval_split)
        )
        check_same_images(other, results.predictions, has_one_class)
    if folder:
        with naming_folder(folder, "report_dir"):
            with written_together(folder) as draft:
                results.write(draft, report, other)
            if folder == source.folder:
                write_card(source, model)
    return report


def name_chosen(
    source: RunFolder | NamedModel, dataset: ImageDataset
) -> dict[str, str]:
    """Return the entry of a report of what was chosen by the same images."""
    recipe, chosen = source.load_recipe(), []
    if recipe is None:
        return {}

    @functools.cache  # Two lists of files are compared by their contents.
    def has_images_of(name, split):
        other = open_comparable(
            dataset, name, eval_split=split, labels=recipe.label_options
        )
        return other and share_images(
            dataset, dataset.eval_split, other, other.eval_split
        )

    if recipe.keep_best and has_images_of(recipe.dataset, recipe.eval_split):
        chosen.append("model")
    by = source.thresholds_chosen
    if by and has_images_of(by["dataset"], by["split"]):
        chosen.append("thresholds")
    calibration = source.calibration
    if calibration:
        figures = calibration.figures
        if has_images_of(figures["dataset"], figures["split"]):
            chosen.append("calibration")
    return {"chosen_on_split": " and ".join(chosen)} if chosen else {}


def was_trained_on(
    source: RunFolder | NamedModel, dataset: ImageDataset
) -> bool:
    """Return whether a run has learned from images of the evaluation split."""
    recipe = source.load_recipe()
    other = recipe and open_comparable(
        dataset,
        recipe.dataset,
        train_split=recipe.train_split,
        labels=recipe.label_options,
    )
    if not other or other.train_split is None:  # It need not be here.
        return False
    split = other.train_split
    return share_images(dataset, dataset.eval_split, other, split)


def choose_folder(
    source: RunFolder | NamedModel,
    dataset: ImageDataset,
    report_dir: Path | None,
    preprocess: str | None,
    patch_size: int | None = None,
    merged_tokens: int | None = None,
) -> Path | None:
    """Return the folder to write the report of an evaluation to.

    The report in the folder of a run is of the model, the data set and the
    preprocessing of its recipe. Others are in folders in it, which are named
    by what is not of the recipe: `dataset_cifar10/patch_size_8`. The arguments
    are those of `evaluate`.
    """
    if report_dir or not source.folder:
        return report_dir
    folder, recipe = source.folder, source.load_recipe()
    if not is_same_dataset(dataset.name, recipe.dataset):
        folder = folder / name_folder(f"dataset_{dataset.name}")
    if preprocess not in (None, recipe.eval_preprocess):
        folder = folder / name_folder(f"preprocess_{preprocess}")
    for name, number in (
        ("patch_size", patch_size),
        ("merged_tokens", merged_tokens),
    ):
        if number is not None:
            folder = folder / f"{name}_{number}"
    return folder


def name_folder(text: str) -> str:
    """Return a text as a name of a folder; other texts have other names."""
    name = re.sub(r"[^\w.-]+", "_", text)[:LONGEST_NAME].rstrip("_")
    if name == text:
        return name
    return f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_report_dir(
    source: RunFolder | NamedModel, folder: Path | None, dataset: str
):
    """Raise an error if the report of an evaluation cannot be written.

    So that it is found before the work, not after it.
    """
    if folder:
        check_outside(folder, dataset, "report_dir")
        check_writable(folder, "report_dir")
    if folder and folder == source.folder:
        read_notes(source)


@dataclasses.dataclass(frozen=True)
class Results:
    """The results that an evaluation collects over the batches.

    Args:
        model: The evaluated model.
        tally: The figures.
        telling: The most telling images.
        examples: Some images, mistakes first.
        sums: Those of the metrics of plug-ins.
        columns: The logits that are for a class of the data set.
        known: Tells known images, of a calibrated model.
    """

    model: keras.Model
    tally: Tally | LabelTally
    telling: TellingImages | TellingLabels
    examples: Examples
    sums: dict[MeanOverImages, np.ndarray]
    columns: slice | Sequence[int]
    known: KnownScore | None

    @property
    def reader(self) -> keras.Model:
        """The model whose outputs `add` takes."""
        return with_features(self.model) if self.known else self.model

    @property
    def predictions(self) -> dict[int, ImagePrediction | LabelPrediction]:
        """The prediction for each image, by its position."""
        return self.telling.predictions

    def add(self, images, outputs, labels, positions, names):
        """Add a batch of `predict_dataset`, of (B, D) outputs."""
        rest = ()
        if self.known:
            outputs, scores = split_scores(outputs, self.model, self.known)
            rest = (scores,)
        logits = outputs[:, self.columns]
        if isinstance(self.tally, Tally):
            labels = labels > 0
        hits = self.tally.add(logits, labels, *rest)
        truths = np.asarray(labels, "float32")
        for metric, sums in self.sums.items():
            weights = np.ones(len(labels), "float32")
            sums += ops.convert_to_numpy(
                metric.measure(truths, logits, weights)
            )
        self.examples.add(images, logits, labels, hits)
        probabilities = to_probabilities(logits, self.tally.activation)
        self.telling.add(
            positions, images, logits, probabilities, labels, names, *rest
        )

    def report(self) -> dict[str, float]:
        """Return all figures, those of plug-ins as well, by name."""
        return self.tally.report() | {
            metric.name: metric.report(sums)
            for metric, sums in self.sums.items()
        }

    def write(self, folder: Path, report: Mapping, other: OtherModel | None):
        """Write all files of an evaluation.

        Args:
            folder: The folder to write to.
            report: The report.
            other: See `evaluate`.
        """
        tally, telling = self.tally, self.telling
        names = tally.class_names
        normalization = parse_augmentation(
            report["preprocess"], self.model.input_shape[1:3], "preprocess"
        ).normalization
        pictures = make_pictures(telling, self.model, normalization)
        write_report(folder, "evaluation.json", report)
        path = folder / PREDICTIONS_NAME
        if isinstance(tally, LabelTally):
            write_label_predictions(path, telling.predictions, names)
        else:
            write_confusion(folder / "confusion.csv", tally.confusion, names)
            write_image_predictions(path, telling.predictions, names)
        self.examples.draw(
            names, tally.activation, normalization, folder / "predictions.png"
        )
        write_evaluation_page(
            folder / "evaluation.html",
            report,
            names,
            tally.confusion,
            tally.bins(),
            tally.curves(),
            telling,
            pictures,
            other,
        )


def start_results(
    source: RunFolder | NamedModel,
    model: keras.Model,
    dataset: ImageDataset,
    other: OtherModel | None,
    known: KnownScore | None,
) -> Results:
    """Return what collects the results of an evaluation."""
    others, names = other.predictions if other else {}, dataset.class_names
    columns = dataset.logit_columns
    if dataset.has_several_labels:
        thresholds = source.thresholds
        if thresholds is not None:
            thresholds = np.asarray(thresholds)[columns].tolist()
        tally = LabelTally(names, thresholds)
        telling = TellingLabels(tally.thresholds, others)
        examples = LabelExamples([], tally.thresholds)
    else:
        tally = Tally(names, source.activation, known)
        telling, examples = TellingImages(others, known), Examples([])
    sums = {x: np.zeros(x.size) for x in make_metrics(len(names))}
    return Results(model, tally, telling, examples, sums, columns, known)


def check_kind_of_labels(source, dataset):
    """Raise a ValueError unless model and data have several labels, or one.

    A model without a run that ends in a sigmoid may be for either.
    """
    if source.load_recipe() is None and source.activation == "sigmoid":
        return
    if dataset.has_several_labels != source.has_several_labels:
        kind = "several" if source.has_several_labels else "one"
        raise ValueError(
            f"`labels` must be {kind}, as the model has learned: each image "
            f"has {KINDS[source.has_several_labels]}. Received: "
            f"dataset={dataset.name!r}, whose images have "
            f"{KINDS[dataset.has_several_labels]}; model={str(source)!r}"
        )


def check_classes(source, dataset):
    """Raise a ValueError if a run was trained on classes of other names.

    The names that a config.json states may be other words for the classes. If
    they are those of the data set, their order counts as well.
    """
    names, trained_on = dataset.model_class_names, source.load_class_names()
    if dataset.maps and not names:
        return  # Depths.
    check_has_classes(source, trained_on)
    if trained_on is None:
        stated = source.stated_class_names()
        if stated and sorted(stated) == sorted(names):
            trained_on = stated
    if trained_on not in (None, names):
        more = [name for name in names if name not in trained_on]
        missing = [name for name in trained_on if name not in names]
        faults = [
            f"{verb} {', '.join(map(repr, found[:NUM_CLASSES_NAMED]))}"
            + (", ..." if len(found) > NUM_CLASSES_NAMED else "")
            for verb, found in (("has", more), ("lacks", missing))
            if found
        ]
        raise ValueError(
            "`dataset` must have the classes that the model was trained on. "
            f"Received: {dataset.name!r}, which "
            f"{' and '.join(faults) or name_order(names, trained_on)}"
        )


def name_order(names: Sequence[str], trained_on: Sequence[str]) -> str:
    """Return where two orders of the same names differ first."""
    here, there = next(p for p in zip(names, trained_on) if p[0] != p[1])
    return f"has them in another order: {here!r} where the model has {there!r}"


def check_logits(model: keras.Model, dataset: ImageDataset):
    """Raise a ValueError unless `model` returns a logit for each class."""
    num_classes = len(dataset.model_class_names)
    if model.output_shape[1:] != (num_classes,):
        raise ValueError(
            f"`model` must return one logit for each of the {num_classes} "
            f"classes of {dataset.name!r}. "
            f"Received: output_shape={model.output_shape}"
        )
    activation = name_activation(model)
    if activation is not None:
        raise ValueError(
            "`model` must return logits, not probabilities. Received: a "
            f"{activation} in its last layer {model.layers[-1].name!r}"
        )


# By whether images have several labels.
KINDS = {False: "one class", True: "any number of labels"}
NUM_CLASSES_NAMED = 5
LONGEST_NAME = 60  # Of a folder, in characters of up to 4 bytes.
