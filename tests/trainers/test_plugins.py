import dataclasses
import importlib.metadata
import json
import types

import keras
import numpy as np
import pytest
import yaml
from keras import ops

from tests.commands import run as run_in_process
from trainers import plugins
from trainers.commands import TABLES, load_plugins, open_source
from trainers.data.datasets import open_dataset
from trainers.data.readers.indexed import IndexedImages
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.predictions import predict_dataset
from trainers.recipes.flags import choose_recipe
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.train import train
from trainers.training.trainer import prepare

PLUGIN = """
import keras
import numpy as np
import tensorflow as tf
from keras import ops

from trainers.data.readers.indexed import IndexedImages
from trainers.recipes.recipe import Recipe

CLASSES = {"train": np.arange(40) % 3, "test": np.arange(11) % 3}


def draw(split, index):
    level = 80 * CLASSES[split][index]
    noise = np.random.default_rng([split == "train", index])
    return (level + noise.integers(0, 90, (9, 8, 3))).astype("uint8")


def scale(factor=1.0, offset: int = 0):
    return lambda image, seed: image * factor + offset


def swap(share: float = 0.25):
    return lambda images, others, seed: (others, tf.constant(1.0))


def margin(labels, logits):
    right = ops.sum(labels * logits, -1)
    return right - ops.max(logits - 1e9 * labels, -1)


class Logs(keras.callbacks.Callback):
    def __init__(self, trainer):
        super().__init__()
        self.run = trainer.run

    def on_epoch_end(self, epoch, logs=None):
        logs["of_plugin"] = 7.0


DATASETS = {"levels": lambda path, labels: IndexedImages("abc", CLASSES, draw)}
OPERATIONS = {"scale": scale}
BATCH_OPERATIONS = {"swap": swap}
METRICS = {"margin": margin}
CALLBACKS = [Logs]
RECIPES = {
    "levels": Recipe(
        dataset="levels", model="Ti/16", patch_size=4, image_size=8, depth=1,
        width=8, mlp_dim=8, num_heads=1, epochs=2, batch_size=10,
        augment="scale(0.5, offset=3)|swap", learning_rate=0.01,
        peak_tflops=1.0,
    )
}
"""


@pytest.fixture(autouse=True)
def tables_as_before():
    """Take the rows of plug-ins out of the tables after a test."""
    tables = [*TABLES.values(), plugins.LOADED]
    copies = [table.copy() for table in tables]
    yield
    for table, copy in zip(tables, copies):
        table.clear()
        table.extend(copy) if isinstance(table, list) else table.update(copy)


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my_plugin.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def trainer(plugin, tmp_path):
    """Return the trainer of a run that has begun."""
    load_plugins([plugin])
    recipe = choose_recipe("levels", {}).recipe
    trainer = prepare(recipe, str(tmp_path / "run"))
    trainer.prepare_folder()
    return trainer


def test_everything_of_a_plug_in_is_used(plugin, tmp_path, eagerly):
    """The metric of training and of `evaluate` is that of NumPy."""
    trainer = train("levels", str(tmp_path / "run"), plugins=[plugin])
    rows = trainer.run.metrics_path.read_text().splitlines()
    names = rows[0].split(",")
    last = dict(zip(names, rows[-1].split(",")))
    assert len(rows) == 3 and last["of_plugin"] == "7"
    logits, classes = [], []
    for _, outputs, labels, *_ in predict_dataset(
        trainer.run.load_model(), trainer.dataset
    ):
        logits.append(outputs)
        classes.append(labels)
    logits, labels = np.concatenate(logits), np.concatenate(classes) > 0
    wrong = np.where(labels, -np.inf, logits).max(-1)
    margin = (logits[labels] - wrong).mean()
    assert float(last["val_margin"]) == pytest.approx(margin, abs=1e-5)
    report = evaluate(trainer.run, trainer.dataset)
    assert report["margin"] == pytest.approx(margin, abs=1e-5)
    assert report["num_examples"] == 11
    assert trainer.run.origin["plugins"] == [plugin]


def test_operations_and_images_of_a_plug_in_are_those_of_its_code(trainer):
    images, labels, *_ = next(
        iter(trainer.loop.engine.batches(trainer.train_batches))
    )
    # `swap` gives each image the pixels and the label of its partner.
    pixels = (np.asarray(images) + 1) * 127.5
    levels = np.argmax(np.asarray(labels), -1)
    assert pixels.max() <= 0.5 * 250 + 3 + 1e-3
    means = pixels.mean((1, 2, 3))
    np.testing.assert_allclose(
        means, 0.5 * (80 * levels + 44.5) + 3, rtol=0, atol=5
    )


