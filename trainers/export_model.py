"""Export a trained model for servers and phones, and check the result.

Example:
    python -m trainers.export_model --run_dir=saved_models/digits
"""

from absl import flags

from keras_vit.export import (
    CLASSIFIER_ACTIVATIONS,
    FORMATS,
    OUTPUTS,
    QUANTIZATIONS,
    DisagreementError,
)
from trainers.export.exporting import export_source
from trainers.paths import as_path
from trainers.runs import source_flags
from trainers.runs.command_line import (
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.runs.source_flags import open_source

FLAGS = flags.FLAGS


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
            raise ValueError("--model needs --export_dir.")
        report = export_source(
            source,
            dataset,
            as_path(FLAGS.export_dir or source.folder / "export"),
            FLAGS.formats,
            preprocess=FLAGS.preprocess,
            num_images=FLAGS.num_images,
            calibration_split=FLAGS.calibration_split,
            max_bad_examples=FLAGS.max_bad_examples,
            activation=FLAGS.activation,
            output=FLAGS.output,
            top=FLAGS.top,
            use_attention=FLAGS.use_attention,
            name=FLAGS.name,
            version=FLAGS.version,
            patch_size=FLAGS.patch_size,
            **read_format_options(),
            threads=(1, 2) if FLAGS.measure_latency else (),
            force=FLAGS.force,
        )
    print(report, "", sep="\n")
    for agreement in report.agreements:
        print(agreement.path)


def read_format_options() -> dict:
    """Return the options of the formats, from the flags."""
    return {
        "tflite_quantizations": FLAGS.tflite_quantizations,
        "tflite_batch_size": FLAGS.tflite_batch_size or None,
        "tflite_takes_pixels": FLAGS.tflite_takes_pixels,
        "onnx_takes_pixels": FLAGS.onnx_takes_pixels,
        "web_quantization": FLAGS.web_quantization,
        "web_engine_dir": FLAGS.web_engine_dir,
    }


def define_flags():
    """Define the flags of this command."""
    source_flags.define_source_flags()
    source_flags.define_patch_size_flag()
    define_destination_flags()
    define_format_flags()
    define_web_flags()
    define_comparison_flags()
    define_serving_flags()


def define_destination_flags():
    """Define the flags of the files to write."""
    flags.DEFINE_list(
        "formats",
        ["saved_model", "tflite"],
        f"Comma-separated, of {', '.join(FORMATS)}.",
    )
    flags.DEFINE_string(
        "export_dir", None, "Folder to write to. Default: <run_dir>/export."
    )
    flags.DEFINE_string(
        "name",
        None,
        "Name of the model on servers. Default: the name of the run's folder, "
        "in the letters that servers accept.",
    )
    flags.DEFINE_integer(
        "version",
        None,
        "Number of this version. Default: the first free one.",
        lower_bound=1,
    )


def define_format_flags():
    """Define the options of the formats."""
    flags.DEFINE_list(
        "tflite_quantizations",
        ["dynamic_int8"],
        "Quantizations of the TFLite files, comma-separated, of "
        f"{', '.join(QUANTIZATIONS)}.",
    )
    flags.DEFINE_alias("tflite_variants", "tflite_quantizations")
    flags.DEFINE_integer(
        "tflite_batch_size",
        1,
        "The only batch size that TFLite files accept; 0 for any.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "tflite_takes_pixels",
        False,
        "Let the TFLite files take uint8 pixels from 0 to 255, of twice the "
        "height and width if the preprocessing antialiases.",
    )
    flags.DEFINE_string(
        "calibration_split",
        None,
        "Images to measure the ranges of int8 numbers on, such as "
        "train[:256]; for the TFLite quantizations int8 and static_int8.",
    )
    flags.DEFINE_bool(
        "onnx_takes_pixels",
        False,
        "Let the ONNX file take uint8 pixels from 0 to 255 instead of floats "
        "in the range of the model.",
    )


def define_web_flags():
    """Define the options of the web page."""
    flags.DEFINE_enum(
        "web_quantization",
        "float32",
        [k for k, row in QUANTIZATIONS.items() if not row.needs_calibration],
        "Quantization of the model in the web page.",
    )
    flags.DEFINE_string(
        "web_engine_dir",
        None,
        "Folder with the npm packages of LiteRT.js, as `npm pack` writes "
        "them. Default: they are fetched once and cached.",
    )


def define_comparison_flags():
    """Define the flags of the comparison with the model."""
    flags.DEFINE_integer(
        "num_images",
        512,
        "Largest number of images to compare outputs on.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "max_bad_examples",
        0,
        "Number of unreadable images to skip before the command stops.",
        lower_bound=0,
    )
    flags.DEFINE_bool("measure_latency", True, "Measure latencies.")
    flags.DEFINE_bool(
        "force",
        False,
        "Write exports even if their outputs differ from those of the model.",
    )


def define_serving_flags():
    """Define the flags of pre- and post-processing on the server."""
    flags.DEFINE_integer(
        "top", 5, "Largest number of classes in a prediction.", lower_bound=1
    )
    flags.DEFINE_enum(
        "activation",
        None,
        list(CLASSIFIER_ACTIVATIONS),
        "Function that turns logits into probabilities. Default: that of the "
        "loss of the run, or softmax.",
    )
    flags.DEFINE_enum(
        "output",
        None,
        OUTPUTS,
        "Kind of output of the model. Default: inferred from its last layers.",
    )
    flags.DEFINE_bool(
        "use_attention",
        False,
        "Add signatures that return the attention rollout of an image.",
    )


if __name__ == "__main__":
    define_flags()
    run_main(main)
