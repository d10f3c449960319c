"""Calibrate the model of a run: what its answers are worth, what it knows.

The probabilities get a temperature, if one makes them more honest, and images
that do not show what the model has learned become unknown. Of several labels,
the thresholds are chosen anew.

Example:
    python -m trainers.calibrate --run_dir=saved_models/photos
    python -m trainers.calibrate --run_dir=saved_models/photos --unknown=other
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.calibrate")

import math

import numpy as np
from absl import flags

from keras_vit.known import SCORES
from trainers.commands import (
    open_source,
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.data.labels import parse_goal
from trainers.data.readers.image_files import ImageFiles
from trainers.data.readers.image_paths import find_copies_of, printable
from trainers.evaluation.calibration import (
    ChosenThresholds,
    calibrate,
    calibrate_classes,
    check_images,
)
from trainers.evaluation.file_predictions import expand_folders
from trainers.evaluation.predictions import make_load_image
from trainers.paths import check_writable
from trainers.training.model_card import write_card
from trainers.training.run_folder import Calibration, RunFolder

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        refuse_arguments(arguments)
        run, dataset = open_source(
            FLAGS.run_dir,
            dataset=FLAGS.dataset,
            data_dir=FLAGS.data_dir,
            train_split=FLAGS.train_split,
            eval_split=FLAGS.eval_split,
        )
        refuse_flags(run.has_several_labels)
        check_writable(run.folder, "run_dir")
        with run.claimed():  # A training would replace the model meanwhile.
            text = calibrate_run(run, dataset)
    print(text)


def calibrate_run(run: RunFolder, dataset: ImageDataset) -> str:
    """Calibrate a run by the flags, and return what was found."""
    options = {
        "batch_size": FLAGS.batch_size,
        "bad_examples": BadExamples(FLAGS.max_bad_examples),
    }
    if run.has_several_labels:
        check_images(run, dataset)
        goal = FLAGS.threshold_goal or run.thresholds_chosen.get("goal")
        goal = goal or run.load_recipe().threshold_goal
        chosen = calibrate(run, dataset, goal, **options)
        write_card(run, run.load_model())
        found, path = describe_thresholds(run, chosen, goal), run.recipe_path
    else:
        shape, preprocess = run.load_model().input_shape[1:], run.preprocess
        refuse_known(FLAGS.unknown, dataset)
        unknown = load_images(
            FLAGS.unknown,
            shape,
            preprocess,
            options["bad_examples"],
            run.pixel_range,
        )
        calibration = calibrate_classes(
            run,
            dataset,
            score=FLAGS.score,
            refuse=FLAGS.refuse,
            fits_temperature=FLAGS.temperature,
            unknown=unknown,
            **options,
        )
        found, path = describe(calibration), run.calibration_path
    return f"{found}\nWritten: {path}. {REPEAT}"


REPEAT = "Evaluations and exports from before do not know this: repeat them."


def describe_thresholds(
    run: RunFolder, chosen: ChosenThresholds, goal: str
) -> str:
    """Return the thresholds of each label, and what they do, in lines."""
    lines = [
        f"Thresholds for {goal}:",
        f"{'label':24s} threshold  precision  recall",
    ]
    wanted = parse_goal(goal) or 0.0
    names = map(printable, run.load_class_names())
    for name, threshold, precision, recall, is_measured in zip(names, *chosen):
        notes = (
            "" if is_measured else "  as before: no images with and without it"
        )
        if is_measured and precision < wanted:
            notes = "  precision not reached"
        lines.append(
            f"{name:24s} {threshold:<10.4f} {format_share(precision, 4):10s} "
            f"{format_share(recall, 4)}{notes}"
        )
    return "\n".join(lines)


def refuse_known(paths: list[str] | None, dataset: ImageDataset):
    """Raise a ValueError if images of other things are of the data set."""
    if not paths or not isinstance(dataset.reader, ImageFiles):
        return
    rows = [row for rows in dataset.reader.files.values() for row in rows]
    copies = find_copies_of(expand_folders(paths), [path for path, _ in rows])
    if copies:
        raise ValueError(
            "`unknown` must show other things than the data set. "
            f"Received: {printable(copies[0])}, an image of {dataset.name}"
        )


def load_images(
    paths: list[str] | None,
    shape: tuple,
    preprocess: str,
    bad_examples: BadExamples,
    pixel_range: tuple[float, float] | None = None,
) -> list[np.ndarray]:
    """Return the images of other things; none without the flag."""
    if paths is None:
        return []
    images, load = [], make_load_image(shape, preprocess, pixel_range)
    for path in expand_folders(paths):
        try:
            images.append(load(path))
        except (ValueError, OSError):
            bad_examples.report(path)
    if not images:
        raise ValueError(
            f"`unknown` must name images. Received: unknown={','.join(paths)!r}"
        )
    return images


def refuse_flags(has_several: bool):
    """Raise a ValueError if a flag was given that a run has no use for."""
    useless = ("score", "refuse", "temperature", "unknown")
    if not has_several:
        useless = ("threshold_goal",)
    for name in useless:
        if FLAGS[name].present:
            kind = "one label" if has_several else "several labels"
            raise ValueError(
                f"`{name}` is for a run of {kind} an image. "
                f"Received: --{name} with --run_dir={FLAGS.run_dir}"
            )


def describe(found: Calibration) -> str:
    """Return what was measured, in lines."""
    figures = found.figures
    lines = [
        f"Measured on {figures['num_examples']:,} images of "
        f"{figures['dataset']}, split {figures['split']}; the scores compare "
        f"with {figures['num_train']:,} training images.",
        f"Calibration error {figures['calibration_error']:.4f}; with a "
        f"temperature {figures['calibration_error_scaled']:.4f}: "
        + (
            "none is used."
            if figures["temperature"] == 1
            else f"the logits of model.keras are divided by "
            f"{figures['temperature']:.4g}."
        ),
        "",
    ]
    titles = ["score", "left-out classes"]
    if figures["num_unknown"]:
        titles += [f"{figures['num_unknown']:,} unknown images", "passed"]
    rows, table = [titles], [figures["scores"][kind] for kind in SCORES]
    for kind, row in zip(SCORES, table):
        cells = [kind, format_share(row["left_out"], 4)]
        if "auroc" in row:
            cells.append(format_share(row["auroc"], 4))
            cells.append(f"{row['false_positive_rate']:.1%}")
        rows.append([*cells, "<- used" if kind == figures["score"] else ""])
    widths = [15, *map(len, titles[1:]), 0]
    lines += [
        "  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows
    ]
    if all("auroc" not in x and math.isnan(x["left_out"]) for x in table):
        lines.append(
            f"No score could be measured, and {figures['score']} was not "
            "compared with the others: name pictures of other things with "
            "--unknown."
        )
    lines += [
        "",
        f"Images with a score below {figures['threshold']:.5g} are unknown: "
        f"{figures['refused']:.1%} of the images of the split.",
    ]
    return "\n".join(lines)


def format_share(value: float, digits: int) -> str:
    """Return a share as text; a dash if it is not known."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


if __name__ == "__main__":
    run_main(main)
