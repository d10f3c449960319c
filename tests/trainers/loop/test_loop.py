import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.data.batches import eval_batches, train_batches
from trainers.distribute.strategies import make_strategy
from trainers.loop.checkpoints import Checkpoints
from trainers.loop.errors import (
    CheckpointError,
    Interrupted,
    NonFiniteLossError,
)
from trainers.loop.loop import Loop
from trainers.optim.loss_scaling import LossScale
from trainers.optim.losses import softmax
from trainers.optim.optimizers import make_optimizer
from trainers.recipes.recipes import RECIPES
from trainers.train import prepare


def train(recipe, folder, steps_per_epoch=3, **changes):
    """Return the loop after `recipe.total_steps` updates, and its logs."""
    job = prepare(recipe, str(folder))
    arguments = {
        "batches": job.train_batches,
        "eval_batches": job.eval_batches,
        "total_steps": recipe.total_steps,
        "steps_per_epoch": steps_per_epoch,
        "eval_steps": math.ceil(355 / recipe.batch_size),
        "steps_per_loop": recipe.steps_per_loop,
        **changes,
    }
    return job.loop, job.loop.train(**arguments)


def largest_difference(one, other):
    return max(
        np.max(np.abs(a - b))
        for a, b in zip(
            one.model.get_weights(), other.model.get_weights(), strict=True
        )
    )


@pytest.fixture(scope="module")
def exact():
    """Return a short recipe without draws inside the model."""
    return dataclasses.replace(
        RECIPES["digits_exact"],
        total_steps=3,
        warmup_steps=0,
        batch_size=32,
        steps_per_loop=2,
    )


@pytest.fixture(scope="module")
def unbroken(exact, tmp_path_factory):
    """Return the loop of that recipe at its end, to look at, and its logs."""
    return train(exact, tmp_path_factory.mktemp("unbroken"))


SAME_MATHEMATICS = {
    "replicas": {"strategy": "mirrored"},
    "accumulation": {"accumulation_steps": 2},
    "both": {"strategy": "mirrored", "accumulation_steps": 2},
    "rematerialisation": {"use_remat": True},
    "xla": {"use_xla": True},
    "xla on replicas": {"use_xla": True, "strategy": "mirrored"},
    "calls": {"steps_per_loop": 7},
}
UPDATES = {
    "adamw": {},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "no clipping": {"clip_norm": 0.0},
    "debias": {"use_average_debias": True, "optimizer": "lamb"},
}


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """Return {updates: what one device ends with after 20 of them}."""
    ends = {}

    def end(name):
        if name not in ends:
            recipe = dataclasses.replace(
                RECIPES["digits_exact"], **UPDATES[name]
            )
            ends[name] = train(recipe, tmp_path_factory.mktemp("one"), 10)
        return ends[name]

    return end


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, updates",
    [
        *((changes, "adamw") for changes in SAME_MATHEMATICS),
        *(("both", updates) for updates in UPDATES if updates != "adamw"),
    ],
)
def test_twenty_updates_end_with_the_weights_of_one_device(
    on_one_device, tmp_path, changes, updates
):
    """With augmentation, decay, clipping and averaging."""
    recipe = dataclasses.replace(
        RECIPES["digits_exact"],
        **UPDATES[updates],
        **SAME_MATHEMATICS[changes],
    )
    assert recipe.total_steps == 20 and recipe.average_decay
    one, one_logs = on_one_device(updates)
    other, logs = train(recipe, tmp_path, 10)
    replicas = 2 if recipe.strategy == "mirrored" else 1
    assert other.strategy.num_replicas_in_sync == replicas
    assert largest_difference(one, other) < 1e-5
    for a, b in zip(one.optimizer.averages, other.optimizer.averages):
        assert np.max(np.abs(a - b)) < 1e-5
    for name in one_logs:
        if "seconds" not in name:
            assert logs[name] == pytest.approx(one_logs[name], rel=1e-5), name


