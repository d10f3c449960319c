import dataclasses
import math
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.data.batches import eval_batches
from trainers.engine.checkpoints import CheckpointError, Checkpoints
from trainers.engine.engine import Share
from trainers.engine.strategies import make_engine
from trainers.engine.update import Update
from trainers.optim.losses import LossScale, softmax
from trainers.optim.optimizers import make_optimizer
from trainers.recipes.recipes import RECIPES
from trainers.training.loop import Best, Interrupted, Loop, NonFiniteLossError
from trainers.training.trainer import prepare


def train(recipe, folder, steps_per_eval=3, **changes):
    """Return the loop after `recipe.total_steps` updates, and its logs."""
    trainer = prepare(recipe, str(folder))
    arguments = {
        "make_batches": trainer.train_batches,
        "make_eval_batches": trainer.eval_batches,
        "total_steps": recipe.total_steps,
        "steps_per_eval": steps_per_eval,
        "eval_steps": math.ceil(355 / recipe.batch_size),
        "steps_per_loop": recipe.steps_per_loop,
        **changes,
    }
    return trainer.loop, trainer.loop.train(**arguments)


def largest_difference(one, other):
    return max(
        np.max(np.abs(a - b))
        for a, b in zip(
            one.model.get_weights(), other.model.get_weights(), strict=True
        )
    )


# Of a model of one layer, where the loop itself is the subject.

draws = np.random.default_rng(0)
IMAGES = draws.normal(size=(24, 8, 8, 1)).astype("float32")
LABELS = np.eye(10, dtype="float32")[draws.integers(0, 10, 24)]


def small_loop(
    folder=None,
    strategy="one_device",
    clip_norm=None,
    loss_factor=None,
    **changes,
):
    """Return a loop from the state in a folder, if there is one."""
    keras.utils.set_random_seed(0)
    engine = make_engine(strategy)
    with engine.scope():
        model = keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Flatten()], name="small"
        )
        model.add(keras.layers.Dropout(0.3))
        model.add(keras.layers.Dense(10, name="dense"))
        rule = {"name": "adamw", "learning_rate": 0.1, "average_decay": 0.9}
        optimizer = make_optimizer(
            variables=model.trainable_variables, **rule | changes
        )
        scale = loss_factor and LossScale(loss_factor)
    update = Update(
        model, optimizer, softmax, clip_norm=clip_norm, loss_scale=scale
    )
    loop = Loop(update, engine)
    if folder:
        loop.checkpoints = Checkpoints(str(folder), loop.state, engine)
        loop.resume()
    return loop


def small_batches(size, first_step=0):
    data = (IMAGES, LABELS, np.ones(24, "float32"))
    batches = tf.data.Dataset.from_tensor_slices(data).batch(size)
    return batches.repeat().skip(first_step)


def train_small(loop, **changes):
    """Train from where the loop stands; return its logs.

    An evaluation takes two calls.
    """
    size = 8 // loop.engine.num_replicas
    arguments = {
        "make_batches": lambda _: small_batches(size, loop.step),
        "make_eval_batches": lambda _: small_batches(2),
        "total_steps": 3,
        "steps_per_eval": 3,
        "eval_steps": 12,
        "steps_per_loop": 2,
        **changes,
    }
    return loop.train(**arguments)


@pytest.fixture(scope="module")
def exact():
    """Return a short recipe without draws inside the model."""
    return dataclasses.replace(
        RECIPES["digits_exact"],
        total_steps=3,
        warmup_steps=0,
        label_smoothing=0.1,
        steps_per_loop=2,
        num_checkpoints=9,
    )


@pytest.fixture(scope="module")
def unbroken(exact, tmp_path_factory):
    """Return the loop of that recipe at its end, to look at, and its logs.

    An epoch has two updates, and each of them is saved.
    """
    folder = tmp_path_factory.mktemp("unbroken")
    return train(exact, folder, 2, steps_per_checkpoint=1)


