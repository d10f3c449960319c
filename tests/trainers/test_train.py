import csv
import dataclasses
import json
import pathlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
import trainers.runs.job
import trainers.runs.preparation
import trainers.train
from keras_vit.analysis import position_similarity, read_positions
from tests import commands
from trainers.data.bad_examples import BadExampleError
from trainers.evaluation import evaluation
from trainers.evaluation.evaluation import evaluate
from trainers.loop.errors import NonFiniteLossError
from trainers.models.factory import build_model, load_initial_model
from trainers.runs.run import Run, write_atomically
from trainers.train import prepare, train


def test_leaves_everything_in_the_folder(run):
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "recipe.json",
        "checkpoints",
        "model.keras",
        "metrics.csv",
        "learning_curve.png",
        "first_batch.png",
        "tensorboard",
    }
    assert run.load_recipe().total_steps == 4
    assert run.load_class_names() == [str(d) for d in range(10)]
    assert (run.folder / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"


def test_metrics_have_a_row_for_each_evaluation(run):
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert float(row["step"]) == 4
    assert 0 <= float(row["val_accuracy"]) <= 1


def test_saved_model_has_the_accuracy_that_was_logged(run, digits):
    report = evaluate(run, digits)
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert report["accuracy"] == pytest.approx(float(row["val_accuracy"]))
    assert report["num_examples"] == 355
    by_class = [report[f"accuracy/{d}"] for d in range(10)]
    assert np.mean(by_class) == pytest.approx(report["accuracy"], abs=0.02)
    assert (run.folder / "predictions.png").read_bytes()[:4] == b"\x89PNG"


def test_same_command_again_changes_nothing(run):
    before = run.load_model().get_weights()
    logs = train(prepare(run.load_recipe(), str(run.folder)))
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert logs["val_accuracy"] == pytest.approx(float(row["val_accuracy"]))
    for a, b in zip(before, run.load_model().get_weights()):
        np.testing.assert_array_equal(a, b)


def test_another_recipe_in_the_same_folder_is_refused(run):
    recipe = dataclasses.replace(run.load_recipe(), seed=5)
    with pytest.raises(
        ValueError, match="another recipe.*seed: 0 there, 5 here"
    ):
        prepare(recipe, str(run.folder))


def test_seed_decides_the_initial_weights(recipe, digits):
    keras.utils.set_random_seed(recipe.seed)
    first = build_model(recipe, digits).get_weights()
    keras.utils.set_random_seed(recipe.seed)
    again = build_model(recipe, digits).get_weights()
    keras.utils.set_random_seed(1)
    other = build_model(recipe, digits).get_weights()
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize(
    "field, value, attribute",
    [
        ("pooling", "map", "pooling"),
        ("position_embedding", "sincos_2d", "position_embedding"),
        ("gelu", "exact", "gelu"),
        ("representation_size", 12, "representation_size"),
        ("dropout_rate", 0.3, "dropout_rate"),
        ("stochastic_depth_rate", 0.3, "stochastic_depth_rate"),
        ("head_bias", -3.0, "head_bias"),
        ("patch_size", 4, "patch_size"),
    ],
)
def test_model_flags_reach_the_model(recipe, digits, field, value, attribute):
    model = build_model(dataclasses.replace(recipe, **{field: value}), digits)
    assert getattr(model.config, attribute) == value


def test_fine_tuning_starts_from_the_file_at_another_size(run, digits):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path), image_size=16
    )
    source = run.load_model()
    model = build_model(recipe, digits)
    assert model.input_shape == (None, 16, 16, 1)
    for layer in ("block_00", "predictions"):
        for a, b in zip(
            source.get_layer(layer).get_weights(),
            model.get_layer(layer).get_weights(),
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["official_token.npz", "hf_vit"])
def test_fine_tuning_starts_from_a_checkpoint(run, digits, name):
    """Another size, other classes, grey images; the body is the file's."""
    path = pathlib.Path(__file__).parents[1] / "golden" / name
    recipe = dataclasses.replace(
        run.load_recipe(),
        init_from=str(path),
        image_size=16,
        dropout_rate=0.1,
        stochastic_depth_rate=0.2,
        precision="bfloat16",
    )
    source = keras_vit.from_checkpoint(path)
    model = build_model(recipe, digits)
    assert model.input_shape == (None, 16, 16, 1)
    assert model.output_shape == (None, 10)
    assert model.config.dropout_rate == 0.1
    assert model.config.stochastic_depth_rate == 0.2
    assert model.config.gelu == source.config.gelu
    assert model.dtype_policy.name == "mixed_bfloat16"
    for a, b in zip(
        source.get_layer("block_01").get_weights(),
        model.get_layer("block_01").get_weights(),
    ):
        np.testing.assert_array_equal(a, b)