def test_the_updates_are_far_from_nothing(on_one_device, tmp_path):
    """Or equal weights would say nothing."""
    recipe = dataclasses.replace(RECIPES["digits_exact"], clip_norm=0.0)
    start = prepare(recipe, str(tmp_path / "start")).loop
    one, _ = on_one_device("adamw")
    assert largest_difference(start, one) > 1e-3
    unclipped, _ = on_one_device("no clipping")
    assert largest_difference(unclipped, one) > 1e-4
    averages = one.optimizer.averages
    weights = one.model.trainable_variables
    assert max(np.max(np.abs(a - w)) for a, w in zip(averages, weights)) > 1e-4


def test_clipping_bounds_the_norm_of_the_whole_gradient(exact, tmp_path):
    """Plain gradient descent moves by rate * norm, which shows the norm."""
    for strategy in ("one_device", "mirrored"):
        recipe = dataclasses.replace(
            exact,
            optimizer="sgd",
            learning_rate=1.0,
            weight_decay=0.0,
            schedule="constant",
            warmup_steps=0,
            clip_norm=0.01,
            total_steps=1,
            strategy=strategy,
        )
        start = prepare(recipe, str(tmp_path / "start")).loop
        loop, _ = train(recipe, tmp_path / strategy)
        moved = math.sqrt(
            sum(
                np.sum((a - b) ** 2)
                for a, b in zip(
                    start.model.get_weights(), loop.model.get_weights()
                )
            )
        )
        assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_float32_weights(exact, tmp_path, precision):
    recipe = dataclasses.replace(exact, precision=precision)
    one, _ = train(exact, tmp_path / "one")
    loop, logs = train(recipe, tmp_path / "half")
    assert math.isfinite(logs["loss"])
    assert {w.dtype for w in loop.model.trainable_weights} == {"float32"}
    assert loop.model.get_layer("block_00").compute_dtype == precision
    assert largest_difference(one, loop) < 2e-3


def test_metrics_are_those_of_numpy(exact, digits, tmp_path):
    recipe = dataclasses.replace(exact, average_decay=0.0, label_smoothing=0.1)
    loop, logs = train(recipe, tmp_path)
    images, labels, _ = next(
        iter(eval_batches(digits, image_size=(8, 8), batch_size=355))
    )
    logits = loop.model.predict_on_batch(images)
    hits = np.argmax(logits, -1) == np.argmax(labels, -1)
    assert logs["val_accuracy"] == pytest.approx(hits.mean())
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    target = labels.numpy() * 0.9 + 0.01
    assert logs["val_loss"] == pytest.approx(
        -(target * log_p).sum(-1).mean(), rel=1e-5
    )


def test_the_averages_are_evaluated_and_become_the_model(
    exact, digits, tmp_path
):
    recipe = dataclasses.replace(exact, learning_rate=0.1)
    loop, logs = train(recipe, tmp_path)
    images, labels, _ = next(
        iter(eval_batches(digits, image_size=(8, 8), batch_size=355))
    )

    def loss():
        logits = loop.model.predict_on_batch(images)
        return float(tf.reduce_mean(loop.loss(labels, logits)))

    assert abs(loss() - logs["val_loss"]) > 1e-3
    loop.optimizer.assign_averages()
    assert loss() == pytest.approx(logs["val_loss"], rel=1e-5)


@pytest.mark.parametrize("batch_size", [64, 355, 512])
def test_evaluation_does_not_depend_on_the_batch_size(
    unbroken, digits, batch_size
):
    loop, logs = unbroken
    again = loop.evaluate(
        lambda context: eval_batches(
            digits, image_size=(8, 8), batch_size=batch_size
        ),
        math.ceil(355 / batch_size),
    )
    assert again["accuracy"] == pytest.approx(logs["val_accuracy"])
    assert again["loss"] == pytest.approx(logs["val_loss"], rel=1e-5)


