"""Measure models that merge tokens: python -m benchmarks.merging.

Each forward pass runs in turns with that of the model that merges none. With
--run_dir, the accuracy of a run is measured too:

    python -m benchmarks.merging --run_dir=saved_models/read
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

OPTIONS = [
    ("--models", names_of(MODELS), [], "keys of VARIANTS, with new weights"),
    ("--run_dir", str, None, "a run, to measure its accuracy as well"),
    ("--merged_tokens", split_numbers, [4, 8, 13, 16], "of each block"),
    ("--batch_size", int, 8, "images of a pass"),
    ("--rounds", int, 9, "of each model"),
]


def time_passes(model, counts: list[int], options) -> dict[int, list[float]]:
    """Return the seconds of each round, by the number of merged tokens."""
    shape = (options.batch_size, *model.input_shape[1:])
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    images, passes = tf.constant(images), {}
    for count in counts:
        merging = model.with_merged_tokens(count)
        passes[count] = tf.function(merging, autograph=False)
        for _ in range(2):
            passes[count](images, training=False)
    seconds = {count: [] for count in counts}
    for _ in range(options.rounds):
        for count, run in passes.items():
            start = time.perf_counter()
            run(images, training=False).numpy()
            seconds[count].append(time.perf_counter() - start)
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
    print("\n".join(describe_machine({"tensorflow": tf.__version__})))
    heads = ["model", "merged", "tokens left", "times as fast", "accuracy"]
    print(format_table(heads, rows))


if __name__ == "__main__":
    main()