@pytest.fixture
def copied(unbroken, tmp_path):
    """Return a copy of the folder of that run, with its checkpoints."""
    loop, _ = unbroken
    source = pathlib.Path(loop.checkpoints.folder)
    shutil.copytree(source, tmp_path / "run" / source.name)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """Return the final loop of one device after 20 updates, and its logs."""
    folder = tmp_path_factory.mktemp("one")
    return train(RECIPES["digits_exact"], folder, 10)


@pytest.mark.slow
def test_twenty_updates_end_with_the_weights_of_one_device(
    on_one_device, tmp_path
):
    """With augmentation, decay, clipping and averaging."""
    changes = {"accumulation_steps": 2, "steps_per_loop": 7}
    changes |= {"use_remat": True, "use_xla": True}
    recipe = dataclasses.replace(
        RECIPES["digits_exact"], strategy="mirrored", **changes
    )
    assert recipe.total_steps == 20 and recipe.average_decay
    one, one_logs = on_one_device
    other, logs = train(recipe, tmp_path, 10)
    assert other.engine.num_replicas == 2
    assert largest_difference(one, other) < 1e-5
    for a, b in zip(one.optimizer.averages, other.optimizer.averages):
        assert np.max(np.abs(a - b)) < 1e-5
    for name in one_logs:
        if "seconds" not in name:
            assert logs[name] == pytest.approx(one_logs[name], rel=1e-5), name


def test_the_updates_are_far_from_nothing(on_one_device, tmp_path):
    """Or equal weights would say nothing."""
    recipe = RECIPES["digits_exact"]
    trainer = prepare(recipe, str(tmp_path / "start"))
    one, _ = on_one_device
    assert largest_difference(trainer.loop, one) > 1e-3
    averages = one.optimizer.averages
    weights = one.model.trainable_variables
    assert max(np.max(np.abs(a - w)) for a, w in zip(averages, weights)) > 1e-4
    # Clipping is at work, from the first batch on.
    images, labels, _ = next(iter(trainer.train_batches(Share())))
    with tf.GradientTape() as tape:
        logits = trainer.loop.model(images, training=True)
        loss = tf.reduce_mean(trainer.loop.update.loss(labels, logits))
    weights = [v.value for v in trainer.loop.model.trainable_variables]
    norm = tf.linalg.global_norm(tape.gradient(loss, weights))
    assert norm > 1.2 * recipe.clip_norm


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_clipping_bounds_the_norm_of_the_whole_gradient(strategy):
    """Plain gradient descent moves by rate * norm, which tells the norm."""
    loop = small_loop(
        strategy=strategy, clip_norm=0.01, name="sgd", learning_rate=1.0
    )
    before = loop.model.get_weights()
    train_small(loop, total_steps=1)
    moved = [a - b for a, b in zip(before, loop.model.get_weights())]
    assert float(tf.linalg.global_norm(moved)) == pytest.approx(0.01, rel=1e-3)


def test_half_precision_trains_float32_weights(exact, unbroken, tmp_path):
    recipe = dataclasses.replace(exact, precision="float16")
    loop, logs = train(recipe, tmp_path)
    assert math.isfinite(logs["loss"])
    assert {w.dtype for w in loop.model.trainable_weights} == {"float32"}
    assert loop.model.get_layer("block_00").compute_dtype == "float16"
    assert 0 < largest_difference(unbroken[0], loop) < 2e-3


def assert_figures(logs, logits, labels):
    """Compare those of an evaluation with NumPy's."""
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    assert logs["val_loss"] == pytest.approx(
        -(labels * log_p).sum(-1).mean(), rel=1e-5
    )
    hits = np.argmax(logits, -1) == np.argmax(labels, -1)
    assert logs["val_accuracy"] == pytest.approx(hits.mean())


def test_metrics_are_those_of_numpy(exact, unbroken, digits, copied):
    _, logs = unbroken
    loop = prepare(exact, str(copied)).loop
    loop.optimizer.assign_averages()
    images, labels, _ = next(
        iter(eval_batches(digits, image_size=(8, 8), batch_size=355))
    )
    logits = loop.model.predict_on_batch(images)
    assert exact.label_smoothing == 0.1
    # As `evaluate` measures: the labels are not smoothed.
    assert_figures(logs, logits, labels.numpy())


