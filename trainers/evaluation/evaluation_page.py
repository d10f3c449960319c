"""The page of an evaluation: one HTML file that needs no network."""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from trainers.evaluation.image_predictions import (
    OtherModel,
    Pictures,
    TellingImages,
)
from trainers.evaluation.label_predictions import TellingLabels
from trainers.evaluation.scores import Bin
from trainers.pages import make_figure, make_table, write_html
from trainers.paths import Path
from trainers.training.model_card import describe_choice

MOST_ROWS = 100  # Classes in the tables.
FIGURES = {
    "mean_average_precision": "mean average precision of the labels (mAP)",
    "mean_average_precision_micro": "average precision of all labels together",
    "exact_match": "images of which all labels are right",
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "balanced_accuracy": "balanced accuracy (mean recall of the classes)",
    "macro_f1": "mean F1 of the classes",
    "baseline_accuracy": "accuracy of always answering the largest class",
    "micro_f1": "F1 of all labels together",
    "label_ranking_average_precision": "average precision in an image",
    "coverage_error": "most probable labels that include all of an image",
    "ranking_loss": "pairs of labels of an image in wrong order",
    "loss": "loss",
    "calibration_error": "calibration error",
    "known": "images that are known",
    "accuracy_of_known": "accuracy of the known images",
}


# Figures of each class -> titles.
COLUMNS = {
    "images": "images",
    "precision": "precision",
    "accuracy": "recall",
    "f1": "F1",
}
LABEL_COLUMNS = {
    "positives": "images with it",
    "average_precision": "average precision",
    "threshold": "threshold",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
}


def write_evaluation_page(
    path: Path,
    report: Mapping,
    class_names: Sequence[str],
    confusion: np.ndarray | None,
    bins: Sequence[Bin],
    curves: Mapping[str, np.ndarray],
    telling: TellingImages | TellingLabels,
    pictures: Mapping[int, Pictures],
    other: OtherModel | None = None,
):
    """Write the figures, the confusion matrix and the telling images.

    Shapes:
        confusion: (C, C), integers.

    Args:
        path: The HTML file.
        report: The report of `evaluate`.
        class_names: Names of the C classes.
        confusion: Number of images of each class and prediction, if known; of
            several labels, of each label and false alarm.
        bins: The bins of the calibration.
        curves: The accuracy of the images that fit best, see `Tally.curves`.
        telling: The telling images.
        pictures: Their pictures, by position.
        other: The evaluation of a second model on the same images.
    """
    has_several = isinstance(telling, TellingLabels)

    def show(rows):
        if not rows:
            return "<p>There are none.</p>"
        caption = _label_caption if has_several else _caption
        figures = []
        for row in rows:
            shown = pictures[row.position]
            lines = caption(row, class_names, telling)
            lines.append(shown.name.rsplit("/", 1)[-1])
            looks = {
                shown.name: shown.image,
                f"attention: {shown.name}": shown.look,
            }
            figures.append(make_figure(looks, shown.name, lines))
        return f'<div class="row">{"".join(figures)}</div>'

    looks = (
        "<p>Beside each image: where the model looked, by the attention "
        "rollout. The brighter a patch, the more attention it got.</p>"
    )
    beside = other.report if other else None
    matrix = _false_alarms if has_several else _confusion
    kinds = LABEL_SECTIONS if has_several else SECTIONS
    parts = [
        _summary(report, beside),
        "<h2>Classes</h2>",
        _classes(report, class_names, beside),
        looks if any(shown.look for shown in pictures.values()) else "",
        *matrix(confusion, class_names, telling, show),
        "<h2>Calibration</h2>",
        f"<p>{CALIBRATION[has_several]} On the diagonal, the probability is "
        "right; below the diagonal, it is too high, and above, too low.</p>",
        _diagram(bins),
        *(_answers(report, curves) if curves else ()),
        *(
            f"<h2>{title}</h2><p>{text}</p>{show(getattr(telling, name))}"
            for name, (title, text) in kinds.items()
            if name != "unknown" or telling.known
        ),
        *(_compare(telling, beside["model"], show) if beside else ()),
    ]
    title = f"Evaluation of {report['model']}"
    write_html(path, title, parts, EVALUATION_STYLE)


def _summary(report, other):
    """Return the figures of one model, or of two side by side."""
    reports = [report, other] if other else [report]
    rows = [
        (title, [_cell(source, name) for source in reports])
        for name, title in FIGURES.items()
        if name in report
    ]
    titles = ["", *(source["model"] for source in reports)]
    data = f"{report['dataset']}, split {report['split']}"
    return (
        f"<p>{report['num_examples']:,} images of {html.escape(data)}; "
        f"{report['num_left_out']:,} left out. {describe_choice(report)}</p>"
        f"{make_table(titles, rows)}"
    )


