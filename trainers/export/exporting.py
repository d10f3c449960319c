"""Export of a model with preprocessing, class names and test images."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.export import (
    ExportOptions,
    ExportReport,
    Serving,
    export_model,
)
from keras_vit.export.bundle import (
    REPORT,
    check_destination,
    check_formats,
    to_model_name,
)
from keras_vit.preprocessing.decoding import decode_image, turn_upright
from keras_vit.preprocessing.description import Normalization, Preprocessing
from keras_vit.tables import format_table
from trainers.augment.augmentation import parse_augmentation
from trainers.data.batches import make_prepare_one
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.evaluation.predictions import take_images
from trainers.models.factory import with_patch_size
from trainers.paths import (
    ContentError,
    Path,
    RemotePath,
    parse_object,
    read_written,
    write_atomically,
)
from trainers.runs.model_card import describe_run
from trainers.runs.named_model import NamedModel
from trainers.runs.run import CARD, Run

NUM_CALIBRATION = 256
NUM_FILES = 16  # Image files that are sent to the exported signatures.
FILE_COLUMNS = (
    *("model", "version", "format", "MiB"),
    *("largest difference", "same class"),
)


def export_source(
    source: Run | NamedModel,
    dataset: ImageDataset,
    export_dir: Path,
    formats: Sequence[str] = ("saved_model", "tflite"),
    *,
    preprocess: str | None = None,
    num_images: int = 512,
    calibration_split: str | None = None,
    max_bad_examples: int = 0,
    tflite_quantizations: Sequence[str] = ("dynamic_int8",),
    activation: str | None = None,
    output: str | None = None,
    top: int = 5,
    use_attention: bool = False,
    name: str | None = None,
    version: int | None = None,
    patch_size: int | None = None,
    **choices,
) -> ExportReport:
    """Export a model and compare each format with it on a data set.

    Servers preprocess image files as the evaluation does. The arguments are
    checked before the model and the images are loaded, which takes a while.

    Args:
        source: A finished run, or a model known by name.
        dataset: The data set; outputs are compared on its evaluation split.
        export_dir: The folder to write to, on this machine.
        formats: Keys of FORMATS.
        preprocess: The operations on images before the model; see
            `eval_batches`. Default: those of the run.
        num_images: Largest number of images to compare outputs on.
        calibration_split: Split with images to calibrate TFLite quantizations.
        max_bad_examples: Number of unreadable images to skip at most, in both
            splits together.
        tflite_quantizations: See `export_tflite`.
        activation: The function that turns logits into probabilities. Default:
            that of the run.
        output: The kind of output of the model, one of OUTPUTS. Default:
            inferred from its last layers.
        top: Largest number of classes in a prediction.
        use_attention: Whether to add the signatures of the attention.
        name: Name of the model on servers. Default: the name of the run's
            folder, in the letters that servers accept.
        version: A number from 1. Default: the first free one.
        patch_size: Side of the patches in pixels, to which the kernel of the
            model is resized as in FlexiViT. Default: that of the model.
        **choices: See `export_model`.

    Raises:
        ValueError: If an argument is invalid, or more images than allowed
            cannot be read.
        DisagreementError: If the outputs of an export differ from those of
            the model.
    """
    if name is None and source.folder is not None:
        name = to_model_name(source.name)
    choices["tflite_quantizations"] = tflite_quantizations
    check_export_arguments(export_dir, num_images, name, version)
    check_formats(formats, plan_options(choices), bool(calibration_split))
    if calibration_split:
        # An error if it does not exist.
        dataset.ranges(calibration_split, argument="calibration_split")
    model = with_patch_size(source.load_model(), patch_size)
    card = describe_source(source, model)
    preprocess = source.preprocess if preprocess is None else preprocess
    read_image, normalization = make_reader(preprocess, model.input_shape[1:])
    bad_examples = BadExamples(max_bad_examples)
    images = take_images(dataset, preprocess, model, num_images, bad_examples)
    if not bad_examples.names:
        choices["files"] = take_files(dataset, min(NUM_FILES, len(images)))
    if calibration_split:
        choices["calibration_images"] = take_images(
            dataclasses.replace(dataset, eval_split=calibration_split),
            preprocess,
            model,
            NUM_CALIBRATION,
            bad_examples,
        )
    serving = Serving(
        class_names=find_class_names(source, dataset, model),
        top=top,
        activation=activation or source.activation,
        preprocessing=Preprocessing(normalization),
        read_image=read_image,
        image_steps=parse_augmentation(
            preprocess, model.input_shape[1:3], "preprocess"
        ).steps(model.input_shape[1:3]),
        use_attention=use_attention,
        output=output,
    )
    choices |= {"name": name, "version": version, "serving": serving}
    report = export_model(model, export_dir, images, formats, **choices)
    if card:
        text = f"{card}\n{describe_exports(export_dir, report)}"
        write_atomically(export_dir / CARD, text)
    return report


def take_files(dataset: ImageDataset, count: int) -> dict[int, bytes]:
    """Return the first images of the evaluation split that are files."""
    reader = dataset.reader
    if getattr(getattr(reader, "row", None), "pixels", None):
        return {}
    examples = reader.read(dataset.ranges(dataset.eval_split)).take(count)
    files = {}
    for index, (stored, label, _) in enumerate(examples):
        if not np.any(np.reshape(label, -1) >= 0):
            return {}
        content = reader.fetch(stored)
        if content.dtype.name == "string" and content.numpy().startswith(
            (b"\xff\xd8\xff", b"\x89PNG")
        ):
            files[index] = content.numpy()
    return files


def describe_source(source: Run | NamedModel, model: keras.Model) -> str | None:
    """Return the model card of an exported source; None if it is no run."""
    if not isinstance(source, Run):
        return None
    return describe_run(source, model, str(source.model_path))


def plan_options(choices: Mapping[str, Any]) -> ExportOptions:
    """Return the options that are known before the images are loaded."""
    names = {field.name for field in dataclasses.fields(ExportOptions)}
    return ExportOptions(
        **{key: choices[key] for key in names & choices.keys()}
    )


def check_export_arguments(export_dir, num_images, name, version):
    """Raise an error if an argument of `export_source` is invalid."""
    if isinstance(export_dir, RemotePath):
        raise ValueError(
            "`export_dir` must be a folder of this machine. "
            f"Received: export_dir={str(export_dir)!r}"
        )
    if num_images < 1:
        raise ValueError(
            f"`num_images` must be 1 or more. Received: num_images={num_images}"
        )
    check_destination(export_dir, name, version)


def make_reader(
    preprocess: str, image_shape: tuple[int, int, int]
) -> tuple[Callable, Normalization]:
    """Return the function that reads an image file, and its normalisation."""
    prepare, normalization = make_prepare_one(preprocess, image_shape[:2])

    def read_image(encoded):
        pixels = decode_image(encoded, image_shape[-1])
        return prepare(turn_upright(pixels, encoded))

    return read_image, normalization


def find_class_names(
    source: Run | NamedModel, dataset: ImageDataset, model: keras.Model
) -> list[str] | None:
    """Return the class names, or None if they do not fit the outputs."""
    names = source.load_class_names()
    if names is None:  # It is of no run.
        names = dataset.model_class_names
    return names if len(names) == model.output_shape[-1] else None


def describe_exports(export_dir: pathlib.Path, report: ExportReport) -> str:
    """Return the report on a version, and a table of the others there."""
    text = f"## Export\n\n{report}\n"
    versions = list_versions(export_dir)
    this = report.name, report.version
    rows = [row for key, found in versions for row in found if key != this]
    if rows:
        text += (
            "\n### Other versions in this folder\n\n"
            f"{format_table(FILE_COLUMNS, rows)}\n\n"
            f"The folder `{REPORT}/` has the report on each of them.\n"
        )
    return text


def list_versions(
    export_dir: pathlib.Path,
) -> list[tuple[tuple[str, int], list[list[str]]]]:
    """Return name and number of each version, and a row for each of its files.

    The newest version of a name is first. Files that were deleted since are
    left out, and so are versions whose report cannot be read.
    """
    found = []
    for path in sorted(export_dir.glob(f"{REPORT}/*/*/report.json")):
        name, number = path.parts[-3:-1]
        try:
            agreements = read_written(
                path, lambda text: parse_object(text)["agreements"], ""
            )
            rows = [
                _make_row(row, name, number)
                for row in agreements
                if _is_there(export_dir, name, number, row["path"])
            ]
            found.append(((name, int(number)), rows))
        except (ContentError, KeyError, TypeError, ValueError):
            continue
    return sorted(found, key=lambda item: (item[0][0], -item[0][1]))


def _is_there(export_dir, name, number, path):
    """Return whether a file is still there; the folder may have moved."""
    parts, inner = pathlib.PurePath(path).parts, ()
    for index in range(1, len(parts) - 1):
        if parts[index : index + 2] == (name, number):
            inner = parts[index - 1 :]  # It begins with the format.
    return bool(inner) and export_dir.joinpath(*inner).exists()


def _make_row(row, name, number):
    difference = row["max_difference"]  # None if it is not finite.
    return [
        name,
        number,
        row["kind"],
        f"{row['num_bytes'] / 2**20:.2f}",
        "not finite" if difference is None else f"{difference:.1e}",
        f"{row['top1_agreement']:.2%}",
    ]
