"""The check of the folder of a new run."""

import pathlib

from trainers.data.file_lists import FILE_LISTS
from trainers.paths import RemotePath
from trainers.runs.run import Run


def check_place(run: Run, dataset: str):
    """Raise a ValueError if a run in its folder would do damage.

    It must not overwrite files that do not belong to a run, nor put its
    pictures among the images that it learns from.

    Args:
        run: The run, which may have begun.
        dataset: The name of the data set.
    """
    if isinstance(run.folder, RemotePath):
        return
    received = f"Received: run_dir={str(run.folder)!r}"
    if not run.recipe_path.exists():
        paths = (run.card_path, run.metrics_path, run.model_path)
        if found := [path.name for path in paths if path.exists()]:
            raise ValueError(
                "`run_dir` must be a new folder or that of a run. "
                f"{received}, which has no {run.recipe_path.name}, but "
                f"{' and '.join(found)}"
            )
    kind, _, source = dataset.partition(":")
    if kind not in FILE_LISTS or not FILE_LISTS[kind].is_folder:
        return
    source = pathlib.Path(source).expanduser().resolve()
    if run.folder.resolve().is_relative_to(source):
        raise ValueError(
            "`run_dir` must be outside the folder of the images. "
            f"{received}, dataset={dataset!r}"
        )