def test_a_run_says_which_plug_in_it_needs(trainer, plugin, tmp_path):
    plugins.LOADED.clear()
    for name in ("OPERATIONS", "BATCH_OPERATIONS", "DATASETS"):
        TABLES[name].pop(next(reversed(TABLES[name])))
    with pytest.raises(ValueError, match=f"--plugins={plugin}"):
        trainer.run.load_recipe()
    changed = dataclasses.replace(
        trainer.recipe, augment="", dataset="elsewhere"
    )
    content = json.loads(trainer.run.recipe_path.read_text())
    content["recipe"] = dataclasses.asdict(changed)
    trainer.run.recipe_path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"--plugins={plugin}"):
        open_source(str(trainer.run))
    plugins.LOADED.append(plugin)
    with pytest.raises(ValueError, match="`dataset`") as caught:
        open_source(str(trainer.run))
    assert "--plugins" not in str(caught.value)


def test_installed_plug_ins_are_loaded_once(monkeypatch):
    module = types.ModuleType("installed")
    module.RECIPES = {"of_package": RECIPES["digits"]}
    point = types.SimpleNamespace(name="package", load=lambda: module)
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: [point] if group == plugins.GROUP else [],
    )
    load_plugins([])
    load_plugins([])
    assert choose_recipe("of_package", {}).recipe == RECIPES["digits"]
    assert plugins.LOADED.count("package") == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("X = 1", "defines none"),
        ("RECIPES = [1]", "must be a dict"),
        ("RECIPES = {'digits': 1}", "new names.*'digits'"),
        ("OPERATIONS = {'flip_lr': print}", "new names.*'flip_lr'"),
        ("OPERATIONS = {'mine': 1}", "must be functions"),
        ("METRICS = {'balanced_accuracy': print}", "new names"),
        ("CALLBACKS = [3]", "CALLBACKS.*must be functions"),
        ("RECIPES = {}; METRIC = {'a': print}", "METRIC.*Did you mean"),
    ],
)
def test_what_is_wrong_with_a_plug_in_is_said(tmp_path, text, fault):
    before = {name: list(table) for name, table in TABLES.items()}
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ValueError, match=fault):
        load_plugins([str(tmp_path / "bad.py")])
    with pytest.raises(ValueError, match="`plugins`"):
        load_plugins(["no_such_module_of_mine"])
    assert before == {name: list(table) for name, table in TABLES.items()}


