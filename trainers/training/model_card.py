"""The model card of a run: a Markdown page in the form of Hugging Face."""

import dataclasses
import json
import os
from collections.abc import Mapping

import keras

from keras_vit.tables import format_table
from keras_vit.weights.hub import HUB_MODELS, PRETRAINED, parse_repository
from trainers.data.labels import DEPTH, SEGMENT
from trainers.models.initial_model import MODEL_FLAGS
from trainers.paths import parse_object, read_written, write_atomically
from trainers.recipes.recipe import Recipe
from trainers.training.run_folder import NamedModel, RunFolder, is_outdated

NUM_CLASSES_LISTED = 100
# What a card shows of an evaluation.
CARD_FIGURES = ("split", "num_examples", "accuracy", "calibration_error")
LABEL_FIGURES = (
    *("split", "num_examples", "mean_average_precision", "micro_f1"),
    "exact_match",
)
NOTES_MARK = "<!-- What is below stays when the card is written anew. -->"


def write_card(run: RunFolder, model: keras.Model):
    """Write the card of a run into its folder.

    What a person wrote below NOTES_MARK stays as it is.

    Args:
        run: A finished run. The figures are those of its last evaluation by
            `trainers.evaluate` on the data set of the run, if there is one.
        model: Its model.
    """
    notes = read_notes(run)
    text = f"{describe_run(run, model)}\n## Notes\n\n{NOTES_MARK}{notes}"
    write_atomically(run.card_path, text)


def read_notes(run: RunFolder) -> str:
    """Return what a person wrote on the card of a run, or an empty line.

    Raises:
        ContentError: If the card is no text.
    """
    if not run.card_path.exists():
        return "\n"
    remedy = "save it in UTF-8, or move it away"
    written = read_written(run.card_path, str, remedy)
    return written.partition(NOTES_MARK)[2] or "\n"


def check_card(run: RunFolder, recipe: Recipe):
    """Raise a ContentError if a file that a card takes up cannot be read.

    So that it is found before the work, not after it.

    Args:
        run: The run, of which nothing may be there yet.
        recipe: Its recipe.
    """
    read_notes(run)
    read_figures(run, recipe)


def describe_run(
    run: RunFolder, model: keras.Model, model_file: str | None = None
) -> str:
    """Return the card of a run.

    Args:
        run: See `write_card`.
        model: Its model.
        model_file: How the card names the file of the model. Default: its
            name, for a card beside it.
    """
    recipe, names = run.load_recipe(), run.load_class_names()
    if not recipe.needs_labels:
        return describe_encoder(run, recipe, model)
    if recipe.has_maps:
        return describe_dense(run, recipe, model)
    figures = read_figures(run, recipe)
    height, width, channels = model.input_shape[1:]
    colours = "grey" if channels == 1 else "colour"
    parts = [
        _front_matter(run, recipe, figures),
        f"# {run.name}",
        f"An image classifier with {len(names):,} classes and "
        f"{model.count_params():,} parameters: {name_source(recipe)}, trained "
        f"with keras_vit on `{name_data(recipe)}`. It takes {colours} images "
        f"of {height}x{width} pixels.",
        "## Classes",
        _list_classes(names),
        _describe_answers(run),
        "## Evaluation",
        _describe_figures(figures),
        "## Use",
        _describe_use(model_file or run.model_path.name, recipe),
        *_describe_training(run, recipe),
    ]
    return "\n\n".join(parts) + "\n"


def describe_encoder(run: RunFolder, recipe: Recipe, model: keras.Model) -> str:
    """Return the card of a run that learned without labels."""
    height, width, channels = model.input_shape[1:]
    colours = "grey" if channels == 1 else "colour"
    parts = [
        _front_matter(run, recipe, None, "image-feature-extraction"),
        f"# {run.name}",
        f"An encoder of {model.count_params():,} parameters: "
        f"{name_source(recipe)}, trained with keras_vit on "
        f"`{name_data(recipe)}` without labels ({recipe.objective}). It turns "
        f"{colours} images of {height}x{width} pixels into features.",
        "## Use",
        "Train a classifier from it, or test its features:",
        "```bash\n"
        f"python -m trainers.train --init_from={run.model_path.name} ...\n"
        "python -m trainers.probe --run_dir=...\n```",
        _describe_pixels(recipe),
        *_describe_training(run, recipe),
    ]
    return "\n\n".join(parts) + "\n"