def _cell(report, name):
    """Return a figure with its interval, if it has one, or a number."""
    if name not in report:
        return "<td></td>"
    value = report[name]
    if isinstance(value, int):
        return f"<td>{value:,}</td>"
    metric, slash, label = name.partition("/")
    text = f"{value:.4f}"
    if (low := report.get(f"{metric}_low{slash}{label}")) is not None:
        high = report[f"{metric}_high{slash}{label}"]
        text += f" (95 %: {low:.4f} to {high:.4f})"
    return f"<td>{text}</td>"


def _classes(report, class_names, other):
    """Return the figures of each class, the one that is worst first."""
    has_several = "mean_average_precision" in report
    columns = LABEL_COLUMNS if has_several else COLUMNS
    judged = "average_precision" if has_several else "f1"
    title = columns[judged]
    names = [name for name in class_names if f"images/{name}" in report]
    names.sort(key=lambda name: report.get(f"{judged}/{name}", 2.0))
    titles = ["class", *columns.values()]
    if other:
        titles.append(f"{title} of the other")
    rows = []
    for name in names[:MOST_ROWS]:
        cells = [_cell(report, f"{column}/{name}") for column in columns]
        if other:
            cells.append(_cell(other, f"{judged}/{name}"))
        rows.append((name, cells))
    more = len(names) - MOST_ROWS
    order = f"<p>The class with the lowest {title} is first.</p>"
    return (
        order
        + make_table(titles, rows)
        + (
            f"<p>and {more:,} more classes: see evaluation.json</p>"
            if more > 0
            else ""
        )
    )


def _compare(telling, other_name, show):
    """Yield the images that one of two models gets right."""
    if telling.others:
        name = html.escape(other_name)
        yield f"<h2>Right here, wrong with {name}</h2>"
        yield show(telling.won) if telling.won else "<p>None.</p>"
        yield f"<h2>Wrong here, right with {name}</h2>"
        yield show(telling.lost) if telling.lost else "<p>None.</p>"


def _confusion(confusion, class_names, telling, show):
    """Yield the confusion matrix, and the images of its linked cells."""
    if confusion is None or len(class_names) > MOST_ROWS:
        return
    yield "<h2>Confusion matrix</h2>"
    yield (
        "<p>True class down, prediction across, in the order of the labels. A "
        "linked number leads to images.</p>"
    )
    rows = []
    largest = max(confusion.max(), 1)
    for truth, name in enumerate(class_names):
        cells = []
        for prediction, count in enumerate(confusion[truth]):
            share = 100 * count / largest
            text = f"{count:,}" if count else ""
            if (truth, prediction) in telling.cells:
                text = f'<a href="#cell-{truth}-{prediction}">{text}</a>'
            kind = "right" if truth == prediction else "wrong"
            cells.append(
                f'<td class="{kind}" style="--share: {share:.0f}%">{text}</td>'
            )
        rows.append((name, cells))
    yield make_table(["", *class_names], rows)
    for (truth, prediction), images in sorted(telling.cells.items()):
        title = f"{class_names[truth]} predicted as {class_names[prediction]}"
        yield (
            f'<section id="cell-{truth}-{prediction}">'
            f"<h3>{html.escape(title)}</h3>{show(images)}</section>"
        )


def _diagram(bins):
    """Return the calibration as an SVG picture of 240x240 units."""
    bars = []
    width = 240 / max(len(bins), 1)
    for index, row in enumerate(bins):
        if row.count:
            height = 240 * row.accuracy
            bars.append(
                f'<rect x="{index * width:.1f}" y="{240 - height:.1f}" '
                f'width="{width - 1:.1f}" height="{height:.1f}">'
                f"<title>{row.count:,} predictions: confidence "
                f"{row.confidence:.3f}, accuracy {row.accuracy:.3f}</title>"
                "</rect>"
            )
    return (
        '<svg viewBox="-1 -1 242 242" width="260" role="img" aria-label='
        f'"Calibration">{"".join(bars)}<line x1="0" y1="240" x2="240" y2="0"/>'
        '<rect class="frame" width="240" height="240"/></svg>'
    )