def test_a_package_that_a_plug_in_lacks_is_not_taken_for_the_plug_in(
    tmp_path, monkeypatch
):
    (tmp_path / "lacking.py").write_text("import not_a_module")
    with pytest.raises(ModuleNotFoundError, match="not_a_module"):
        load_plugins([str(tmp_path / "lacking.py")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"Did you mean lacking\.py"):
        load_plugins(["lacking"])


def test_an_error_in_the_code_of_a_plug_in_is_its_own(tmp_path):
    """Not one line of a user's mistake, but a traceback that leads there."""
    (tmp_path / "failing.py").write_text("int('x')")
    with pytest.raises(RuntimeError, match="failing") as caught:
        load_plugins([str(tmp_path / "failing.py")])
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("kind", "row", "fault"),
    [
        ("OPERATIONS", lambda: lambda x, seed: x[..., :1], "image"),
        ("OPERATIONS", lambda: lambda x, seed: x[None], "image"),
        ("OPERATIONS", lambda: lambda x, seed: None, "image"),
        ("OPERATIONS", lambda: None, "function"),
        ("OPERATIONS", lambda *a: None, "name its arguments"),
        (
            "BATCH_OPERATIONS",
            lambda: lambda x, other, seed: (x, x[:, 0, 0, 0]),
            "one share",
        ),
        ("METRICS", lambda y, logits: y, "number for each image"),
        ("METRICS", lambda y, logits: y[:, :1], "number for each image"),
        ("METRICS", lambda y, logits: y[0, 0], "number for each image"),
    ],
)
def test_what_a_plug_in_returns_is_tried_before_the_training(
    recipe, tmp_path, kind, row, fault
):
    TABLES[kind]["tried"] = row
    line = "" if kind == "METRICS" else "tried"
    if kind == "OPERATIONS" and fault == "image":
        # Of one channel, all channels are left.
        recipe = dataclasses.replace(recipe, dataset="levels")
        images = np.zeros((4, 8, 8, 3), "uint8")
        TABLES["DATASETS"]["levels"] = lambda path, labels: IndexedImages(
            "ab",
            {"train": [0, 1, 0, 1], "test": [0, 1]},
            lambda split, index: images[index],
        )
        recipe = dataclasses.replace(recipe, batch_size=4, eval_split=None)
    changed = dataclasses.replace(recipe, augment=line)
    with pytest.raises(ValueError, match=f"(?s)tried.*{fault}"):
        prepare(changed, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_data_set_of_a_plug_in_is_a_reader():
    TABLES["DATASETS"]["nothing"] = lambda path, labels: None
    with pytest.raises(ValueError, match="'nothing' must return a reader"):
        open_dataset("nothing")


def test_metrics_of_a_plug_in_have_other_names_than_those_there_are(run):
    digits = open_dataset("digits")
    report = evaluate(run, digits)
    means = {name for name in report if "/" not in name}
    text = {n for n in means if isinstance(report[n], str | int)}
    bounds = {"accuracy_low", "accuracy_high", "calibration_error"}
    bounds |= {"macro_f1", "baseline_accuracy"}
    assert means - text - bounds <= {*plugins.MEASURED}


def test_images_of_bytes_and_grey_levels_are_read():
    grey = np.arange(48, dtype="uint8").reshape(6, 8, 1)
    encoded = keras.utils.array_to_img(grey, scale=False)
    import io

    buffer = io.BytesIO()
    encoded.save(buffer, "PNG")
    for image in (grey, buffer.getvalue()):
        reader = IndexedImages(
            ["a"], {"train": [0], "test": [0]}, lambda *_, i=image: i, 1
        )
        TABLES["DATASETS"]["one"] = lambda path, labels, r=reader: r
        [(read, label)] = open_dataset("one").examples("test")
        np.testing.assert_array_equal(read, grey)
        assert int(label) == 0


def test_labels_of_indexed_images_may_be_several():
    labels = np.array([[1, 0], [np.nan, 1]])
    reader = IndexedImages(["a", "b"], {"test": labels}, None)
    rows = [row.numpy() for _, row, _ in reader.read([("test", 0, 2)])]
    np.testing.assert_array_equal(rows, labels)
    assert reader.has_several_labels


@pytest.mark.parametrize(
    "labels", [[0, 2], [[1, 0, 0]], [[0.5, 1]], [0.0, 1.0], ["a"]]
)
def test_wrong_labels_of_indexed_images_are_refused(labels):
    with pytest.raises(ValueError, match="`labels`"):
        IndexedImages(["a", "b"], {"train": labels}, None)


def test_recipes_are_read_from_files(tmp_path, run):
    fields = {"dataset": "digits", "epochs": 3, "model": "S/16"}
    want = Recipe(**fields)
    json_file, yaml_file = tmp_path / "a.json", tmp_path / "b.yaml"
    json_file.write_text(json.dumps(fields))
    yaml_file.write_text(yaml.safe_dump(fields))
    assert choose_recipe(str(json_file), {}).recipe == want
    chosen = choose_recipe(str(yaml_file), {"epochs": 4.0})
    assert chosen.name == "b" and not chosen.is_fitted
    assert chosen.recipe == dataclasses.replace(want, epochs=4.0)
    of_run = choose_recipe(str(run.recipe_path), {})
    assert of_run.recipe == run.load_recipe()
    assert of_run.name == run.folder.name


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.json", "{", "recipe.*a.json"),
        ("a.json", '{"epoch": 3}', "Did you mean 'epochs'"),
        ("a.yaml", "- 3", "object"),
        ("a.yml", "epochs: x", "epochs"),
        ("a.yaml", "model: [", "recipe.*a.yaml"),
        ("b.json", None, "No such file"),
    ],
)
def test_wrong_recipe_files_are_named(tmp_path, name, text, fault):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"(?s)`recipe`.*{fault}"):
        choose_recipe(str(tmp_path / name), {})


def test_an_unknown_field_of_train_is_named():
    with pytest.raises(ValueError, match="Did you mean 'epochs'"):
        train("digits", epoch=3)


def test_training_from_python_calls_callbacks_and_stops_when_they_ask(
    recipe, tmp_path, eagerly, capsys
):
    class Stop(keras.callbacks.Callback):
        epochs = 0

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1
            logs["seen"] = float(self.epochs)
            self.model.stop_training = self.epochs == 2

    small = dataclasses.replace(
        recipe, batch_size=721, total_steps=8, epochs_per_eval=1
    )
    stop = Stop()
    TABLES["METRICS"]["ones"] = lambda labels, logits: ops.sum(labels, -1)
    trainer = train(small, str(tmp_path / "run"), callbacks=[stop])
    assert "val_ones 1" in capsys.readouterr().out
    assert stop.epochs == 2 and trainer.loop.step == 4
    assert "seen" in trainer.run.metrics_path.read_text()
    assert trainer.run.load_model().count_params()
    # Called again, it goes on from there, and says so.
    again = train(small, str(tmp_path / "run"))
    assert again.loop.step == 8
    assert "A callback ended this run" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_loads_plug_ins_before_it_reads_its_recipe(
    plugin, tmp_path, subprocess_environment
):
    words = ["-m", "trainers.train", "--dry_run", f"--run_dir={tmp_path}/run"]
    words = [*words, "--recipe=levels"]
    with_it = [*words, f"--plugins={plugin}"]
    result = run_in_process(with_it, subprocess_environment)
    assert result.returncode == 0 and "levels; one_device" in result.stdout
    result = run_in_process(words, subprocess_environment)
    assert result.returncode == 1 and "--recipe" in result.stderr