def describe_dense(run: RunFolder, recipe: Recipe, model: keras.Model) -> str:
    """Return the card of a run that learned an answer for each pixel."""
    figures, names = read_figures(run, recipe), run.load_class_names()
    height, width, channels = model.input_shape[1:]
    colours = "grey" if channels == 1 else "colour"
    task, what = MAP_TASKS[recipe.objective]
    shown = []
    if figures:
        entries = MAP_FIGURES[recipe.objective]
        rows = [[n, f"{figures[n]:.4f}"] for n in entries if n in figures]
        shown = [
            f"On {figures['num_examples']:,} images of the split "
            f"`{figures['split']}`, at the size of the model:",
            format_table(["figure", ""], rows),
        ]
    parts = [
        _front_matter(run, recipe, None, task),
        f"# {run.name}",
        f"A model of {what} with {model.count_params():,} parameters: "
        f"{name_source(recipe)}, trained with keras_vit on "
        f"`{name_data(recipe)}`. It takes {colours} images of "
        f"{height}x{width} pixels and answers for each pixel.",
        *(["## Classes", _list_classes(names)] if names else []),
        "## Evaluation",
        *(shown or ["Not evaluated yet."]),
        "## Use",
        f"```bash\nkeras-vit predict --model={run.model_path.name} "
        "--out=maps photo.jpg\n```",
        _describe_pixels(recipe),
        *_describe_training(run, recipe),
    ]
    return "\n\n".join(parts) + "\n"


MAP_TASKS = {
    SEGMENT: ("image-segmentation", "the class of each pixel"),
    DEPTH: ("depth-estimation", "the distance of each pixel"),
}
MAP_FIGURES = {
    SEGMENT: ("mean_iou", "pixel_accuracy", "mean_accuracy", "boundary_f1"),
    DEPTH: ("abs_rel", "delta1", "rmse"),
}


def name_data(recipe: Recipe) -> str:
    """Return the name of a data set, without the folders that it is in."""
    kind, colon, path = recipe.dataset.partition(":")
    return f"{kind}{colon}{os.path.basename(path.rstrip('/'))}"


def name_source(recipe: Recipe) -> str:
    """Return the name of the initial model, without the folders it is in."""
    source = recipe.init_from
    if not source:
        return recipe.model
    if find_repository(source) or "://" in source or source in PRETRAINED:
        return source
    return os.path.basename(source.rstrip("/"))


def find_repository(source: str) -> str | None:
    """Return which repository of Hugging Face's hub a name stands for."""
    if source in HUB_MODELS:
        return HUB_MODELS[source].repository
    repository = parse_repository(source)
    return repository and repository.name


def _describe_training(run, recipe):
    return (
        "## Training",
        "The settings that differ from the defaults of `trainers.train`:",
        _list_settings(recipe),
        *_describe_origin(run.origin),
    )


def _describe_origin(origin):
    """Return what a run was made with, or nothing of a run of before."""
    if not origin:
        return ()
    versions = origin["versions"]
    used = ("keras_vit", "keras", origin["backend"], "python")
    made = ", ".join(f"{n} {versions[n]}" for n in used if n in versions)
    rows = [
        ["started", origin["date"]],
        ["versions", made],
        ["commit", origin["commit"]],
        ["data digest", origin["data_digest"]],
        ["plug-ins", ", ".join(map(os.path.basename, origin["plugins"]))],
    ]
    table = format_table(["origin", ""], [row for row in rows if row[1]])
    return (table,)


def entries_of_model(source: RunFolder | NamedModel) -> dict:
    """Return the entries of an evaluation that say which model it is of."""
    return {"model": str(source), "model_digest": source.digest}


def describe_choice(report: Mapping) -> str:
    """Return what to mind about a report, as a sentence; perhaps empty."""
    if "was_trained_on" in report:
        return (
            "The model has learned from images of this split, so on others the "
            "figures are likely to be much lower. Give --eval_split or "
            "--dataset to evaluate images that had no part in it."
        )
    if "chosen_on_split" not in report:
        return ""
    return (
        f"These images chose the {report['chosen_on_split']}, so "
        "on others the figures are likely to be lower. Give --eval_split or "
        "--dataset to evaluate images that had no part in it."
    )


def read_figures(run: RunFolder, recipe: Recipe) -> dict | None:
    """Return the report of the evaluation of a run; None if there is none.

    An evaluation of a model that the run had earlier counts as none, and so
    does one of other data, of other preprocessing or of another patch size.

    Raises:
        ContentError: If its file is damaged.
    """
    path = run.folder / "evaluation.json"
    if not path.exists():
        return None

    def parse(text):
        report = parse_object(text)
        preprocess = recipe.eval_preprocess
        is_as_trained = (
            report.get("dataset") == recipe.dataset
            and report.get("preprocess", preprocess) == preprocess
            and not {"patch_size", "merged_tokens"} & report.keys()
        )
        if not is_as_trained or is_outdated(report, run):
            return None
        needed = LABEL_FIGURES if run.has_several_labels else CARD_FIGURES
        if recipe.has_maps:
            needed = ("num_examples", "split", MAP_FIGURES[recipe.objective][0])
        return report | {name: report[name] for name in needed}

    return read_written(path, parse, "evaluate the run again")


