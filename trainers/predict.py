"""Predict the classes of image files with the model of a run, or another.

Example:
    python -m trainers.predict --run_dir=saved_models/digits IMAGE...
    python -m trainers.predict --model=B/16-augreg-i1k --format=csv FOLDER
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.predict")

import sys

from absl import flags

from trainers.commands import run_main, stop_at_once, user_errors
from trainers.evaluation.file_predictions import (
    OUTPUT_FORMS,
    expand_folders,
    predict_each,
)
from trainers.paths import as_path
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
        source = NamedModel(FLAGS.model)
        if FLAGS.run_dir:
            source = RunFolder(as_path(FLAGS.run_dir))
        paths = expand_folders(arguments[1:])
        if FLAGS.format == "table":  # As its first bytes say.
            sys.stdout.reconfigure(encoding="utf-8")
        rows = predict_each(
            source, paths, FLAGS.top, FLAGS.preprocess, FLAGS.coverage
        )
        OUTPUT_FORMS[FLAGS.format](keep_faults(rows, faults), sys.stdout)
    for row in faults:
        print(f"Error: {row.fault}", file=sys.stderr)
    if faults:
        sys.exit(1)


def keep_faults(rows, faults: list):
    """Yield the rows; append those with a fault to a list."""
    for row in rows:
        if row.fault:
            faults.append(row)
        yield row


if __name__ == "__main__":
    run_main(main)
