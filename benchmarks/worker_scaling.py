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
        task: What `benchmarks.scaling.measure` gives.
    """
    # Before TensorFlow is imported, which counts the cores it may use.
    os.sched_setaffinity(0, {task["core"]})
    import keras
    import tensorflow as tf

    from keras_vit import VARIANTS, VisionTransformer
    from trainers.distribute.strategies import (
        WorkerConfig,
        make_strategy,
        wait_for_all,
    )
    from trainers.loop.loop import Loop
    from trainers.optim.losses import softmax
    from trainers.optim.optimizers import make_optimizer

    class Clock(keras.callbacks.Callback):
        """Notes the seconds of each call but the first, which may trace."""

        def on_train_begin(self, logs=None):
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            self.ends.append(time.perf_counter())

        @property
        def seconds(self):
            return [b - a for a, b in zip(self.ends, self.ends[1:])]

    # With one thread for everything the signs of life of the other process
    # are not read while a step is computed, and it counts as lost.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    together = make_strategy(
        "multi_worker", WorkerConfig(task["workers"], task["index"])
    )
    alone = make_strategy("one_device")

    config = VARIANTS[task["model"]].config
    config = dataclasses.replace(
        config,
        image_size=task["image_size"],
        depth=task["depth"] or config.depth,
    )

    def make_loop(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = VisionTransformer(config)
            optimizer = make_optimizer(
                "adamw", model.trainable_variables, learning_rate=1e-4
            )
        return Loop(model, optimizer, softmax, strategy, clip_norm=1.0)

    def batches(size):
        def read(context):
            size_here = size // context.num_replicas_in_sync
            shape = (size_here, task["image_size"], task["image_size"], 3)
            images = tf.random.stateless_uniform(shape, (0, 0), -1, 1)
            labels = tf.one_hot(tf.range(size_here), 1000)
            batch = (images, labels, tf.ones(size_here))
            return tf.data.Dataset.from_tensors(batch).repeat()

        return read

    clock = Clock()

    def run(loop, size):
        end = loop.step + task["steps"] + 1
        loop.train(
            batches(size),
            batches(size),
            total_steps=end,
            steps_per_epoch=end,
            eval_steps=1,
            steps_per_loop=1,
            callbacks=[clock],
        )
        return clock.seconds

    loops = {"weak": make_loop(together), "strong": make_loop(together)}
    sizes = {"weak": 2 * task["batch_size"], "strong": task["batch_size"]}
    if task["index"] == 0:
        loops["one"] = make_loop(alone)
        sizes["one"] = task["batch_size"]
    weights = loops["weak"].model.trainable_variables

    @tf.function
    def reduce():
        def on_replica():
            replica = tf.distribute.get_replica_context()
            values = [tf.identity(weight.value) for weight in weights]
            values = replica.all_reduce(tf.distribute.ReduceOp.SUM, values)
            # All are needed, and cost nothing.
            return tf.add_n([tf.reshape(value, (-1,))[0] for value in values])

        return together.run(on_replica)

    def run_reduce():
        seconds = []
        for _ in range(task["steps"] + 1):
            start = time.perf_counter()
            reduce().numpy()
            seconds.append(time.perf_counter() - start)
        return seconds[1:]

    seconds = {"one": [], "weak": [], "strong": [], "all-reduce": []}
    for index in range(task["rounds"] + 1):
        for case, values in seconds.items():
            wait_for_all(together)
            if case == "all-reduce":
                new = run_reduce()
            elif case in loops:
                new = run(loops[case], sizes[case])
            else:
                continue  # The other process is alone; this one waits.
            if index:  # The first round traces.
                values.extend(new)
    wait_for_all(together)
    if task["index"] == 0:
        size = 4 * sum(math.prod(weight.shape) for weight in weights)
        print(json.dumps({"seconds": seconds, "bytes": size}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