def _answers(report, curves):
    """Yield how accurate a model is that answers for some images alone."""
    yield "<h2>Answers and accuracy</h2>"
    known = report.get("known")
    text = (
        "<p>Across: the share of the images that get an answer, those of the "
        "highest probability first"
        + (", dashed: of the highest score" if "score" in curves else "")
        + ". Up: the accuracy of these answers, from {low:.0%} to 100 %."
    )
    lowest = min(float(x.min()) for x in curves.values())
    low = min(np.floor(10 * lowest) / 10, 0.9)
    yield text.format(low=low)
    if known is not None:
        yield (
            f" The line shows what is known: {known:.1%} of the images"
            + (
                f", with an accuracy of {report['accuracy_of_known']:.1%}."
                if "accuracy_of_known" in report
                else "."
            )
        )
    yield "</p>"
    lines = []
    for name, accuracies in curves.items():
        count = len(accuracies)
        # More points than pixels show nothing more.
        shown = np.unique(np.linspace(0, count - 1, 240).astype(int))
        points = " ".join(
            f"{240 * (n + 1) / count:.1f},"
            f"{240 * (1 - accuracies[n]) / (1 - low):.1f}"
            for n in shown
        )
        lines.append(f'<polyline class="{name}" points="{points}"/>')
    if known is not None:
        place = f"{240 * known:.1f}"
        lines.append(f'<line x1="{place}" y1="0" x2="{place}" y2="240"/>')
    yield (
        '<svg viewBox="-1 -1 242 242" width="260" role="img" aria-label='
        f'"Accuracy by share of answers">{"".join(lines)}'
        '<rect class="frame" width="240" height="240"/></svg>'
    )


def _false_alarms(counts, class_names, telling, show):
    """Yield which labels of an image go with which false alarms."""
    if counts is None or not counts.any():
        return
    yield "<h2>False alarms by label</h2>"
    yield (
        "<p>A label that images have down, one that they were falsely given "
        "across, and the number of these images.</p>"
    )
    downs, acrosses = (
        np.flatnonzero(counts.any(axis))[:MOST_ROWS] for axis in (1, 0)
    )
    rows = [
        (
            class_names[down],
            [
                f'<td class="wrong" style="--share: '
                f'{100 * count / counts.max():.0f}%">{count or ""}</td>'
                for count in counts[down, acrosses]
            ],
        )
        for down in downs
    ]
    yield make_table(["", *(class_names[n] for n in acrosses)], rows)


def _caption(row, class_names, telling):
    """Return the lines about an image of one class."""
    truth, prediction = class_names[row.truth], class_names[row.prediction]
    text = f"{prediction} {row.probability:.1%}"
    if truth != prediction:
        text = f"{truth}, predicted {text}"
    lines = [text]
    if row.score is not None:
        lines.append(f"score {row.score:.4g}")
    if row.other:
        predicted = class_names[row.other.prediction]
        lines.append(f"the other: {predicted} {row.other.probability:.1%}")
    return lines


def _label_caption(case, class_names, telling):
    """Return the lines about an image of several labels, or one of them."""

    def join(chosen):
        names = [class_names[index] for index in np.flatnonzero(chosen)]
        return ", ".join(names) or "no label"

    row = telling.predictions[case.position]
    lines = [f"is: {join(row.labels == 1)}", f"given: {join(row.decisions)}"]
    if case.label is not None:
        lines.insert(0, f"{class_names[case.label]} {case.probability:.1%}")
    if other := telling.others.get(case.position):
        lines.append(f"the other: {join(other.decisions)}")
    return lines


# Lists of telling images -> title and text.
SECTIONS = {
    "mistakes": (
        "Worst mistakes",
        "Wrong predictions of the highest probability.",
    ),
    "doubtful": (
        "Least certain",
        "Predictions that are hardly more probable than the next class.",
    ),
    "unknown": (
        "Unknown",
        "Images with the lowest scores, below the threshold: they get no "
        "class.",
    ),
}
LABEL_SECTIONS = {
    "alarms": (
        "False alarms",
        "Labels that the images do not have, of the highest probability. Some "
        "may be right, and missing in the data.",
    ),
    "missed": (
        "Missed labels",
        "Labels that the images have, of the lowest probability.",
    ),
    "doubtful": (
        "Least certain",
        "Labels whose probability is nearest to their threshold.",
    ),
}
# By whether images have several labels.
CALIBRATION = {
    False: "Up: the accuracy of the predictions of each confidence, from 0 to "
    "100 %. Across: the confidence.",
    True: "Up: the share of the images that have a label, for each probability "
    "of the label, from 0 to 100 %. Across: the probability. All labels count.",
}
EVALUATION_STYLE = """
section:target { outline: 2px solid #08c; outline-offset: .5rem; }
figure { max-width: 15rem; }
img { margin-right: .25rem; }
td.right { background: color-mix(in srgb, #2a7 var(--share), transparent); }
td.wrong { background: color-mix(in srgb, #d33 var(--share), transparent); }
td a { color: inherit; }
svg rect { fill: #48a; }
svg line { stroke: #888; stroke-dasharray: 4; }
svg polyline { fill: none; stroke: #48a; stroke-width: 2; }
svg .score { stroke: #a62; stroke-dasharray: 6 3; }
svg .frame { fill: none; stroke: #888; }
"""