def test_fine_tuning_on_other_classes_gets_a_new_head(run):
    model = load_initial_model(str(run.model_path), 8, 3, 1)
    assert model.output_shape == (None, 3)
    kernel, bias = model.get_layer("predictions").get_weights()
    assert not kernel.any() and not bias.any()
    assert run.load_model().get_layer("predictions").get_weights()[0].any()


@pytest.mark.parametrize(
    "path, channels, message",
    [
        ("absent.keras", 1, "existing .keras file.*absent.keras"),
        (None, 3, "1 channels; those of the data set have 3"),
    ],
)
def test_bad_start_is_refused(run, path, channels, message):
    with pytest.raises(ValueError, match=message):
        load_initial_model(path or str(run.model_path), 8, 10, channels)


def test_start_from_another_kind_of_model_is_refused(tmp_path):
    path = str(tmp_path / "dense.keras")
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    with pytest.raises(ValueError, match="VisionTransformer.*Sequential"):
        load_initial_model(path, 8, 10, 1)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_size": 9}, "`patch_size` must divide.*9x9"),
        ({"dataset": "digit"}, "`dataset` must be one of"),
        ({"warmup_steps": 3}, "`warmup_steps` must be fewer"),
        ({"strategy": "mirrored", "batch_size": 33}, "multiple of .* 2 x 1."),
    ],
)
def test_bad_recipe_is_refused_and_nothing_is_written(
    recipe, tmp_path, changes, message
):
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        prepare(dataclasses.replace(recipe, **changes), str(folder))
    assert not folder.exists()


def test_recipe_is_readable_json(run):
    content = json.loads(run.recipe_path.read_text())
    assert content["recipe"]["model"] == "mu/16"
    assert content["class_names"][3] == "3"


def test_classes_of_another_data_set_are_refused(run, digits, monkeypatch):
    names = property(lambda self: ["a", "b"])
    monkeypatch.setattr(type(digits), "class_names", names)
    with pytest.raises(ValueError, match="classes that the model was trained"):
        evaluate(run, digits)


@pytest.mark.parametrize("text", ["{garbage", "[]", "{}", '{"recipe": 1}'])
def test_a_recipe_that_is_damaged_is_named(recipe, tmp_path, text):
    (tmp_path / "recipe.json").write_text(text)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="recipe.json is not what a run has"):
        prepare(recipe, str(tmp_path))


def test_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="recipe.json in it.*nowhere"):
        Run(tmp_path / "nowhere").load_recipe()
    with pytest.raises(ValueError, match="model.keras in it"):
        Run(tmp_path).load_model()


@pytest.mark.parametrize("first_step", [0, 2])
def test_the_data_are_those_of_the_recipe_from_the_step_reached(
    recipe, tmp_path, monkeypatch, first_step
):
    recipe = dataclasses.replace(
        recipe,
        seed=7,
        augment="flip_lr",
        eval_preprocess="resize_small(9)|central_crop",
        num_streams=4,
        max_bad_examples=3,
        epochs_per_eval=2,
        steps_per_checkpoint=5,
    )
    job = prepare(recipe, str(tmp_path))
    monkeypatch.setattr(type(job.loop), "step", first_step)
    calls = {}

    def record(name):
        def record_batches(dataset, **choices):
            calls[name] = choices

        return record_batches

    def record_train(batches, eval_batches, **choices):
        context = tf.distribute.InputContext(3, 1, 6)
        batches(context)
        eval_batches(context)
        calls["loop"] = choices
        raise InterruptedError

    for name in ("train_batches", "eval_batches"):
        monkeypatch.setattr(trainers.runs.job, name, record(name))
    monkeypatch.setattr(trainers.train.Job, "draw_first_batch", lambda _: None)
    monkeypatch.setattr(job.loop, "train", record_train)
    with pytest.raises(InterruptedError):
        train(job)
    del calls["loop"]["callbacks"]
    both = {
        "image_size": (8, 8),
        "batch_size": 32,
        "bad_examples": job.bad_examples,
        "num_replicas": 6,
        "worker": 1,
        "num_workers": 3,
    }
    assert job.bad_examples.limit == 3
    assert calls == {
        "train_batches": {
            **both,
            "augment": "flip_lr",
            "seed": 7,
            "first_step": first_step,
            "num_streams": 4,
            "data_service": None,
        },
        "eval_batches": {**both, "preprocess": recipe.eval_preprocess},
        "loop": {
            "total_steps": 3,
            "steps_per_epoch": 2 * 45,  # 1442 / 32 images, two epochs.
            "eval_steps": 12,
            "steps_per_loop": 2,
            "steps_per_checkpoint": 5,
        },
    }


