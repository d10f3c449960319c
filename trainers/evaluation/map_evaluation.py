"""Evaluation of a model with an answer for each pixel, and its page."""

import base64
import dataclasses
import html
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.analysis.rollout import attention_rollout, to_grid
from keras_vit.models import DensePredictor
from keras_vit.preprocessing.description import Normalization, to_fractions
from trainers.augment.augmentation import parse_augmentation
from trainers.data.datasets import ImageDataset
from trainers.data.labels import SEGMENT
from trainers.data.map_pictures import (
    LEGEND_STYLE,
    limits_of,
    make_legend,
    paint_over,
)
from trainers.evaluation.image_predictions import (
    PREDICTIONS_NAME,
    NamedImage,
    OtherModel,
    own,
    shade,
    write_confusion,
)
from trainers.evaluation.map_scores import DepthTally, SegmentTally
from trainers.evaluation.scores import MOST_CLASSES
from trainers.models.factory import encoder_of
from trainers.pages import make_table, write_html
from trainers.paths import Path, write_csv_file
from trainers.training.model_card import describe_choice
from trainers.training.run_folder import write_report

MOST_METRES = 100.0  # Of outputs up to scale, if nothing else says.
NUM_WORST, NUM_FIRST = 24, 12  # Images that are shown.
MOST_ROWS, MOST_CONFUSED = 100, 20
FIGURES = {
    "mean_iou": "mean IoU of the classes (mIoU)",
    "pixel_accuracy": "pixels that are right",
    "mean_accuracy": "mean accuracy of the classes",
    "boundary_f1": "F1 of the borders",
    "abs_rel": "relative error (AbsRel)",
    "rmse": "root of the mean square error, in metres",
    "delta1": "at most 1.25 times too far or near (delta1)",
    "delta2": "at most 1.25\u00b2 times",
    "delta3": "at most 1.25\u00b3 times",
}
COLUMNS = {
    "share": "share of the pixels",
    "iou": "IoU",
    "accuracy": "accuracy",
    "precision": "precision",
}


class Shown(NamedTuple):
    """An image that the page shows.

    Shapes:
        image: (H, W, C), as the model reads it. truth, answer: (H, W).

    Args:
        position: Its place in the split.
        name: Its file.
        figures: Its own figures, by name.
    """

    position: int
    name: str
    figures: Mapping[str, float]
    image: np.ndarray
    truth: np.ndarray
    answer: np.ndarray

    def with_own_arrays(self) -> "Shown":
        """Return the same without the batch that the arrays are a part of."""
        arrays = (own(x) for x in (self.image, self.truth, self.answer))
        return Shown(self.position, self.name, self.figures, *arrays)


@dataclasses.dataclass
class MapResults:
    """The results that an evaluation collects over the batches."""

    reader: keras.Model
    tally: SegmentTally | DepthTally

    def __post_init__(self):
        self.predictions, self.first, self.worst = {}, [], []

    def add(self, images, outputs, maps, positions, names):
        """Add a batch.

        Shapes:
            images: (B, H, W, C). outputs: (B, H, W, D). maps: (B, H, W).
            positions: (B,). names: B strings.
        """
        answers = self.tally.answer(outputs, maps)
        start = len(self.tally.rows)
        self.tally.add(answers, maps)
        rows = self.tally.rows[start:]
        for row, *shown in zip(rows, positions, names, images, maps, answers):
            position, name, *arrays = shown
            self.predictions[int(position)] = NamedImage(name)
            found = Shown(int(position), name, row, *arrays)
            if len(self.first) < NUM_FIRST:
                self.first.append(found.with_own_arrays())
            self.worst.append(found)
        self.worst.sort(key=self._badness)
        del self.worst[NUM_WORST:]
        # Not all images of a large split fit into memory.
        self.worst = [shown.with_own_arrays() for shown in self.worst]

    def _badness(self, shown):
        score = shown.figures[self.tally.score_name]
        return score if self.tally.is_higher_better else -score

    def report(self) -> dict[str, float]:
        """Return all figures, by name."""
        return self.tally.report()

    def write(
        self, folder: Path, report: Mapping, other: OtherModel | None = None
    ):
        """Write all files of an evaluation.

        Args:
            folder: The folder to write to.
            report: The report.
            other: The evaluation of a second model, whose figures are shown
                too.
        """
        tally = self.tally
        normalization = parse_augmentation(
            report["preprocess"], self.first[0].image.shape[:2], "preprocess"
        ).normalization
        write_report(folder, "evaluation.json", report)
        columns = list(tally.rows[0])
        rows = (
            [position, image.name, *(f"{row[x]:.6g}" for x in columns)]
            for (position, image), row in zip(
                self.predictions.items(), tally.rows
            )
        )
        write_csv_file(
            folder / PREDICTIONS_NAME, [["position", "image", *columns], *rows]
        )
        names = tally.class_names
        if len(names) <= MOST_CLASSES:
            write_confusion(folder / "confusion.csv", tally.confusion, names)
        reports = [report, other.report] if other else [report]
        looks = find_looks(self.reader, [*self.worst, *self.first])
        write_page(
            folder / "evaluation.html", self, reports, normalization, looks
        )


def start_map_results(model: keras.Model, dataset: ImageDataset) -> MapResults:
    """Return what collects the results of an evaluation.

    Raises:
        ValueError: If the model has no such answers, or others.
    """
    is_segment = dataset.maps.kind == SEGMENT
    count = len(dataset.class_names) if is_segment else 1
    if len(model.output_shape) != 4 or model.output_shape[-1] != count:
        raise ValueError(
            f"`model` must return {count} "
            f"number{'s' * (count > 1)} for each pixel, as the data set has. "
            f"Received: output_shape={model.output_shape}, dataset="
            f"{dataset.name!r}"
        )
    if is_segment:
        return MapResults(model, SegmentTally(dataset.class_names))
    is_relative = getattr(model, "larger_depths", "far") == "near"
    max_depth = dataset.maps.max_depth or MOST_METRES
    return MapResults(model, DepthTally(is_relative, max_depth))


