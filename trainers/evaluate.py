"""Evaluate a trained model on the test split of its data set, or on another.

Example:
    python -m trainers.evaluate --run_dir=saved_models/digits
    python -m trainers.evaluate --model=B/16-augreg-i1k --dataset=imagenet2012
"""

from absl import flags

from trainers.evaluation.evaluation import evaluate
from trainers.paths import as_path
from trainers.runs import source_flags
from trainers.runs.command_line import refuse_arguments, run_main, user_errors
from trainers.runs.source_flags import open_source

FLAGS = flags.FLAGS
NUM_CLASSES_SHOWN = 20


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        source, dataset = open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            eval_split=FLAGS.eval_split,
        )
        folder = FLAGS.report_dir and as_path(FLAGS.report_dir)
        report = evaluate(
            source,
            dataset,
            batch_size=FLAGS.batch_size,
            preprocess=FLAGS.preprocess,
            max_bad_examples=FLAGS.max_bad_examples,
            report_dir=folder,
        )
    many = len(dataset.class_names) > NUM_CLASSES_SHOWN
    for name, value in report.items():
        if not (many and name.startswith("accuracy/")):
            text = f"{value:.4f}" if isinstance(value, float) else value
            print(f"{name:24s} {text}")
    folder = folder or source.folder
    if folder:
        print(f"Report and examples: {folder}/evaluation.json, predictions.png")


if __name__ == "__main__":
    source_flags.define_evaluation_flags()
    flags.adopt_module_key_flags(source_flags)  # So that --help lists them.
    run_main(main)
