"""Export a trained model for servers and phones, and check the result.

Example:
    python -m trainers.export_model --run_dir=saved_models/digits
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.export_model")

import dataclasses
from collections.abc import Sequence

import keras
from absl import flags

from keras_vit.export import (
    DisagreementError,
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
from keras_vit.known import KnownScore
from keras_vit.preprocessing.description import Preprocessing
from trainers.augment.augmentation import parse_augmentation
from trainers.commands import (
    open_source,
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.data.labels import LabelOptions
from trainers.evaluation.predictions import take_images
from trainers.models.factory import with_other_tokens
from trainers.paths import Path, RemotePath, as_path, write_atomically
from trainers.training.model_card import describe_run
from trainers.training.run_folder import CARD, NamedModel, RunFolder

FLAGS = flags.FLAGS
NUM_CALIBRATION = 256
NUM_FILES = 16  # Image files that are sent to the exported signatures.
# The flags that are arguments of `export_source` or `export_model`.
ARGUMENTS = (
    *("formats", "preprocess", "num_images", "calibration_split"),
    *("max_bad_examples", "activation", "output", "top", "use_attention"),
    *("name", "version", "patch_size", "merged_tokens", "force"),
    *("tflite_quantizations", "tflite_takes_pixels", "onnx_takes_pixels"),
    *("onnx_batch_size", "web_quantization", "web_engine_dir"),
)


def main(arguments):
    """Run the command."""
    with (
        user_errors(DisagreementError, ModuleNotFoundError),
        stop_at_once("Stopped; nothing was written."),
    ):
        refuse_arguments(arguments)
        source, dataset = open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            eval_split=FLAGS.eval_split,
            labels=LabelOptions(FLAGS.labels, FLAGS.label_separator),
        )
        if not (FLAGS.export_dir or source.folder):
            raise ValueError("--model needs --export_dir.")
        report = export_source(
            source,
            dataset,
            as_path(FLAGS.export_dir or source.folder / "export"),
            **{name: FLAGS[name].value for name in ARGUMENTS},
            tflite_batch_size=FLAGS.tflite_batch_size or None,
            threads=(1, 2) if FLAGS.measure_latency else (),
        )
    print(report, "", sep="\n")
    for agreement in report.agreements:
        print(agreement.path)


def export_source(
    source: RunFolder | NamedModel,
    dataset: ImageDataset,
    export_dir: Path,
    formats: Sequence[str] = ("saved_model", "tflite"),
    *,
    preprocess: str | None = None,
    num_images: int = 512,
    calibration_split: str | None = None,
    max_bad_examples: int = 0,
    activation: str | None = None,
    output: str | None = None,
    top: int | None = None,
    use_attention: bool = False,
    name: str | None = None,
    version: int | None = None,
    patch_size: int | None = None,
    merged_tokens: int | None = None,
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
        activation: The function that turns logits into probabilities. Default:
            that of the run.
        output: The kind of output of the model, one of OUTPUTS. Default:
            inferred from its last layers.
        top: Largest number of classes in a prediction. Default: 5; of several
            labels, all.
        use_attention: Whether to add the signatures of the attention.
        name: Name of the model on servers. Default: the name of the run's
            folder, in the letters that servers accept.
        version: A number from 1. Default: the one after the newest.
        patch_size: Side of the patches in pixels, to which the kernel of the
            model is resized as in FlexiViT. Default: that of the model.
        merged_tokens: Number of patches that each block merges with similar
            ones. Default: that of the model.
        **choices: See `export_model`, such as the fields of `ExportOptions`.

    Raises:
        ValueError: If an argument is invalid, or more images than allowed
            cannot be read.
        DisagreementError: If the outputs of an export differ from those of
            the model.
    """
    if name is None and source.folder is not None:
        name = to_model_name(source.name)
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
    names = {field.name for field in dataclasses.fields(ExportOptions)}
    options = {key: choices[key] for key in names & choices.keys()}
    if calibration_split:
        options["calibration_images"] = ()  # There will be some.
    check_formats(formats, ExportOptions(**options))
    if output == "features" and source.load_class_names():
        raise ValueError(
            "`output` must not be 'features' for a model that has learned "
            f"classes. Received: output={output!r}, the model of {source}"
        )
    if calibration_split:
        # An error if it does not exist.
        dataset.ranges(calibration_split, argument="calibration_split")
    model = source.load_model()
    model = with_other_tokens(model, patch_size, merged_tokens)
    card = describe_source(source, model)
    preprocess = source.preprocess if preprocess is None else preprocess
    image_size = model.input_shape[1:3]
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")
    image_steps = augmentation.steps(image_size)
    if image_steps is None:
        raise ValueError(
            "`preprocess` must do the same with each image, as servers do. "
            f"Received: preprocess={preprocess!r}"
        )
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
    has_others = patch_size is not None or merged_tokens is not None
    serving = Serving(
        class_names=find_class_names(source, dataset, model),
        top=top,
        activation=activation or source.activation,
        thresholds=source.used_thresholds,
        # Other tokens give other features than were calibrated.
        known=None if has_others else find_known(source, output, activation),
        preprocessing=Preprocessing(
            augmentation.normalization, pixel_range=source.pixel_range
        ),
        image_steps=image_steps,
        use_attention=use_attention,
        output=output,
    )
    choices |= {"name": name, "version": version, "serving": serving}
    report = export_model(model, export_dir, images, formats, **choices)
    if card:
        text = (
            f"{card}\n## Export\n\n{report}\n\n"
            f"The folder `{REPORT}/` has the report on each version.\n"
        )
        write_atomically(export_dir / CARD, text)
    return report


def find_known(
    source: RunFolder | NamedModel, output: str | None, activation: str | None
) -> KnownScore | None:
    """Return what tells known images, if the run is calibrated."""
    calibration = source.calibration
    if calibration is None or output not in (None, "logits"):
        return None
    known = calibration.known
    if activation not in (None, known.activation):
        raise ValueError(
            f"`activation` must be {known.activation}, as the run was "
            f"calibrated. Received: activation={activation!r}"
        )
    return known


def take_files(dataset: ImageDataset, count: int) -> list[bytes]:
    """Return those of the first test images that are JPEG or PNG files."""
    reader = dataset.reader
    examples = reader.read(dataset.ranges(dataset.eval_split)).take(count)
    contents = [reader.fetch(stored) for stored, *_ in examples]
    return [
        content.numpy()
        for content in contents
        if content.dtype.name == "string"
        and content.numpy().startswith((b"\xff\xd8\xff", b"\x89PNG"))
        and content.numpy()[24:26] not in DEEP_COLOURS
    ]


# Bits and colours of PNG files of which Pillow reads 8 bits alone.
DEEP_COLOURS = (b"\x10\x02", b"\x10\x06")


def describe_source(
    source: RunFolder | NamedModel, model: keras.Model
) -> str | None:
    """Return the model card of an exported source; None if it is no run."""
    if not isinstance(source, RunFolder):
        return None
    return describe_run(source, model, str(source.model_path))


def find_class_names(
    source: RunFolder | NamedModel, dataset: ImageDataset, model: keras.Model
) -> list[str] | None:
    """Return the class names, or None if they do not fit the outputs."""
    names = source.load_class_names()
    if names is None:  # It is of no run.
        names = source.stated_class_names() or dataset.model_class_names
    return names if len(names) == model.output_shape[-1] else None


if __name__ == "__main__":
    run_main(main)