def test_epochs_decide_the_updates_and_the_seed_the_weights(recipe, tmp_path):
    recipe = dataclasses.replace(recipe, total_steps=None, epochs=1.5)
    job = prepare(recipe, str(tmp_path / "one"))
    assert (job.steps_per_epoch, job.total_steps) == (45, 68)
    keras.utils.set_random_seed(99)  # Must not matter.
    again = prepare(recipe, str(tmp_path / "again")).loop.model
    for a, b in zip(job.loop.model.get_weights(), again.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_a_stopped_run_goes_on_from_its_newest_checkpoint(recipe, tmp_path):
    recipe = dataclasses.replace(recipe, total_steps=90)
    loop = prepare(recipe, str(tmp_path)).loop
    loop.model.get_layer("predictions").bias.assign(np.arange(10.0))
    for number in (43, 44, 45):
        loop._step.assign(number)
        loop.checkpoints.save(number)
    rest = prepare(recipe, str(tmp_path)).loop
    assert rest.step == 45
    bias = rest.model.get_layer("predictions").bias
    np.testing.assert_array_equal(bias, np.arange(10.0))
    assert rest.checkpoints.steps() == [44, 45]


def test_the_schedule_is_that_of_the_recipe(recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, warmup_steps=2, total_steps=4, schedule="linear"
    )
    optimizer = prepare(recipe, str(tmp_path)).loop.optimizer
    rates = []
    for step in range(4):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer.learning_rate))
    shares = np.array(rates) / recipe.learning_rate
    np.testing.assert_allclose(shares, [0, 0.5, 1, 0.5], rtol=1e-6)


def test_a_model_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    """The disk is full half-way."""
    model = run.load_model()
    before = run.model_path.read_bytes()

    def fail(path):
        pathlib.Path(path).write_bytes(b"half a mod")
        raise OSError("No space left on device")

    monkeypatch.setattr(model, "save", fail)
    with pytest.raises(OSError):
        run.save_model(model)
    assert run.model_path.read_bytes() == before
    assert not list(run.folder.glob(".draft*"))


def test_text_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "recipe.json"
    write_atomically(path, "old")
    monkeypatch.setattr(pathlib.Path, "write_text", fail_to_write)
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_bytes() == b"old"


def fail_to_write(path, text, **options):
    path.write_bytes(text[:1].encode())
    raise OSError("No space left on device")


def test_fine_tuning_has_the_precision_of_its_own_recipe(run, digits):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path), precision="bfloat16"
    )
    model = build_model(recipe, digits)
    assert model.get_layer("block_00").compute_dtype == "bfloat16"


def test_pictures_and_classes_of_the_report(run, digits, monkeypatch):
    """By hand, from the answers of the model."""
    drawn = {}

    def record(images, truths, guesses, scores, value_range, path):
        drawn.update(truths=truths, guesses=guesses, scores=scores)

    monkeypatch.setattr(evaluation, "plot_predictions", record)
    report = evaluate(run, digits)
    pairs = list(digits.examples("test").as_numpy_iterator())
    images = np.stack([image for image, _ in pairs]) / 127.5 - 1
    labels = np.array([label for _, label in pairs])
    logits = run.load_model().predict(images.astype("float32"), verbose=0)
    hits = logits.argmax(-1) == labels
    for digit in range(10):
        assert report[f"accuracy/{digit}"] == pytest.approx(
            hits[labels == digit].mean()
        )
    wrong = [t != g for t, g in zip(drawn["truths"], drawn["guesses"])]
    assert wrong == [True] * 32 and np.sum(~hits) > 32


def test_weights_spoiled_by_the_last_update_are_not_saved(recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, total_steps=1, learning_rate=1e38, clip_norm=0.0
    )
    with pytest.raises(NonFiniteLossError, match="update 1 .*none"):
        train(prepare(recipe, str(tmp_path)))
    assert not list(tmp_path.glob("checkpoints/*"))
    assert not (tmp_path / "model.keras").exists()


