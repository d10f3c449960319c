"""One of the two processes of benchmarks.scaling, on a core of its own."""

import dataclasses
import json
import math
import os
import sys
import time


def main(task: dict):
    """Measure all cases in turns; the first process prints the seconds.

    Args:
        task: What `benchmarks.scaling.run_workers` gives.
    """
    # Before TensorFlow is imported, which counts the cores it may use.
    os.sched_setaffinity(0, {task["core"]})
    import tensorflow as tf

    # With one thread for everything, the heartbeats of the other process are
    # not read during a step, and it counts as lost.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    from trainers.distribute.cluster import WorkerConfig
    from trainers.distribute.strategies import make_strategy
    from trainers.distribute.workers import wait_for_all

    together = make_strategy(
        "multi_worker", WorkerConfig(task["workers"], task["index"])
    )
    cases, weights = make_cases(task, together)
    seconds = {case: [] for case in ("one", "weak", "strong", "all-reduce")}
    for index in range(task["rounds"] + 1):
        for case, values in seconds.items():
            wait_for_all(together)
            # A process without the case waits while the other one runs alone.
            new = cases[case]() if case in cases else []
            if index:  # The first round traces.
                values.extend(new)
    wait_for_all(together)
    if task["index"] == 0:
        size = {"float32": 4, "bfloat16": 2}[task["gradient_dtype"]]
        size *= sum(math.prod(weight.shape) for weight in weights)
        print(json.dumps({"seconds": seconds, "bytes": size}), flush=True)


def make_cases(task, together) -> tuple[dict, list]:
    """Return a function for each case of this process, and the weights."""
    from trainers.distribute.strategies import make_strategy

    loops = {
        "weak": make_task_loop(task, together),
        "strong": make_task_loop(task, together),
    }
    sizes = {"weak": 2 * task["batch_size"], "strong": task["batch_size"]}
    if task["index"] == 0:
        loops["one"] = make_task_loop(task, make_strategy("one_device"))
        sizes["one"] = task["batch_size"]
    cases = {
        case: make_training(task, loop, sizes[case])
        for case, loop in loops.items()
    }
    weights = loops["weak"].model.trainable_variables
    cases["all-reduce"] = make_reduction(task, together, weights)
    return cases, weights


def make_task_loop(task, strategy):
    """Return a training loop of the model of the task."""
    import keras

    from keras_vit import VARIANTS, VisionTransformer
    from trainers.loop.loop import Loop
    from trainers.optim.losses import softmax
    from trainers.optim.optimizers import make_optimizer

    config = VARIANTS[task["model"]].config
    config = dataclasses.replace(
        config,
        image_size=task["image_size"],
        depth=task["depth"] or config.depth,
    )
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = VisionTransformer(config)
        optimizer = make_optimizer(
            "adamw", model.trainable_variables, learning_rate=1e-4
        )
    return Loop(
        model,
        optimizer,
        softmax,
        strategy,
        clip_norm=1.0,
        gradient_dtype=task["gradient_dtype"],
    )


def make_training(task, loop, size: int):
    """Return a function that trains and returns the seconds of its steps."""
    import keras
    import tensorflow as tf

    def batches(context):
        size_here = size // context.num_replicas_in_sync
        shape = (size_here, task["image_size"], task["image_size"], 3)
        images = tf.random.stateless_uniform(shape, (0, 0), -1, 1)
        labels = tf.one_hot(tf.range(size_here), 1000)
        batch = (images, labels, tf.ones(size_here))
        return tf.data.Dataset.from_tensors(batch).repeat()

    ends = []
    clock = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: ends.clear(),
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter()),
    )

    def train():
        end = loop.step + task["steps"] + 1
        loop.train(
            batches,
            batches,
            total_steps=end,
            steps_per_epoch=end,
            eval_steps=1,
            steps_per_loop=1,
            callbacks=[clock],
        )
        # The first step may trace; it ends where the second begins.
        return [b - a for a, b in zip(ends, ends[1:])]

    return train


def make_reduction(task, strategy, weights):
    """Return a function that sums the weights, and returns the seconds."""
    import tensorflow as tf

    dtype = task["gradient_dtype"]

    @tf.function
    def reduce():
        def on_replica():
            replica = tf.distribute.get_replica_context()
            values = [tf.identity(weight.value) for weight in weights]
            values = [tf.cast(value, dtype) for value in values]
            values = replica.all_reduce(tf.distribute.ReduceOp.SUM, values)
            # All are needed, and cost nothing.
            return tf.add_n([tf.reshape(value, (-1,))[0] for value in values])

        return strategy.run(on_replica)

    def run():
        seconds = []
        for _ in range(task["steps"] + 1):
            start = time.perf_counter()
            reduce().numpy()
            seconds.append(time.perf_counter() - start)
        return seconds[1:]

    return run


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
