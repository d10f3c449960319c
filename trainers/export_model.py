"""Export a trained model for servers and phones, and check what was written.

Example:
    python -m trainers.export_model --run_dir=saved_models/digits
"""

import pathlib

import numpy as np
from absl import flags

from keras_vit.export import EXPORTERS, Agreement
from keras_vit.tables import pick
from trainers.batches import eval_batches
from trainers.command_line import refuse_arguments, start, user_errors
from trainers.datasets import open_dataset
from trainers.files import RemotePath, as_path
from trainers.runs import Run

FLAGS = flags.FLAGS
PATHS = {"saved_model": "saved_model/1", "tflite": "model.tflite"}


def export_run(
    run: Run,
    formats: list[str],
    export_dir: pathlib.Path,
    num_images: int = 64,
) -> list[Agreement]:
    """Export the model of a run, each format checked on images of its data.

    Args:
        run: A finished run.
        formats: Keys of EXPORTERS.
        export_dir: Where the exports are written.
        num_images: Images of the eval split to compare the answers on.

    Raises:
        ValueError: If a format is unknown, its export is there already, or
            `export_dir` is no folder of this machine.
    """
    if isinstance(export_dir, RemotePath):
        raise ValueError(
            "`export_dir` must be a folder of this machine. "
            f"Received: export_dir={str(export_dir)!r}"
        )
    exporters = [pick(EXPORTERS, name, "formats") for name in formats]
    model = run.load_model()
    recipe = run.load_recipe()
    dataset = open_dataset(recipe.dataset, recipe.data_dir)
    images, _, weights = next(
        iter(
            eval_batches(
                dataset,
                image_size=model.input_shape[1:3],
                batch_size=num_images,
            )
        )
    )
    images = images.numpy()[np.asarray(weights) > 0]
    return [
        export(model, str(export_dir / PATHS[name]), images)
        for name, export in zip(formats, exporters)
    ]


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        run = Run(as_path(FLAGS.run_dir))
        folder = as_path(FLAGS.export_dir or run.folder / "export")
        reports = export_run(run, FLAGS.formats, folder)
    for report in reports:
        print(report)


def define_flags():
    """Define the flags of this command."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
    flags.DEFINE_list(
        "formats",
        list(EXPORTERS),
        f"Comma-separated, of {', '.join(EXPORTERS)}.",
    )
    flags.DEFINE_string(
        "export_dir", None, "Where to write. Default: <run_dir>/export."
    )


if __name__ == "__main__":
    define_flags()
    start(main)