def test_a_run_that_never_started_does_not_lock_its_folder(recipe, tmp_path):
    Run(tmp_path).save_recipe(recipe, ["another"])
    prepare(dataclasses.replace(recipe, seed=9), str(tmp_path))


def test_what_does_not_change_the_mathematics_may_change(run):
    """A run goes on with other devices, in parts, faster or more carefully."""
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


def test_force_goes_on_with_another_recipe(run):
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


def test_fine_tuning_a_classifier_with_softmax_trains_its_logits(
    digits, tmp_path
):
    path = str(tmp_path / "softmax.keras")
    model = keras_vit.ViT_Ti16(
        input_shape=(32, 32, 1), classes=10, depth=1, width=24, mlp_dim=24
    )
    model.save(path)
    loaded = load_initial_model(path, 32, 10, 1)
    head = loaded.get_layer("predictions")
    assert head.activation is keras.activations.linear


@pytest.mark.parametrize(
    "changes", [{"pooling": "none"}, {"init_from": "frozen"}], ids=str
)
def test_a_model_that_cannot_be_trained_is_refused(
    recipe, run, tmp_path, changes
):
    if "init_from" in changes:
        model = run.load_model()
        model.trainable = False
        changes = {"init_from": str(tmp_path / "frozen.keras")}
        model.save(changes["init_from"])
    with pytest.raises(
        ValueError, match="one prediction an image and have weights"
    ):
        prepare(dataclasses.replace(recipe, **changes), str(tmp_path / "run"))


@pytest.fixture
def folder_with_a_bad_image(tmp_path):
    """Return PATH of train and test folders of noise, one file being text."""
    draws = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = draws.integers(0, 255, (8, 8, 3), "uint8")
                Image.fromarray(pixels).save(folder / f"{index}.png")
    (tmp_path / "images/train/dog/3.png").write_text("no image")
    return tmp_path / "images"


@pytest.mark.parametrize("limit", [0, 1])
def test_an_unreadable_image_stops_the_training_or_is_left_out(
    recipe, folder_with_a_bad_image, tmp_path, limit
):
    recipe = dataclasses.replace(
        recipe,
        dataset=f"folder:{folder_with_a_bad_image}",
        batch_size=4,
        total_steps=9,
        max_bad_examples=limit,
    )
    job = prepare(recipe, str(tmp_path / "run"))
    if limit == 0:
        with pytest.raises(
            BadExampleError, match="dog/3.png` is not .*max_bad_examples=0"
        ):
            train(job)
    else:
        assert np.isfinite(train(job)["loss"])
    [name] = job.bad_examples.names
    assert name.endswith("train/dog/3.png")


def test_a_dry_run_draws_the_first_batch_into_a_new_folder(
    recipe, tmp_path, capsys
):
    folder = tmp_path / "new" / "run"
    job = prepare(recipe, str(folder))
    trainers.train.dry_run(job)
    assert [path.name for path in folder.iterdir() if path.is_file()] == [
        "first_batch.png"
    ]
    output = capsys.readouterr().out
    assert "activations" in output and "first_batch.png" in output
    assert job.loop.step == 0


def test_a_dry_run_leaves_a_run_that_has_begun_as_it_is(run, capsys):
    def content():
        files = [path for path in run.folder.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files}

    before = content()
    trainers.train.dry_run(prepare(run.load_recipe(), str(run.folder)))
    assert content() == before
    assert "activations" in capsys.readouterr().out


FRAMES = """
import inspect, json, pathlib, runpy, sys
import keras_vit
from keras_vit.layers import multi_head_self_attention as attention
root = pathlib.Path(keras_vit.__file__).parents[1]
attend = attention.attend

def look(*args, **kwargs):
    frames = [(f.filename, f.function) for f in inspect.stack()[1:]]
    if not any(name.endswith("loop/step.py") for name, _ in frames):
        return attend(*args, **kwargs)  # The model is built.
    own = [str(root / name) for name in ("keras_vit", "trainers")]
    print(json.dumps([f for f in frames if f[0].startswith(tuple(own))]))
    sys.exit()

attention.attend = look
runpy.run_module("trainers.train", run_name="__main__")
"""


@pytest.mark.slow
def test_ten_functions_of_ours_lead_from_the_command_to_attention(
    tmp_path, subprocess_environment
):
    words = ["-c", FRAMES, "--recipe=digits", "--model=mu/16", "--patch_size=2"]
    words += ["--total_steps=1", "--warmup_steps=0", "--peak_tflops=1"]
    result = commands.run(words, subprocess_environment, tmp_path)
    stack = json.loads(result.stdout.splitlines()[-1])
    assert stack[-1][0].endswith("trainers/train.py")
    # And `attend` itself, in whose place it was looked.
    assert len(stack) + 1 <= 10, "\n".join(map(str, stack))


