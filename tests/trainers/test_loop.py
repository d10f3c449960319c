import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.datasets import eval_batches, train_batches
from trainers.loop import Loop, NonFiniteLossError
from trainers.losses import softmax
from trainers.runs import Run
from trainers.strategies import make_strategy
from trainers.train import make_loop


def make_batches(digits, recipe, first_step=0):
    return train_batches(
        digits,
        image_size=(8, 8),
        batch_size=recipe.batch_size,
        augment=recipe.augment,
        first_step=first_step,
    )


def make_eval_batches(digits, batch_size=32):
    return eval_batches(digits, image_size=(8, 8), batch_size=batch_size)


def train(recipe, digits, folder, batches=None, steps_per_epoch=3):
    """Return the loop after `recipe.total_steps` updates, and its logs."""
    keras.utils.set_random_seed(0)
    strategy = make_strategy(recipe.strategy)
    with strategy.scope():
        loop = make_loop(
            recipe, digits, strategy, recipe.total_steps, Run(folder)
        )
    logs = loop.train(
        batches or make_batches(digits, recipe),
        make_eval_batches(digits),
        total_steps=recipe.total_steps,
        steps_per_epoch=steps_per_epoch,
        steps_per_loop=recipe.steps_per_loop,
    )
    return loop, logs


def largest_difference(one, other):
    return max(
        np.max(np.abs(a - b))
        for a, b in zip(one.model.get_weights(), other.model.get_weights())
    )


@pytest.fixture
def exact(recipe):
    """Return a recipe without draws inside the model, lr far from zero."""
    return dataclasses.replace(
        recipe, stochastic_depth_rate=0.0, schedule="constant"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip_norm": 0.05},
        {"clip_norm": 0.0},
        {"optimizer": "sgd", "learning_rate": 0.1},
    ],
    ids=str,
)
def test_two_replicas_end_with_the_weights_of_one_device(
    exact, digits, tmp_path, changes
):
    recipe = dataclasses.replace(exact, **changes)
    mirrored = dataclasses.replace(recipe, strategy="mirrored")
    one, one_logs = train(recipe, digits, tmp_path / "one")
    two, two_logs = train(mirrored, digits, tmp_path / "two")
    assert two.strategy.num_replicas_in_sync == 2
    assert largest_difference(one, two) < 1e-5
    for name in one_logs:
        assert two_logs[name] == pytest.approx(one_logs[name], rel=1e-4)
    untrained = make_loop(recipe, digits, one.strategy, 3, Run(tmp_path))
    assert largest_difference(one, untrained) > 1e-3


def test_clipping_bounds_the_norm_of_the_whole_gradient(
    exact, digits, tmp_path
):
    """Plain gradient descent moves by rate * norm, which tells the norm."""
    for strategy in ("one_device", "mirrored"):
        recipe = dataclasses.replace(
            exact,
            optimizer="sgd",
            learning_rate=1.0,
            weight_decay=0.0,
            clip_norm=0.01,
            total_steps=1,
            strategy=strategy,
        )
        folder = tmp_path / strategy
        keras.utils.set_random_seed(0)
        start = make_loop(
            recipe, digits, make_strategy("one_device"), 1, Run(folder)
        )
        loop, _ = train(recipe, digits, folder)
        moved = math.sqrt(
            sum(
                np.sum((a - b) ** 2)
                for a, b in zip(
                    start.model.get_weights(), loop.model.get_weights()
                )
            )
        )
        assert moved == pytest.approx(0.01, rel=1e-3)


def test_steps_per_loop_changes_nothing(exact, digits, tmp_path):
    losses = set()
    for steps in (1, 2, 3):
        recipe = dataclasses.replace(exact, steps_per_loop=steps)
        loop, logs = train(recipe, digits, tmp_path / str(steps))
        assert loop.step == 3
        losses.add(round(logs["loss"], 5))
    assert len(losses) == 1


def test_xla_changes_nothing_but_the_speed(exact, digits, tmp_path):
    compiled = dataclasses.replace(exact, use_xla=True)
    one, _ = train(exact, digits, tmp_path / "plain")
    other, _ = train(compiled, digits, tmp_path / "xla")
    assert largest_difference(one, other) < 1e-4


