"""Export a trained model for servers and phones, and check what was written.

Example:
    python -m trainers.export_model --run_dir=saved_models/digits
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from absl import flags

from keras_vit.export import (
    ACTIVATIONS,
    FORMATS,
    OUTPUTS,
    DisagreementError,
    ExportReport,
    Serving,
    export_model,
)
from keras_vit.export.bundle import check_formats, check_place
from keras_vit.export.tflite import VARIANTS
from keras_vit.image_decoding import decode_photo, turn_upright
from trainers.data.batches import eval_batches
from trainers.data.datasets import ImageDataset
from trainers.data.model_inputs import make_prepare_one
from trainers.evaluation.predictions import check_model
from trainers.paths import Path, RemotePath, as_path
from trainers.runs import run as runs
from trainers.runs.command_line import (
    refuse_arguments,
    start,
    stop_at_once,
    user_errors,
)
from trainers.runs.run import NamedModel, Run, open_source

FLAGS = flags.FLAGS
BATCH_SIZE = 64
NUM_CALIBRATION = 256


def export_source(
    source: Run | NamedModel,
    dataset: ImageDataset,
    export_dir: Path,
    formats: Sequence[str] = ("saved_model", "tflite"),
    *,
    preprocess: str | None = None,
    num_images: int = 512,
    calibration_split: str | None = None,
    tflite_variants: Sequence[str] = ("dynamic_int8",),
    activation: str | None = None,
    output: str | None = None,
    top: int = 5,
    use_attention: bool = False,
    name: str | None = None,
    version: int | None = None,
    **choices,
) -> ExportReport:
    """Export a model, each format checked on images of a data set.

    Servers read image files as the evaluation did. The arguments are checked
    before the model and the images are loaded, which takes a while.

    Args:
        source: A finished run, or a model known by name.
        dataset: Its eval split is what the answers are compared on.
        export_dir: Where the exports are written, a folder of this machine.
        formats: Keys of FORMATS.
        preprocess: What is done to the images, see `eval_batches`; None for
            what the run did.
        num_images: Images to compare the answers on, at most.
        calibration_split: Images for the variants of TFLite that need some.
        tflite_variants: See `export_tflite`.
        activation: What makes probabilities of logits; None for what belongs
            to the loss of the run.
        output: What the model answers with, one of OUTPUTS; None for what its
            last layers say.
        top: How many classes a server names, at most.
        use_attention: Whether it can be asked for the attention rollout.
        name: What servers call the model. Default: the name of the folder of
            the run.
        version: A number from 1. Default: the first that is free.
        **choices: See `export_model`.

    Raises:
        ValueError: If an argument does not fit.
        DisagreementError: If an export answers differently from the model.
    """
    if isinstance(export_dir, RemotePath):
        raise ValueError(
            "`export_dir` must be a folder of this machine. "
            f"Received: export_dir={str(export_dir)!r}"
        )
    if num_images < 1:
        raise ValueError(
            f"`num_images` must be 1 or more. Received: {num_images}"
        )
    check_formats(
        formats, tflite_variants, bool(calibration_split), "calibration_split"
    )
    if calibration_split:
        dataset.ranges(calibration_split)  # An error if it is not there.
    if isinstance(source, Run):
        name = name or source.folder.name
    check_place(export_dir, name, version)
    model = source.load_model()
    preprocess = source.preprocess if preprocess is None else preprocess
    image_shape = model.input_shape[1:]
    prepare, value_range = make_prepare_one(preprocess, image_shape[:2])

    def read_image(encoded):
        pixels = decode_photo(encoded, image_shape[-1])
        return prepare(turn_upright(pixels, encoded))

    if calibration_split:
        choices["calibration_images"] = take_images(
            dataset, calibration_split, preprocess, model, NUM_CALIBRATION
        )
    class_names = source.load_class_names() or dataset.class_names
    if len(class_names) != model.output_shape[-1]:
        class_names = None
    return export_model(
        model,
        export_dir,
        take_images(dataset, None, preprocess, model, num_images),
        formats,
        name=name,
        serving=Serving(
            class_names=class_names,
            top=top,
            activation=activation or source.activation,
            value_range=value_range,
            read_image=read_image,
            use_attention=use_attention,
            output=output,
        ),
        tflite_variants=tflite_variants,
        version=version,
        **choices,
    )


def take_images(
    dataset: ImageDataset,
    split: str | None,
    preprocess: str,
    model: keras.Model,
    count: int,
) -> np.ndarray:
    """Return the first images of a split, None for the eval split.

    Shapes:
        returns: (B, H, W, C), float32, B being `count` at most.
    """
    if split:
        dataset = dataclasses.replace(dataset, eval_split=split)
    check_model(model, dataset)
    images, num_found = [], 0
    for batch, _, weights in eval_batches(
        dataset,
        image_size=model.input_shape[1:3],
        batch_size=min(count, BATCH_SIZE),
        preprocess=preprocess,
    ):
        images.append(batch.numpy()[np.asarray(weights) > 0])
        num_found += len(images[-1])
        if num_found >= count:
            break
    return np.concatenate(images)[:count]


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
        )
        if not (FLAGS.export_dir or source.folder):
            raise ValueError("Give --export_dir with --model.")
        report = export_source(
            source,
            dataset,
            as_path(FLAGS.export_dir or source.folder / "export"),
            FLAGS.formats,
            preprocess=FLAGS.preprocess,
            num_images=FLAGS.num_images,
            calibration_split=FLAGS.calibration_split,
            activation=FLAGS.activation,
            output=FLAGS.output,
            top=FLAGS.top,
            use_attention=FLAGS.use_attention,
            name=FLAGS.name,
            version=FLAGS.version,
            tflite_variants=FLAGS.tflite_variants,
            tflite_batch_size=FLAGS.tflite_batch_size or None,
            onnx_takes_pixels=FLAGS.onnx_takes_pixels,
            threads=(1, 2) if FLAGS.measure_latency else (),
            force=FLAGS.force,
        )
    print(report, "", sep="\n")
    for agreement in report.agreements:
        print(agreement.path)


def define_flags():
    """Define the flags of this command."""
    runs.define_source_flags()
    flags.DEFINE_list(
        "formats",
        ["saved_model", "tflite"],
        f"Comma-separated, of {', '.join(FORMATS)}.",
    )
    flags.DEFINE_string(
        "export_dir", None, "Where to write. Default: <run_dir>/export."
    )
    flags.DEFINE_string(
        "name",
        None,
        "What servers call the model. Default: the name of the run's folder.",
    )
    flags.DEFINE_integer(
        "version",
        None,
        "Number of this version. Default: the first that is free.",
        lower_bound=1,
    )
    flags.DEFINE_list(
        "tflite_variants",
        ["dynamic_int8"],
        f"Comma-separated, of {', '.join(VARIANTS)}.",
    )
    flags.DEFINE_integer(
        "tflite_batch_size",
        1,
        "Images that a TFLite file answers at a time; 0 for any number.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "calibration_split",
        None,
        "Images to find the ranges of int8 numbers on, such as train[:256]; "
        "for the variants int8 and static_int8.",
    )
    flags.DEFINE_bool(
        "onnx_takes_pixels",
        False,
        "Let the ONNX file take pixels from 0 to 255, uint8, in place of "
        "floats in the range of the model.",
    )
    flags.DEFINE_integer(
        "num_images",
        512,
        "Images to compare the answers on, at most.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "top", 5, "How many classes a server names, at most.", lower_bound=1
    )
    flags.DEFINE_enum(
        "activation",
        None,
        list(ACTIVATIONS),
        "What makes probabilities of logits. Default: what belongs to the "
        "loss of the run, or softmax.",
    )
    flags.DEFINE_enum(
        "output",
        None,
        OUTPUTS,
        "What the model answers with. Default: what its last layers say.",
    )
    flags.DEFINE_bool(
        "use_attention",
        False,
        "Let servers be asked for the attention rollout of an image.",
    )
    flags.DEFINE_bool(
        "measure_latency", True, "Measure how fast the exports are."
    )
    flags.DEFINE_bool(
        "force",
        False,
        "Write an export that answers differently from the model, too.",
    )


if __name__ == "__main__":
    define_flags()
    flags.adopt_module_key_flags(runs)  # So that --help lists them.
    start(main)
