"""Predict the classes of image files with the model of a run, or another.

Example:
    python -m trainers.predict --run_dir=saved_models/digits IMAGE...
    python -m trainers.predict --model=B/16-augreg-i1k --format=csv FOLDER
    python -m trainers.predict --model=hf://openai/clip-vit-base-patch32 \
        --classes=cat,dog IMAGE...
    python -m trainers.predict --run_dir=saved_models/parts --out=maps IMAGE...
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.predict")

import os
import sys

from absl import flags

from trainers.commands import (
    cluster_from_flags,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.evaluation.file_predictions import (
    OUTPUT_FORMS,
    expand_folders,
    predict_each,
)
from trainers.paths import as_path, check_folder, check_writable
from trainers.training.run_folder import NamedModel, RunFolder

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    faults = []
    with stop_at_once("Stopped."), user_errors():
        if bool(FLAGS.run_dir) == bool(FLAGS.model):
            raise ValueError(
                "Give either --run_dir or --model. Received: "
                f"run_dir={FLAGS.run_dir!r}, model={FLAGS.model!r}"
            )
        if len(arguments) < 2:
            raise ValueError("Pass image files or folders of them.")
        if FLAGS.run_dir:
            source = RunFolder(as_path(FLAGS.run_dir))
            if FLAGS.classes:
                raise ValueError(
                    "--classes needs --model, as a run has its own classes. "
                    f"Received: classes={FLAGS.classes!r}"
                )
        else:
            named = name_classes(FLAGS.classes, FLAGS.templates)
            source = NamedModel(FLAGS.model, **named)
        if FLAGS.out:
            check_folder(as_path(FLAGS.out), "out")
            check_writable(as_path(FLAGS.out), "out")
        paths = expand_folders(arguments[1:])
        if FLAGS.format == "table":  # As its first bytes say.
            sys.stdout.reconfigure(encoding="utf-8")
        rows = predict_each(
            source,
            paths,
            FLAGS.top,
            FLAGS.preprocess,
            FLAGS.coverage,
            cluster_from_flags(),
            FLAGS.out,
            FLAGS.windows,
        )
        OUTPUT_FORMS[FLAGS.format](keep_faults(rows, faults), sys.stdout)
    for row in faults:
        print(f"Error: {row.fault}", file=sys.stderr)
    if faults:
        sys.exit(1)


def name_classes(classes: str | None, templates: str | None) -> dict:
    """Return the arguments of NamedModel that --classes and --templates are.

    Args:
        classes: Names with commas, or a file with a name on each line; None
            for none.
        templates: A text, or such a file; None for the default.

    Raises:
        ValueError: If there are templates alone, or a file has no lines.
    """
    if templates is not None and classes is None:
        raise ValueError(
            "--templates is for --classes, which is missing. Received: "
            f"templates={templates!r}"
        )
    found = {}
    for name, value in (("classes", classes), ("templates", templates)):
        if value is None:
            continue
        if os.path.isfile(os.path.expanduser(value)):
            lines = as_path(value).read_text(encoding="utf-8-sig").splitlines()
        else:
            lines = value.split(",") if name == "classes" else [value]
        found[name] = [line.strip() for line in lines if line.strip()]
        if not found[name]:
            raise ValueError(
                f"--{name} must have a text or more. Received: {value!r}"
            )
    return found


def keep_faults(rows, faults: list):
    """Yield the rows; append those with a fault to a list."""
    for row in rows:
        if row.fault:
            faults.append(row)
        yield row


if __name__ == "__main__":
    run_main(main)
