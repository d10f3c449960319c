"""Export a trained model for servers and phones, and check the result.

Example:
    python -m trainers.export_model --run_dir=saved_models/digits
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.export_model")

from absl import flags

from keras_vit.export import (
    DisagreementError,
)
from trainers.export.exporting import export_source
from trainers.paths import as_path
from trainers.runs.command_line import (
    open_source,
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)

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


if __name__ == "__main__":
    run_main(main)
