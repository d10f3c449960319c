"""Predict the classes of image files with the model of a run.

Example:
    python -m trainers.predict --run_dir=saved_models/digits IMAGE...
"""

from absl import flags

from trainers.evaluation.predictions import predict_files
from trainers.paths import as_path
from trainers.runs.command_line import run_main, user_errors
from trainers.runs.run import Run

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with user_errors():
        paths = arguments[1:]
        if not paths:
            raise ValueError("Pass one or more image files.")
        run = Run(as_path(FLAGS.run_dir))
        rows = predict_files(run, paths, FLAGS.top)
    for path, row in zip(paths, rows):
        scores = ", ".join(f"{name} {score:.1%}" for _, name, score in row)
        print(f"{path}: {scores}")


def define_flags():
    """Define the flags of this command."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
    flags.DEFINE_integer(
        "top", 5, "Largest number of classes to print.", lower_bound=1
    )


if __name__ == "__main__":
    define_flags()
    run_main(main)