def _front_matter(run, recipe, figures, task="image-classification"):
    """Return the YAML at the start of a card; JSON strings are YAML."""
    lines = [
        "---",
        "library_name: keras",
        f"pipeline_tag: {task}",
        "tags:",
        "- vision-transformer",
        "- keras-vit",
    ]
    repository = find_repository(recipe.init_from or "")
    if repository:
        lines.append(f"base_model: {json.dumps(repository)}")
    if figures:
        lines += [
            "model-index:",
            f"- name: {json.dumps(run.name)}",
            "  results:",
            "  - task:",
            "      type: image-classification",
            "    dataset:",
            f"      name: {json.dumps(name_data(recipe))}",
            f"      type: {json.dumps(recipe.dataset.partition(':')[0])}",
            f"      split: {json.dumps(figures['split'])}",
            "    metrics:",
        ]
        for name in ("accuracy", "mean_average_precision"):
            if name in figures:
                value = f"      value: {figures[name]:.6g}"
                lines += [f"    - type: {name}", value]
    return "\n".join([*lines, "---"])


def _list_classes(names):
    listed = ", ".join(f"`{name}`" for name in names[:NUM_CLASSES_LISTED])
    more = len(names) - NUM_CLASSES_LISTED
    return listed + (f" and {more:,} more" if more > 0 else "")


def _describe_figures(figures):
    if figures is None:
        return "Not evaluated yet: see `trainers.evaluate`."
    share = "exact_match" if "exact_match" in figures else "accuracy"
    interval = ""
    if f"{share}_low" in figures:
        low, high = figures[f"{share}_low"], figures[f"{share}_high"]
        interval = f" (95 % interval: {low:.2%} to {high:.2%})"
    if share == "exact_match":
        text = (
            f"mean average precision {figures['mean_average_precision']:.4f}, "
            f"F1 of all labels {figures['micro_f1']:.4f}, all labels right for "
            f"{figures[share]:.2%} of the images{interval}"
        )
    else:
        text = (
            f"accuracy {figures[share]:.2%}{interval}, calibration error "
            f"{figures['calibration_error']:.4f}"
        )
    return (
        f"On {figures['num_examples']:,} images of the split "
        f"`{figures['split']}`: {text}. Images of "
        "other places, cameras or times may be classified worse. "
        f"{describe_choice(figures)}"
    ).rstrip()


def _describe_answers(run):
    """Return what a model says of an image, and from which probabilities."""
    thresholds = run.used_thresholds
    calibration = run.calibration
    if calibration is not None:
        figures = calibration.figures
        return (
            "It knows these classes alone. An image of anything else should "
            f"be unknown: its score (`{figures['score']}`) is below "
            f"{figures['threshold']:.4g}, as is that of "
            f"{figures['refused']:.1%} of the {figures['num_examples']:,} "
            f"images of the split `{figures['split']}`. `trainers.predict` "
            "and exports compute it; the model file alone does not."
        )
    if thresholds is None:
        return (
            "It knows these classes alone: an image of anything else gets one "
            "of them as well."
        )
    lowest, highest = min(thresholds), max(thresholds)
    shown = f"{lowest:.4g}"
    if lowest != highest:
        shown += f" to {highest:.4g}, of each class its own in `recipe.json`"
    return (
        "An image may have any number of these labels, or none: it has those "
        f"whose probability is at least the threshold ({shown})."
    )


def _describe_use(model_file, recipe):
    return (
        f"```python\nimport keras\nimport keras_vit\n\n"
        f'model = keras.saving.load_model("{model_file}")\n```\n\n'
        f"The model returns logits; `{recipe.activation}` makes them "
        f"probabilities. {_describe_pixels(recipe)} "
        "`python -m trainers.predict` does all of this."
    )


def _describe_pixels(recipe):
    mean, deviation = recipe.normalization
    steps = recipe.eval_preprocess or "the image is resized"
    return (
        "Pixels x of 0..255 become (x / 255 - mean) / deviation "
        f"with the mean {_join(mean)} and the deviation {_join(deviation)}: "
        "`keras_vit.preprocess_input(images, model=model)`. "
        f"Preprocessing of the evaluation: `{steps}`."
    )


def _join(numbers):
    return ", ".join(f"{number:g}" for number in numbers)


def _list_settings(recipe):
    # A card is for others: they have neither these folders nor this machine.
    told = {"dataset": name_data(recipe), "init_from": name_source(recipe)}
    # The initial model has its own sizes.
    untold = {"model", *MODEL_FLAGS} if recipe.init_from else ()
    rows = []
    for field in dataclasses.fields(Recipe):
        if field.name in untold or not field.metadata["help"]:
            continue
        value = getattr(recipe, field.name)
        is_told = field.name in told or not field.metadata["is_local"]
        if is_told and value != field.default:
            value = told.get(field.name, value)
            text = str(value).replace("|", "\\|")
            rows.append([f"`{field.name}`", f"`{text}`"])
    return format_table(["setting", "value"], rows)
