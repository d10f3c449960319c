"""The checks of `prepare`, and the step at which a run continues."""

import dataclasses
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.training.objectives import balance_classes, make_loss
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import _normalize, prepare


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_size": 9}, "`patch_size` must divide.*9x9"),
        ({"warmup_steps": 3}, "`warmup_steps` must be fewer"),
        ({"pooling": "none"}, "one prediction an image and have weights"),
        ({"strategy": "mirrored", "batch_size": 33}, "multiple of .* 2 x 1."),
        ({"num_streams": 3}, "`batch_size` .*multiple of `num_streams`"),
        ({"num_streams": 2048, "batch_size": 2048}, "`num_streams` .*exceed"),
    ],
)
def test_bad_recipe_is_refused_and_nothing_is_written(
    recipe, tmp_path, changes, message
):
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        prepare(dataclasses.replace(recipe, **changes), str(folder))
    assert not folder.exists()


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="Needs Linux.")
@pytest.mark.parametrize("name", ["", "new/run"])
def test_a_folder_that_cannot_be_written_is_named_first(recipe, name):
    """Before the images are opened. Not even root writes to /sys/kernel."""
    recipe = dataclasses.replace(recipe, dataset="folder:absent")
    message = "`run_dir` must be a folder that can be .* /sys/kernel: "
    with pytest.raises(OSError, match=message):
        prepare(recipe, f"/sys/kernel/{name}")


@pytest.mark.parametrize(
    "content, fault",
    [
        (b"{garbage", "no JSON"),
        (b"{}", "no entry 'recipe'"),
        (b'{"recipe": 1}', "`recipe` must be an object"),
        (b'{"recipe": {}}', "no entry 'class_names'"),
        (
            b'{"recipe": {"total_steps": "six"}, "class_names": ["a"]}',
            "`total_steps` must be a whole number",
        ),
        (b'{"recipe": {"no_field": 1}, "class_names": ["a"]}', "no_field"),
        (b'{"recipe": {}, "class_names": 1}', "`class_names` must be a list"),
        (b'{"recipe": {}, "class_names": []}', "`class_names` must not be emp"),
        (b"\xff", "no text in UTF-8"),
    ],
)
def test_a_recipe_that_is_damaged_is_named(recipe, tmp_path, content, fault):
    (tmp_path / "recipe.json").write_bytes(content)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=f"recipe.json is not .*{fault}"):
        prepare(recipe, str(tmp_path))