def test_replicas_and_updates_and_parts_draw_different_dropout(exact, tmp_path):
    """Each of two equal images, in the same batch, is dropped its own way."""
    seen = []

    class Spy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.5, seed=1)

        def call(self, x, training=None):
            x = self.drop(x, training=training)
            if training:
                tf.py_function(lambda x: seen.append(x.numpy()), [x], [])
            return x

    strategy = make_strategy("mirrored")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((16,)), Spy(), keras.layers.Dense(2)]
        )
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    loop = Loop(model, optimizer, softmax, strategy, accumulation_steps=2)
    batch = tf.ones((2, 16)), tf.one_hot([0, 1], 2), tf.ones(2)
    batches = tf.data.Dataset.from_tensors(batch).repeat()
    loop.train(
        lambda context: batches,
        lambda context: batches,
        total_steps=2,
        steps_per_epoch=2,
        eval_steps=1,
    )
    assert len(seen) == 2 * 2 * 2  # Updates, replicas, parts.
    assert len({mask.tobytes() for mask in seen}) == len(seen)


def test_a_restart_ends_where_an_unbroken_run_does(exact, tmp_path):
    recipe = dataclasses.replace(exact, total_steps=6, dropout_rate=0.2)
    whole, _ = train(recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "rest", callbacks=[StopBy(epoch=1)])
    rest, _ = train(recipe, tmp_path / "rest")
    assert rest.step == 6
    assert largest_difference(whole, rest) == 0
    calm = dataclasses.replace(recipe, dropout_rate=0.0)
    plain, _ = train(calm, tmp_path / "plain")
    assert largest_difference(whole, plain) > 1e-4  # Dropout was at work.