@pytest.mark.parametrize("average_decay", [0.0, 0.9])
def test_the_averages_if_any_are_evaluated_and_become_the_model(average_decay):
    loop = small_loop(average_decay=average_decay)
    logs = train_small(loop)
    if average_decay:
        loss = softmax(tf.constant(LABELS), loop.model.predict_on_batch(IMAGES))
        assert abs(np.mean(loss) - logs["val_loss"]) > 1e-3
        loop.optimizer.assign_averages()
    assert_figures(logs, loop.model.predict_on_batch(IMAGES), LABELS)


def test_evaluation_does_not_depend_on_the_batch_size(unbroken, digits):
    loop, logs = unbroken
    for batch_size in (64, 512):
        batches = eval_batches(digits, image_size=(8, 8), batch_size=batch_size)
        again = loop.measure(batches, math.ceil(355 / batch_size))
        assert again["accuracy"] == pytest.approx(logs["val_accuracy"])
        assert again["loss"] == pytest.approx(logs["val_loss"], rel=1e-5)


def test_replicas_and_updates_and_parts_draw_different_dropout():
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

    engine = make_engine("mirrored")
    with engine.scope():
        model = keras.Sequential(
            [keras.Input((16,)), Spy(), keras.layers.Dense(2)]
        )
        optimizer = make_optimizer("sgd", model.trainable_variables, 0.1)
    update = Update(model, optimizer, softmax, accumulation_steps=2)
    loop = Loop(update, engine)
    batch = tf.ones((2, 16)), tf.one_hot([0, 1], 2), tf.ones(2)
    batches = tf.data.Dataset.from_tensors(batch).repeat()
    loop.train(
        lambda context: batches,
        lambda context: batches,
        total_steps=2,
        steps_per_eval=2,
        eval_steps=1,
    )
    assert len(seen) == 2 * 2 * 2  # Updates, replicas, parts.
    assert len({mask.tobytes() for mask in seen}) == len(seen)


@pytest.fixture(scope="module")
def small_end():
    """Return the small loop after 3 updates without a break, and its logs."""
    loop = small_loop()
    return loop, train_small(loop)


@pytest.mark.parametrize("after_calls", [0, 1, 2, 3])
def test_asked_to_stop_it_saves_and_goes_on_to_the_same_end(
    small_end, tmp_path, after_calls
):
    """Also while it evaluates: the metrics are those of an unbroken run."""
    whole, whole_logs = small_end
    loop = small_loop(folder=tmp_path)
    calls = iter(range(99))
    loop.must_stop = lambda: next(calls) >= after_calls
    with pytest.raises(Interrupted, match="saved after update"):
        train_small(loop)
    saved = loop.checkpoints.steps()
    assert saved == [[2], [3], [3], [3]][after_calls]
    rest = small_loop(folder=tmp_path)
    assert rest.step == saved[-1]
    logs = train_small(rest)
    assert largest_difference(whole, rest) == 0
    for a, b in zip(whole.optimizer.averages, rest.optimizer.averages):
        np.testing.assert_array_equal(a, b)
    for name, value in whole_logs.items():
        assert logs[name] == value, name


def test_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path):
    def poison(index, batch):
        images, *rest = batch
        return tf.where(index == 4, math.nan, 1.0) * images, *rest

    loop = small_loop(folder=tmp_path)
    poisoned = small_batches(8).enumerate().map(poison)
    with pytest.raises(NonFiniteLossError, match="update 5 .*update 3"):
        train_small(loop, make_batches=lambda _: poisoned, total_steps=6)
    assert not all(np.all(np.isfinite(w)) for w in loop.model.get_weights())
    rest = small_loop(folder=tmp_path)
    assert rest.step == 3
    assert all(np.all(np.isfinite(w)) for w in rest.model.get_weights())


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """It goes on with a warning; the last save must succeed."""
    write = tf.train.Checkpoint.write

    def is_full(self, path, *args, **kwargs):
        if "00000006" in path:
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")
        return write(self, path, *args, **kwargs)

    monkeypatch.setattr(tf.train.Checkpoint, "write", is_full)
    loop = small_loop(folder=tmp_path)
    with pytest.warns(UserWarning, match="update 6 could not be saved.*disk"):
        train_small(loop, total_steps=9)
    assert loop.checkpoints.steps() == [3, 9]

    monkeypatch.setattr(
        tf.train.Checkpoint, "write", lambda *_, **__: is_full(None, "00000006")
    )
    with pytest.raises(CheckpointError, match="disk full"):
        train_small(loop, total_steps=12)
    assert loop.checkpoints.steps() == [3, 9]


class Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("batch", batch, sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch", epoch, sorted(logs)))


def test_callbacks_see_updates_and_epochs_of_any_keras_model(monkeypatch):
    monkeypatch.setattr("trainers.training.loop.LONGEST_CALL", 1e9)
    recorder = Recorder()
    train_small(
        small_loop(),
        total_steps=7,
        steps_per_eval=5,
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


def test_a_call_is_as_short_as_the_last_one_tells(monkeypatch):
    """The first one tells nothing; none makes less than one update."""
    monkeypatch.setattr("trainers.training.loop.LONGEST_CALL", 0.0)
    recorder = Recorder()
    train_small(
        small_loop(),
        total_steps=6,
        steps_per_eval=6,
        steps_per_loop=3,
        callbacks=[recorder],
    )
    steps = [call[1] for call in recorder.calls if call[0] == "batch"]
    assert steps == [3, 4, 5, 6]


def test_a_training_that_stopped_early_is_evaluated_when_started_again():
    loop = small_loop()
    loop.best = Best(patience=1)
    loop.best.numbers[:] = [1.0, 0.0, 1.0]  # The last one was no better.
    logs = train_small(loop, total_steps=9)
    assert loop.step == 0
    assert set(logs) == {"val_loss", "val_accuracy"}


def test_an_evaluation_without_an_image_that_counts_is_an_error():
    batch = tf.ones((2, 8, 8, 1)), tf.one_hot([0, 1], 10), tf.zeros(2)
    batches = tf.data.Dataset.from_tensors(batch)
    with pytest.raises(ValueError, match="weight above 0.*: 1 batches"):
        small_loop().measure(batches, 1)


def test_damaged_checkpoints_are_passed_over(exact, copied):
    folder = copied / "checkpoints"
    # One was saved within an epoch, one at its end, and the last.
    assert len(list(folder.glob("step-*"))) == 3
    shutil.rmtree(folder / "step-00000001")
    [data] = (folder / "step-00000003").glob("state.data*")
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="one before it is used: .*00000003"):
        rest = prepare(exact, str(copied)).loop
    assert rest.step == 2
    [data] = (folder / "step-00000002").glob("state.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match="No checkpoint .* can be read"):
        prepare(exact, str(copied))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "c").write_text("a file")
    loop = small_loop()
    checkpoints = Checkpoints(str(tmp_path / "c"), loop.state, loop.engine)
    with pytest.raises(CheckpointError, match="could not be saved in .*/c"):
        checkpoints.save(1)


def test_float16_that_learns_nothing_is_said():
    """All gradients overflow, whatever the loss scale; the loss does not."""
    loop = small_loop(loss_factor=float("inf"))
    with pytest.warns(UserWarning, match="All updates from 0 to 3"):
        train_small(loop, total_steps=3)


def test_an_evaluation_that_fails_loses_no_update(tmp_path):
    """The next start goes on with the evaluation."""

    def fail():
        raise ValueError("an image that cannot be read")
        yield

    spec = small_batches(2).element_spec
    broken = tf.data.Dataset.from_generator(fail, output_signature=spec)
    loop = small_loop(tmp_path)
    with pytest.raises(tf.errors.OpError, match="cannot be read"):
        train_small(loop, make_eval_batches=lambda _: broken)
    again, unbroken = small_loop(tmp_path), small_loop()
    assert again.step == 3
    logs, expected = train_small(again), train_small(unbroken)
    assert logs["val_loss"] == expected["val_loss"]
    assert largest_difference(again, unbroken) == 0
