"""The flags that name a model and a data set to evaluate it on."""

from absl import flags

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


def define_source_flags():
    """Define the flags that name a model and the images for it."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.")
    flags.DEFINE_string(
        "model",
        None,
        "Model to use instead of --run_dir: a .keras file, the folder of a "
        "run, a checkpoint of any family, or the name of a published one. "
        "Needs --dataset.",
    )
    flags.DEFINE_string("dataset", None, "Data set. Default: that of the run.")
    flags.DEFINE_string(
        "data_dir", None, "Folder of the data sets of tensorflow-datasets."
    )
    flags.DEFINE_string(
        "eval_split",
        None,
        "Split to read, or a slice of one. Default: that of the run.",
    )
    define_preprocess_flag()


def define_preprocess_flag():
    """Define the flag of the commands that prepare images for any model."""
    flags.DEFINE_string(
        "preprocess",
        None,
        "Operations on the images, separated by '|', such as "
        "'resize_small(256)|central_crop(224)'. Default: those of the run; "
        "with --model, those that its file states, or the whole image is "
        "resized.",
    )


def define_patch_size_flag():
    """Define the flag of the commands that can change the patch size."""
    flags.DEFINE_integer(
        "patch_size",
        None,
        "Side of the patches in pixels: the model's own are resized to it, as "
        "in FlexiViT. Default: that of the model.",
        lower_bound=1,
    )


def define_evaluation_flags():
    """Define the flags of the commands that evaluate a model."""
    define_source_flags()
    flags.DEFINE_integer(
        "max_bad_examples",
        0,
        "Number of unreadable images to skip before the command stops.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "batch_size", 128, "Number of images per batch.", lower_bound=1
    )
    flags.DEFINE_string(
        "report_dir",
        None,
        "Folder to write the report to. Default: the folder of the run; with "
        "--model, the report is only printed.",
    )