def test_bfloat16_trains_float32_weights(exact, digits, tmp_path):
    recipe = dataclasses.replace(exact, precision="bfloat16")
    loop, logs = train(recipe, digits, tmp_path)
    assert math.isfinite(logs["loss"])
    assert {w.dtype for w in loop.model.trainable_weights} == {"float32"}
    assert loop.model.get_layer("block_00").compute_dtype == "bfloat16"


def test_metrics_are_those_of_numpy(exact, digits, tmp_path):
    loop, logs = train(exact, digits, tmp_path)
    images, labels, _ = next(iter(make_eval_batches(digits, 355)))
    logits = loop.model.predict_on_batch(images)
    hits = np.argmax(logits, -1) == np.argmax(labels, -1)
    assert logs["val_accuracy"] == pytest.approx(hits.mean())
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    target = labels.numpy() * 0.9 + 0.01  # The label smoothing of the recipe.
    assert logs["val_loss"] == pytest.approx(
        -(target * log_p).sum(-1).mean(), rel=1e-5
    )


@pytest.mark.parametrize("batch_size", [64, 355, 512])
def test_evaluation_does_not_depend_on_the_batch_size(
    exact, digits, tmp_path, batch_size
):
    loop, logs = train(exact, digits, tmp_path)
    again = loop.evaluate(make_eval_batches(digits, batch_size))
    assert again["accuracy"] == pytest.approx(logs["val_accuracy"])
    assert again["loss"] == pytest.approx(logs["val_loss"], rel=1e-5)


def test_a_restart_ends_where_an_unbroken_run_does(exact, digits, tmp_path):
    recipe = dataclasses.replace(exact, total_steps=6, dropout_rate=0.2)
    whole, _ = train(recipe, digits, tmp_path / "whole")
    first = dataclasses.replace(recipe, total_steps=3)
    train(first, digits, tmp_path / "broken")
    rest = make_loop(
        recipe, digits, make_strategy("one_device"), 6, Run(tmp_path / "broken")
    )
    rest.resume()
    assert rest.step == 3
    rest.train(
        make_batches(digits, recipe, first_step=3),
        make_eval_batches(digits),
        total_steps=6,
        steps_per_epoch=3,
        steps_per_loop=2,
    )
    assert rest.step == 6
    assert largest_difference(whole, rest) == 0
    calm = dataclasses.replace(recipe, dropout_rate=0.0)
    plain, _ = train(calm, digits, tmp_path / "plain")
    assert largest_difference(whole, plain) > 1e-4  # Dropout was at work.


def test_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(
    exact, digits, tmp_path
):
    recipe = dataclasses.replace(exact, total_steps=6, steps_per_loop=3)

    def poison(index, batch):
        images, labels = batch
        return tf.where(index == 4, math.nan, 1.0) * images, labels

    batches = make_batches(digits, recipe).enumerate().map(poison)
    with pytest.raises(NonFiniteLossError, match="update 5 .*ckpt-3"):
        train(recipe, digits, tmp_path, batches)
    rest = make_loop(
        recipe, digits, make_strategy("one_device"), 6, Run(tmp_path)
    )
    rest.resume()
    assert rest.step == 3
    assert all(np.all(np.isfinite(w)) for w in rest.model.get_weights())


class Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("batch", batch, sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch", epoch, sorted(logs)))


def small_loop():
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(10))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    return Loop(model, optimizer, softmax, make_strategy("one_device"))


def test_callbacks_see_updates_and_epochs_of_any_keras_model(recipe, digits):
    recorder = Recorder()
    loop = small_loop()
    loop.train(
        make_batches(digits, recipe),
        make_eval_batches(digits),
        total_steps=7,
        steps_per_epoch=5,
        steps_per_loop=2,
        callbacks=[recorder],
    )
    steps = [call[:2] for call in recorder.calls]
    assert steps == [
        ("batch", 1),
        ("batch", 3),
        ("batch", 4),
        ("epoch", 0),
        ("batch", 1),
        ("epoch", 1),
    ]
    assert recorder.calls[0][2] == ["accuracy", "loss"]
    assert set(recorder.calls[-1][2]) == {
        "accuracy",
        "learning_rate",
        "loss",
        "step",
        "val_accuracy",
        "val_loss",
    }


def test_a_callback_can_stop_the_training(recipe, digits):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    loop = small_loop()
    loop.train(
        make_batches(digits, recipe),
        make_eval_batches(digits),
        total_steps=9,
        steps_per_epoch=2,
        callbacks=[Stop()],
    )
    assert loop.step == 2
