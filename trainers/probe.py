"""Probe the features of a model: few-shot regression and nearest neighbours.

The features are the inputs of the classifier; the model is not trained.

Example:
    python -m trainers.probe --run_dir=saved_models/digits
    python -m trainers.probe --model=B/16-augreg --dataset=cifar10
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.probe")

from collections.abc import Mapping

from absl import flags

from trainers.commands import (
    open_source,
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.data.labels import LabelOptions
from trainers.evaluation.probing import (
    ProbeChoices,
    probe,
)
from trainers.paths import as_path

FLAGS = flags.FLAGS


def parse_numbers(argument: str, words: list[str]) -> tuple[int, ...]:
    """Return the numbers that a flag lists."""
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise ValueError(
            f"`{argument}` must be whole numbers, separated by commas. "
            f"Received: {argument}={','.join(words)}"
        ) from None


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        refuse_arguments(arguments)
        choices = ProbeChoices(
            parse_numbers("shots", FLAGS.shots),
            FLAGS.num_seeds,
            FLAGS.neighbors and parse_numbers("neighbors", FLAGS.neighbors),
        )
        source, dataset = open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            train_split=FLAGS.train_split,
            eval_split=FLAGS.eval_split,
            labels=LabelOptions(FLAGS.labels, FLAGS.label_separator),
        )
        probe(
            source,
            dataset,
            FLAGS.probes,
            choices,
            batch_size=FLAGS.batch_size,
            preprocess=FLAGS.preprocess,
            max_bad_examples=FLAGS.max_bad_examples,
            report_dir=FLAGS.report_dir and as_path(FLAGS.report_dir),
            show=print_probes,
        )


def print_probes(report: Mapping):
    """Print the accuracies of the probes."""
    print(
        f"{report['model']} on {report['dataset']}: fitted to "
        f"{report['num_train']:,} images, tested on {report['num_test']:,}; "
        f"{report['num_features']} features\n"
        f"{'probe':14s} accuracy  deviation"
    )
    for name, row in report["probes"].items():
        has_deviation = row["deviation"] is not None
        deviation = f"{row['deviation']:9.4f}" if has_deviation else ""
        print(f"{name:14s} {row['mean']:8.4f}  {deviation}".rstrip())
    smallest = report["smallest_class"]
    settings = [name.split("/") for name in report["probes"]]
    if any(x == "few_shot" and int(n) > smallest for x, n in settings):
        print(
            f"Note: the smallest class has {smallest:,} images. With more "
            "shots, the classes are not fitted to the same number of images, "
            "and the accuracy may be lower."
        )


if __name__ == "__main__":
    run_main(main)
