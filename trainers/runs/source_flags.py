"""The flags that name a model and a data set to evaluate it on."""

from trainers.data.datasets import ImageDataset, open_dataset
from trainers.paths import as_path
from trainers.runs.named_model import NamedModel
from trainers.runs.run import Run


def open_source(
    run_dir: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
    data_dir: str | None = None,
    **splits: str | None,
) -> tuple[Run | NamedModel, ImageDataset]:
    """Return a model and the data set to evaluate it on.

    Args:
        run_dir: The folder of a run, or None.
        model: A file or a name, see `NamedModel`; None with `run_dir`.
        dataset: See `open_dataset`; None for that of the run.
        data_dir: Folder of the TFDS data sets; None for that of the run.
        **splits: `train_split` or `eval_split`, names or slices; None for
            those of the run or, with another data set, of the data set.

    Raises:
        ValueError: If not exactly one of `run_dir` and `model` is given, or
            the model or the data set does not exist.
    """
    if bool(run_dir) == bool(model):
        raise ValueError(
            "Give either --run_dir or --model. "
            f"Received: run_dir={run_dir!r}, model={model!r}"
        )
    if model and not dataset:
        raise ValueError(
            "`dataset` must be given with `model`. Received: dataset=None"
        )
    hint = ""
    if run_dir:
        source = Run(as_path(run_dir))
        recipe = source.load_recipe()
        data_dir = data_dir or recipe.data_dir
        if dataset is None and ":" in recipe.dataset:
            hint = (
                f". This is the data set in {source.recipe_path}; a relative "
                "path begins where the run was started. Use --dataset for "
                "another"
            )
        if dataset in (None, recipe.dataset):
            dataset = recipe.dataset
            for name in splits:
                splits[name] = splits[name] or getattr(recipe, name)
    try:
        data = open_dataset(dataset, data_dir, **splits)
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}{hint}") from None
    if model:
        source = NamedModel(model, is_grey=data.channels == 1)
    return source, data.with_forms_of(source.load_class_names())