class StopBy(keras.callbacks.Callback):
    """Break off in an epoch, as if the process ended there."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after_calls", [0, 1, 2, 3])
def test_a_stopped_run_saves_and_continues_to_the_same_end(
    exact, unbroken, tmp_path, after_calls
):
    """Also while it evaluates: the metrics are those of an unbroken run."""
    whole, whole_logs = unbroken
    job = prepare(exact, str(tmp_path / "rest"))
    calls = iter(range(99))
    job.loop.must_stop = lambda: next(calls) >= after_calls
    with pytest.raises(Interrupted, match="saved after update"):
        job.loop.train(
            job.train_batches,
            job.eval_batches,
            total_steps=3,
            steps_per_epoch=3,
            eval_steps=12,
            steps_per_loop=2,
        )
    saved = job.loop.checkpoints.steps()
    assert saved == [[2], [3], [3], [3]][after_calls]
    rest, logs = train(exact, tmp_path / "rest")
    assert largest_difference(whole, rest) == 0
    for name, value in whole_logs.items():
        assert logs[name] == value, name


def test_checkpoints_within_an_epoch(exact, tmp_path):
    recipe = dataclasses.replace(exact, total_steps=6, num_checkpoints=9)
    loop, _ = train(recipe, tmp_path, 6, steps_per_checkpoint=2)
    assert loop.checkpoints.steps() == [2, 4, 6]


def test_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(
    exact, digits, tmp_path
):
    recipe = dataclasses.replace(exact, total_steps=6, steps_per_loop=3)

    def poison(index, batch):
        images, *rest = batch
        return tf.where(index == 4, math.nan, 1.0) * images, *rest

    def batches(context):
        data = train_batches(digits, image_size=(8, 8), batch_size=32)
        return data.enumerate().map(poison)

    with pytest.raises(NonFiniteLossError, match="update 5 .*update 3"):
        train(recipe, tmp_path, batches=batches)
    rest = prepare(recipe, str(tmp_path)).loop
    assert rest.step == 3
    assert all(np.all(np.isfinite(w)) for w in rest.model.get_weights())


def test_a_full_disk_loses_nothing(exact, tmp_path, monkeypatch):
    """Training continues with a warning; the last save must succeed."""
    recipe = dataclasses.replace(exact, total_steps=9)
    write = tf.train.Checkpoint.write

    def is_full(self, path, *args, **kwargs):
        if "00000006" in path:
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")
        return write(self, path, *args, **kwargs)

    monkeypatch.setattr(tf.train.Checkpoint, "write", is_full)
    with pytest.warns(UserWarning, match="update 6 could not be saved.*disk"):
        loop, _ = train(recipe, tmp_path)
    assert loop.checkpoints.steps() == [3, 9]

    monkeypatch.setattr(
        tf.train.Checkpoint, "write", lambda *_, **__: is_full(None, "00000006")
    )
    recipe = dataclasses.replace(recipe, total_steps=12)
    with pytest.raises(CheckpointError, match="disk full"):
        train(recipe, tmp_path)
    assert loop.checkpoints.steps() == [3, 9]


def test_overflow_leaves_an_update_out_and_halves_the_scale():
    """The same on two replicas, whose loss scale is one."""
    strategy = make_strategy("mirrored")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
        scale = LossScale(2.0**127, growth_steps=2)
    loop = Loop(model, optimizer, softmax, strategy, loss_scale=scale)
    batch = 8.0 * tf.ones((2, 4)), tf.one_hot([0, 1], 2), tf.ones(2)
    batches = tf.data.Dataset.from_tensors(batch).repeat()
    before = model.get_weights()
    arguments = {"total_steps": 1, "steps_per_epoch": 1, "eval_steps": 1}
    loop.train(lambda _: batches, lambda _: batches, **arguments)
    assert float(scale.factor) == 2.0**126
    assert optimizer.iterations.numpy() == 0 and loop.step == 1
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    arguments["total_steps"] = 9
    loop.train(lambda _: batches, lambda _: batches, **arguments)
    assert np.abs(model.get_weights()[0] - before[0]).max() > 1e-3
    assert 0 < optimizer.iterations.numpy() < 9


def test_batch_normalisation_has_the_mean_of_the_replicas():
    ends = []
    data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    labels = np.eye(2, dtype="float32")[[0, 1] * 4]
    for name in ("one_device", "mirrored"):
        strategy = make_strategy(name)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.BatchNormalization(momentum=0.5),
                    keras.layers.Dense(2),
                ]
            )
            optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
        loop = Loop(model, optimizer, softmax, strategy)
        size = 8 // strategy.num_replicas_in_sync
        batches = tf.data.Dataset.from_tensor_slices(
            (data, labels, np.ones(8, "float32"))
        )
        batches = batches.repeat().batch(size, drop_remainder=True)
        loop.train(
            lambda _, batches=batches: batches,
            lambda _, batches=batches: batches,
            total_steps=1,
            steps_per_epoch=1,
            eval_steps=1,
        )
        ends.append(model.layers[0])
    for end in ends:  # Of the whole batch: the mean of the halves' means.
        np.testing.assert_allclose(
            end.moving_mean.numpy(), 0.5 * data.mean(0), rtol=1e-5
        )
    halves = [data[:4].var(0), data[4:].var(0)]
    np.testing.assert_allclose(
        ends[1].moving_variance.numpy(),
        0.5 + 0.5 * np.mean(halves, 0),
        rtol=1e-4,
    )


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
    optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    return Loop(model, optimizer, softmax, make_strategy("one_device"))


def digits_batches(digits):
    return {
        "batches": lambda _: train_batches(
            digits, image_size=(8, 8), batch_size=32
        ),
        "eval_batches": lambda _: eval_batches(
            digits, image_size=(8, 8), batch_size=355
        ),
        "eval_steps": 1,
    }


def test_callbacks_see_updates_and_epochs_of_any_keras_model(
    digits, monkeypatch
):
    monkeypatch.setattr("trainers.loop.loop.LONGEST_CALL", 1e9)
    recorder = Recorder()
    loop = small_loop()
    loop.train(
        **digits_batches(digits),
        total_steps=7,
        steps_per_epoch=5,
        steps_per_loop=2,
        callbacks=[recorder],
    )
    steps = [call[:2] for call in recorder.calls]
    assert steps == [
        ("batch", 2),
        ("batch", 4),
        ("batch", 5),
        ("epoch", 0),
        ("batch", 7),
        ("epoch", 1),
    ]
    always = {"accuracy", "learning_rate", "loss", "step"}
    of_a_call = {"images", "seconds", "input_seconds"}
    assert set(recorder.calls[0][2]) == always | of_a_call
    assert set(recorder.calls[-1][2]) == always | {"val_accuracy", "val_loss"}


def test_the_time_of_a_call_limits_the_next_one(digits, monkeypatch):
    """The first call has no estimate; each call makes at least one update."""
    monkeypatch.setattr("trainers.loop.loop.LONGEST_CALL", 0.0)
    recorder = Recorder()
    small_loop().train(
        **digits_batches(digits),
        total_steps=6,
        steps_per_epoch=6,
        steps_per_loop=3,
        callbacks=[recorder],
    )
    steps = [call[1] for call in recorder.calls if call[0] == "batch"]
    assert steps == [3, 4, 5, 6]


def test_a_callback_can_stop_the_training(digits):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    loop = small_loop()
    loop.train(
        **digits_batches(digits),
        total_steps=9,
        steps_per_epoch=2,
        callbacks=[Stop()],
    )
    assert loop.step == 2


def test_images_of_weight_zero_do_not_count():
    """They change neither the update nor the figures."""
    ends = []
    for weights in ([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]):
        keras.utils.set_random_seed(0)
        loop = small_loop()
        noise = np.random.default_rng(len(ends)).normal(size=(2, 8, 8, 1))
        images = np.concatenate([np.ones((2, 8, 8, 1)), noise])
        labels = np.eye(10)[[1, 2, 3 + len(ends), 4]]
        data = tf.data.Dataset.from_tensors(
            tuple(np.float32(x) for x in (images, labels, weights))
        ).repeat()
        logs = loop.train(
            lambda _, data=data: data,
            lambda _, data=data: data,
            total_steps=2,
            steps_per_epoch=2,
            eval_steps=1,
        )
        ends.append((loop.model.get_weights(), logs))
    for a, b in zip(ends[0][0], ends[1][0]):
        np.testing.assert_array_equal(a, b)
    assert ends[0][1] == ends[1][1]


def test_an_evaluation_without_an_image_that_counts_is_an_error():
    batch = tf.ones((2, 8, 8, 1)), tf.one_hot([0, 1], 10), tf.zeros(2)
    batches = tf.data.Dataset.from_tensors(batch)
    with pytest.raises(ValueError, match="weight above 0.*: 1 batches"):
        small_loop().evaluate(lambda context: batches, 1)


def test_damaged_checkpoints_are_passed_over(exact, tmp_path):
    recipe = dataclasses.replace(exact, total_steps=6)
    loop, _ = train(recipe, tmp_path)
    assert loop.checkpoints.steps() == [3, 6]
    [data] = (tmp_path / "checkpoints/step-00000006").glob("state.data*")
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="one before it is used: .*00000006"):
        rest = prepare(recipe, str(tmp_path)).loop
    assert rest.step == 3
    [data] = (tmp_path / "checkpoints/step-00000003").glob("state.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match="No checkpoint .* can be read"):
        prepare(recipe, str(tmp_path))


def test_what_a_killed_process_left_is_removed(tmp_path):
    state = tf.train.Checkpoint(x=tf.Variable(1.0))
    checkpoints = Checkpoints(str(tmp_path / "c"), state, num_kept=2)
    assert checkpoints.restore() is None
    for step in (1, 2, 3):
        checkpoints.save(step)
    (tmp_path / "c/.draft-00000004").mkdir()
    (tmp_path / "c/.draft-00000004/state.index").write_text("half")
    assert checkpoints.steps() == [2, 3]
    checkpoints.remove_drafts()
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "step-00000002",
        "step-00000003",
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "c").write_text("a file")
    state = tf.train.Checkpoint(x=tf.Variable(1.0))
    checkpoints = Checkpoints(str(tmp_path / "c"), state)
    with pytest.raises(CheckpointError, match="could not be saved in .*/c"):
        checkpoints.save(1)
