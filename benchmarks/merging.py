"""Measure models of fewer tokens: python -m benchmarks.merging.

Each forward pass runs in turns with that of the model that merges none. With
--run_dir, the accuracy of a run is measured too, and with --patch_dropout the
gradients of a training step, in turns with those of all patches:

    python -m benchmarks.merging --run_dir=saved_models/read
    python -m benchmarks.merging --models=S/16 --patch_dropout=0.25,0.5
"""

import time

import numpy as np
import tensorflow as tf

from benchmarks.harness import (
    MODELS,
    describe_machine,
    make_parser,
    median_ratio,
    names_of,
    split_numbers,
)
from keras_vit import VARIANTS, VisionTransformer
from keras_vit.layers.fewer_tokens import count_merged
from keras_vit.tables import format_table


def split_rates(text: str) -> list[float]:
    """Return the rates in a list with commas."""
    return split_numbers(text, float)


OPTIONS = [
    ("--models", names_of(MODELS), [], "keys of VARIANTS, with new weights"),
    ("--run_dir", str, None, "a run, to measure its accuracy as well"),
    ("--merged_tokens", split_numbers, [4, 8, 13, 16], "of each block"),
    ("--patch_dropout", split_rates, None, "rates, of a training step"),
    ("--batch_size", int, 8, "images of a pass"),
    ("--rounds", int, 9, "of each model"),
]


def time_passes(model, counts: list[int], options) -> dict[int, list[float]]:
    """Return the seconds of each round, by the number of merged tokens."""

    def make_pass(count):
        merging = model.with_merged_tokens(count)
        run = tf.function(merging, autograph=False)
        return lambda images: run(images, training=False)

    passes = {count: make_pass(count) for count in counts}
    return time_in_turns(passes, model, options)


def time_steps(model, rates: list[float], options) -> dict[float, list[float]]:
    """Return the seconds of each round, by the rate of patch dropout."""

    def make_step(rate):
        trained = model.with_patch_dropout(rate)
        variables = [v.value for v in trained.trainable_variables]

        @tf.function(autograph=False)
        def step(images):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(trained(images, training=True) ** 2)
            gradients = tape.gradient(loss, variables)
            return tf.add_n([tf.reduce_sum(x) for x in gradients])

        return step

    steps = {rate: make_step(rate) for rate in rates}
    return time_in_turns(steps, model, options)


def time_in_turns(runs: dict, model, options) -> dict:
    """Return the seconds of each round, by the keys of the functions."""
    shape = (options.batch_size, *model.input_shape[1:])
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    images = tf.constant(images)
    for run in [*runs.values()] * 2:
        run(images)
    seconds = {key: [] for key in runs}
    for _ in range(options.rounds):
        for key, run in runs.items():
            start = time.perf_counter()
            run(images).numpy()
            seconds[key].append(time.perf_counter() - start)
    return seconds


def count_left(model, merged_tokens: int) -> int:
    """Return the number of tokens after the last block."""
    config = model.config
    prefix = config.num_prefix_tokens
    left = prefix + config.grid_size[0] * config.grid_size[1]
    for _ in range(config.depth):
        left -= count_merged(left, merged_tokens, prefix)
    return left


def main(arguments: list[str] | None = None):
    """Run the command."""
    options = make_parser(__doc__, OPTIONS).parse_args(arguments)
    models = {
        name: VisionTransformer(VARIANTS[name].config)
        for name in options.models
    }
    source = None
    if options.run_dir:
        from trainers.commands import open_source
        from trainers.evaluation.evaluation import evaluate

        source, dataset = open_source(options.run_dir)
        models[options.run_dir] = source.load_model()
    print("\n".join(describe_machine({"tensorflow": tf.__version__})))
    if options.patch_dropout:
        rows, rates = [], [0.0, *options.patch_dropout]
        for name, model in models.items():
            seconds = time_steps(model, rates, options)
            for rate, times in seconds.items():
                ratio = median_ratio(seconds[0.0], times)
                rows.append([name, rate, f"{ratio:.2f}"])
        heads = ["model", "patch dropout", "times as fast"]
        print(format_table(heads, rows))
        return
    rows, counts = [], [0, *options.merged_tokens]
    for name, model in models.items():
        seconds = time_passes(model, counts, options)
        for count, times in seconds.items():
            accuracy = ""
            if name == options.run_dir:
                report = evaluate(source, dataset, merged_tokens=count)
                accuracy = f"{report['accuracy']:.2%}"
            ratio = median_ratio(seconds[0], times)
            left = count_left(model, count)
            rows.append([name, count, left, f"{ratio:.2f}", accuracy])
    heads = ["model", "merged", "tokens left", "times as fast", "accuracy"]
    print(format_table(heads, rows))


if __name__ == "__main__":
    main()