CLAIM = """
import pathlib, sys, time
from trainers.runs.run import Run
with Run(pathlib.Path(sys.argv[1])).claimed():
    print("claimed", flush=True)
    time.sleep(600)
"""


def test_two_trainings_do_not_share_a_folder(
    recipe, tmp_path, tmp_path_factory, subprocess_environment
):
    """And the second leaves alone what the first is about to save."""
    job = prepare(recipe, str(tmp_path))
    draft = tmp_path / "checkpoints/.draft-00000001"
    draft.mkdir(parents=True)
    output = tmp_path_factory.mktemp("other") / "output"
    words = ["-c", CLAIM, tmp_path]
    other = commands.start(words, subprocess_environment, output)
    try:
        while not (output.exists() and "claimed" in output.read_text()):
            assert other.is_alive(), output.read_text()
            time.sleep(0.01)
        prepare(recipe, str(tmp_path))
        with pytest.raises(OSError, match="another process trains there"):
            train(job)
    finally:
        other.kill()
        other.join()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert draft.exists()
    with job.run.claimed():  # A kill gives it back.
        pass
    job.loop.checkpoints.remove_drafts()
    assert not draft.exists()


@pytest.mark.slow(25)
def test_attention_is_drawn_and_changes_nothing_of_the_training(
    recipe, tmp_path
):
    """The weights are equal to the bit; a run that stopped goes on."""
    recipe = dataclasses.replace(
        recipe, dropout_rate=0.1, average_decay=0.5, epochs_per_eval=1 / 45
    )
    watched = dataclasses.replace(recipe, log_attention=3)
    weights = {}
    for name, choice in (("alone", recipe), ("watched", watched)):
        run = prepare(choice, str(tmp_path / name))
        train(run)
        weights[name] = run.loop.model.get_weights()
    for a, b in zip(*weights.values()):
        np.testing.assert_array_equal(a, b)
    assert not (tmp_path / "alone/positions").exists()
    assert not (tmp_path / "alone/tensorboard/attention").exists()
    folder = Run(tmp_path / "watched")
    frames, steps = read_positions(folder.positions_path)
    assert steps == [0, 1, 2, 3]
    # The averaged weights, as they are saved.
    similarity = position_similarity(folder.load_model())
    np.testing.assert_allclose(frames[-1], similarity, atol=5e-4)
    # Without it the run goes on, and with it again.
    prepare(recipe, str(folder))
    train(prepare(dataclasses.replace(watched, log_attention=5), str(folder)))
    np.testing.assert_array_equal(
        read_positions(folder.positions_path)[0], frames
    )


def test_attention_is_that_to_the_first_test_images(recipe, tmp_path, digits):
    recipe = dataclasses.replace(
        recipe,
        log_attention=4,
        loss="sigmoid",
        augment="value_range(0, 1)",
        eval_preprocess="value_range(0, 1)",
        average_decay=0.9,
    )
    job = prepare(recipe, str(tmp_path))
    callback = job.attention_pictures()
    images = [
        image
        for image, _ in digits.examples("test").take(4).as_numpy_iterator()
    ]
    np.testing.assert_allclose(callback.images, np.stack(images) / 255.0)
    np.testing.assert_allclose(callback.pixels, images, atol=1)
    assert callback.class_names == digits.class_names
    assert callback.activate is keras.ops.sigmoid
    assert callback.first_step == 0
    assert len(callback.averages()) == len(job.loop.model.trainable_variables)
    job = prepare(dataclasses.replace(recipe, log_attention=999), str(tmp_path))
    assert len(job.attention_pictures().images) == 355  # All there are.


def test_attention_of_a_model_without_any_is_refused(
    recipe, tmp_path, monkeypatch
):
    def build_dense(recipe, dataset):
        layers = keras.layers.Flatten(), keras.layers.Dense(10)
        return keras.Sequential([keras.Input((8, 8, 1)), *layers])

    monkeypatch.setattr(trainers.runs.preparation, "build_model", build_dense)
    prepare(recipe, str(tmp_path))
    with pytest.raises(ValueError, match="VisionTransformer.*log_attention=2"):
        prepare(dataclasses.replace(recipe, log_attention=2), str(tmp_path))