def test_epochs_decide_the_updates_and_the_seed_the_weights(recipe, tmp_path):
    recipe = dataclasses.replace(recipe, total_steps=None, epochs=1.5)
    trainer = prepare(recipe, str(tmp_path / "one"))
    assert (trainer.steps_per_epoch, trainer.total_steps) == (45, 68)
    keras.utils.set_random_seed(99)  # Must not matter.
    again = prepare(recipe, str(tmp_path / "again")).loop.model
    for a, b in zip(trainer.loop.model.get_weights(), again.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_a_stopped_run_continues_from_its_newest_checkpoint(recipe, tmp_path):
    recipe = dataclasses.replace(recipe, total_steps=90)
    loop = prepare(recipe, str(tmp_path)).loop
    loop.model.get_layer("predictions").bias.assign(np.arange(10.0))
    for number in (43, 44, 45):
        loop.numbers["step"] = np.int64(number)
        loop.checkpoints.save(number)
    rest = prepare(recipe, str(tmp_path)).loop
    assert rest.step == 45
    bias = rest.model.get_layer("predictions").bias
    np.testing.assert_array_equal(bias, np.arange(10.0))
    assert rest.checkpoints.steps() == [44, 45]


def test_schedule_and_sums_are_those_of_the_recipe(recipe, tmp_path):
    changes = {"warmup_steps": 2, "total_steps": 4, "schedule": "linear"}
    recipe = dataclasses.replace(recipe, **changes, gradient_dtype="bfloat16")
    loop = prepare(recipe, str(tmp_path)).loop
    rates = []
    for step in range(4):
        loop.optimizer.iterations.assign(step)
        rates.append(float(loop.optimizer.learning_rate))
    shares = np.array(rates) / recipe.learning_rate
    np.testing.assert_allclose(shares, [0, 0.5, 1, 0.5], rtol=1e-6)
    assert loop.update.gradient_dtype == "bfloat16"


def test_workers_compare_their_recipes_their_data_and_their_weights(
    recipe, tmp_path, monkeypatch
):
    """What follows if they differ, see test_interruptions.py."""
    compared = []
    monkeypatch.setattr(
        "trainers.engine.engine.Engine.check_agreement",
        lambda _, subject, values: compared.append((subject, dict(values))),
    )
    teacher = tmp_path / "teacher.keras"
    prepare(recipe, str(tmp_path / "0")).loop.model.save(teacher)
    of_teacher = {"seed": 1, "teacher": str(teacher)}
    for changes in (
        *({}, {"seed": 1}, of_teacher),
        {"eval_split": "test[:9]"},
    ):
        changed = dataclasses.replace(recipe, **changes)
        prepare(changed, str(tmp_path / str(len(compared))))
    subjects, found = zip(*compared)
    assert subjects == ("recipe", "data", "weights") * 5
    assert found[:3] == found[3:6]
    assert [n for n in found[0] if found[0][n] != found[6][n]] == ["seed"]
    assert any(found[2][name] != found[8][name] for name in found[2])
    assert len(found[11]) == 2 * len(found[8])
    assert found[11].items() >= found[8].items()
    differing = found[1].items() ^ found[13].items()
    assert {n for n, _ in differing} == {"number of images of eval_split"}


def test_a_run_that_never_started_does_not_lock_its_folder(recipe, tmp_path):
    RunFolder(tmp_path).save_recipe(recipe, ["another"])
    again = prepare(dataclasses.replace(recipe, seed=9), str(tmp_path))
    assert again.recipe.seed == 9 and again.loop.step == 0


def test_what_does_not_change_the_mathematics_may_change(run):
    """A run continues on other devices or with other parts of a batch."""
    recipe = dataclasses.replace(
        run.load_recipe(),
        strategy="mirrored",
        batch_size=361,
        accumulation_steps=1,
        steps_per_loop=3,
        use_remat=True,
        max_bad_examples=4,
        log_attention=2,
        expected="Something else.",
    )
    with pytest.raises(ValueError, match="multiple of .* 2 x 1."):
        prepare(recipe, str(run.folder))
    recipe = dataclasses.replace(recipe, strategy="one_device")
    assert prepare(recipe, str(run.folder)).loop.step == 4


def test_another_recipe_continues_with_force_only(run):
    recipe = dataclasses.replace(run.load_recipe(), weight_decay=0.5)
    with pytest.raises(ValueError, match="--force.*weight_decay: 0.05 there"):
        prepare(recipe, str(run.folder))
    assert prepare(recipe, str(run.folder), force=True).loop.step == 4


def test_weights_do_not_depend_on_preparing_the_data(recipe, tmp_path):
    """TFDS draws numbers when it prepares a data set."""
    recipe = dataclasses.replace(recipe, data_dir=str(tmp_path / "data"))
    first = prepare(recipe, str(tmp_path / "run")).loop.model.get_weights()
    again = prepare(recipe, str(tmp_path / "run")).loop.model.get_weights()
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


def test_a_model_without_weights_to_train_is_refused(recipe, run, tmp_path):
    model = run.load_model()
    model.trainable = False
    model.save(tmp_path / "frozen.keras")
    recipe = dataclasses.replace(recipe, init_from=f"{tmp_path}/frozen.keras")
    with pytest.raises(ValueError, match="and have weights"):
        prepare(recipe, str(tmp_path / "run"))


def test_balanced_classes_count_equally(recipe, tmp_path, digits):
    """In the loss of one prediction for all images, by its gradient."""
    balanced = dataclasses.replace(recipe, class_weights="balanced")
    [labels] = digits.reader.read(digits.ranges("train")).batch(2000)
    labels = np.eye(10, dtype="float32")[labels[1]]
    counts = labels.sum(0)
    assert len(set(counts)) > 1
    logits = tf.Variable(tf.zeros(10))
    for job_recipe, want in ((recipe, counts / counts.sum()), (balanced, 0.1)):
        job_recipe = dataclasses.replace(job_recipe, label_smoothing=0.0)
        loss = make_loss(job_recipe, digits, keras.Sequential())["loss"]
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(labels, logits + 0 * labels))
        # The softmax is 0.1 everywhere: the gradient is 0.1 minus the share
        # of the class.
        shares = 0.1 - tape.gradient(value, logits).numpy()
        np.testing.assert_allclose(shares, want, atol=1e-6)
        np.testing.assert_allclose(value, np.log(10), rtol=1e-6)


def test_classes_without_images_cannot_be_balanced(recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, class_weights="balanced", train_split="train[:3]"
    )
    with pytest.raises(ValueError, match="`class_weights`.*without any of"):
        prepare(recipe, str(tmp_path))


def test_unknown_labels_have_no_part_in_the_balance():
    dataset = types.SimpleNamespace(
        name="made",
        train_split="train",
        class_names=["a", "b"],
        has_several_classes=lambda split: False,
        labels=lambda split: np.array([0, -1, 0, 1, -1, 0]),
    )
    np.testing.assert_allclose(balance_classes(dataset), [2 / 3, 2])


def test_the_range_of_pixels_of_an_initial_model_is_kept(recipe, run):
    """The same command goes on, although it does not name the range."""
    again = dataclasses.replace(recipe, init_from=str(run.model_path))
    started = dataclasses.replace(again, pixel_range="0,4095")
    assert _normalize(again, started, 1) == started
    assert _normalize(recipe, dataclasses.replace(recipe), 1) == recipe