def find_looks(
    model: keras.Model, shown: Sequence[Shown]
) -> dict[int, np.ndarray]:
    """Return which patches the answers for images draw on, by position.

    That is the mean of the attention rollout over the patches, (h, w).
    """
    if not isinstance(model, DensePredictor):
        return {}
    encoder, images = encoder_of(model), {x.position: x.image for x in shown}
    rollouts = attention_rollout(encoder, np.stack([*images.values()]))
    config = encoder.config
    looks = to_grid(rollouts, config.grid_size, config.num_prefix_tokens, ())
    return dict(zip(images, looks))


def write_page(
    path: Path,
    results: MapResults,
    reports: Sequence[Mapping],
    normalization: Normalization,
    looks: Mapping[int, np.ndarray],
):
    """Write the figures, the confusion of classes and pictures with maps.

    Args:
        path: The file.
        results: What was collected.
        reports: The report, and that of a second model.
        normalization: Mean and deviation of the images.
        looks: What `find_looks` returns.
    """
    tally, names, report = results.tally, results.tally.class_names, reports[0]
    data = f"{report['dataset']}, split {report['split']}"
    figures = [
        (title, [_cell(each, name) for each in reports])
        for name, title in FIGURES.items()
        if name in report
    ]
    parts = [
        f"<p>{report['num_examples']:,} images of {html.escape(data)}; "
        f"{report['num_left_out']:,} left out. {describe_choice(report)}</p>",
        make_table(["", *(each["model"] for each in reports)], figures),
        *(_classes(report, names, tally.confusion) if names else ()),
        "<p>In each row: the image, the truth and the answer"
        + (
            ", and by the attention rollout the patches that the answers "
            "draw on: the brighter, the more. "
            if looks
            else ". "
        )
        + (
            "Grey pixels do not count.</p>"
            if names
            else "Bright is near; of grey pixels the distance is unknown.</p>"
        ),
        "<h2>The worst images</h2>",
        *(_row(x, normalization, names, looks) for x in results.worst),
        "<h2>The first images</h2>",
        *(_row(x, normalization, names, looks) for x in results.first),
    ]
    title = f"Evaluation of {report['model']}"
    write_html(path, title, parts, PAGE_STYLE + LEGEND_STYLE)


def _classes(report, names, confusion):
    """Yield the figures of each class, the worst one first, and mistakes."""
    rows = [name for name in names if f"iou/{name}" in report]
    rows.sort(key=lambda name: report[f"iou/{name}"])
    yield "<h2>Classes</h2><p>The class with the lowest IoU is first.</p>"
    yield make_table(
        ["class", *COLUMNS.values()],
        [
            (name, [_cell(report, f"{column}/{name}") for column in COLUMNS])
            for name in rows[:MOST_ROWS]
        ],
    )
    wrong = confusion * (1 - np.eye(len(names), dtype=int))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSED]
    pairs = [np.unravel_index(index, wrong.shape) for index in order]
    pairs = [pair for pair in pairs if wrong[pair]]
    if pairs:
        yield "<h2>What is taken for what</h2>"
        yield make_table(
            ["class", "taken for", "share of the class", "pixels"],
            [
                (
                    names[truth],
                    [
                        f"<td>{html.escape(names[answer])}</td>",
                        f"<td>{count / confusion[truth].sum():.1%}</td>",
                        f"<td>{count:,}</td>",
                    ],
                )
                for truth, answer in pairs
                for count in [wrong[truth, answer]]
            ],
        )


def _cell(report, name):
    value = report.get(name)
    return "<td></td>" if value is None else f"<td>{value:.4f}</td>"


def _row(shown, normalization, names, looks):
    """Return an image, its truth and its answer, with its figures below."""
    image = to_fractions(shown.image, normalization)
    limits = None if names else limits_of(shown.truth)
    tiles = [
        paint_over(image, np.full(image.shape[:2], np.nan), None, 0.0),
        paint_over(image, shown.truth, limits),
        paint_over(image, shown.answer.astype("float32"), limits),
    ]
    if (look := looks.get(shown.position)) is not None:
        tiles.append(shade(tiles[0], look))
    figures = ", ".join(f"{n} {x:.3f}" for n, x in shown.figures.items())
    name = html.escape(shown.name or f"image {shown.position}", quote=True)
    legend = ""
    if names:
        truth = shown.truth[np.isfinite(shown.truth)]
        legend = make_legend(names, np.union1d(shown.answer, truth).astype(int))
    pictures = "".join(
        f'<img src="data:image/png;base64,{_encode(tile)}" alt="{what}">'
        for tile, what in zip(tiles, ("image", "truth", "answer", "attention"))
    )
    return (
        f'<figure class="triple"><div>{pictures}</div><figcaption>{name}<br>'
        f"{figures}<br>{legend}</figcaption></figure>"
    )


def _encode(pixels):
    """Return a picture (H, W, 3) of 0 to 1 as a PNG in base64."""
    from PIL import Image

    stream = io.BytesIO()
    image = Image.fromarray(np.round(255 * pixels).astype("uint8"))
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


PAGE_STYLE = """
.triple { margin: .5rem 0 1rem; }
.triple div { display: flex; gap: .25rem; }
.triple img { flex: 1 1 0; min-width: 0; max-width: 14rem; height: auto;
 image-rendering: pixelated; }
"""
