import dataclasses
import json
import shutil

import pytest
import yaml

from trainers.evaluation.evaluation import evaluate
from trainers.export_model import export_source
from trainers.paths import ContentError
from trainers.recipes.recipe import Recipe
from trainers.training.loop import Loop
from trainers.training.model_card import NOTES_MARK, describe_run, write_card
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare


@pytest.fixture
def card(run):
    """Return a function that returns the front matter and the text."""

    def read():
        text = describe_run(run, run.load_model())
        start, front, rest = text.split("---\n", 2)
        assert start == ""
        return yaml.safe_load(front), rest

    return read


def test_the_figures_are_those_of_the_evaluation(card, run):
    report = {
        "dataset": "digits",
        "split": "test",
        "num_examples": 355,
        "accuracy": 0.9,
        "accuracy_low": 0.86,
        "accuracy_high": 0.93,
        "calibration_error": 0.0123,
    }
    path = run.folder / "evaluation.json"
    path.unlink(missing_ok=True)
    front, text = card()
    assert "model-index" not in front and "Not evaluated yet" in text
    count = run.load_model().count_params()
    assert f"10 classes and {count:,} parameters: mu/16" in text
    path.write_text(json.dumps(report))
    front, text = card()
    [model] = front["model-index"]
    [result] = model["results"]
    assert model["name"] == run.folder.name
    assert result["metrics"] == [{"type": "accuracy", "value": 0.9}]
    assert "accuracy 90.00% (95 % interval: 86.00% to 93.00%)" in text
    assert "These images chose" not in text
    path.write_text(json.dumps({**report, "chosen_on_split": "model"}))
    assert "worse. These images chose the model" in card()[1]
    for change in (
        {"dataset": "others"},
        {"preprocess": "resize(9)"},
        {"patch_size": 4},
        {"model_digest": "of an old one"},
    ):
        path.write_text(json.dumps({**report, **change}))
        assert "Not evaluated yet" in card()[1]
    own = {"model_digest": run.digest, "preprocess": run.preprocess}
    path.write_text(json.dumps({**report, **own}))
    assert "accuracy 90.00%" in card()[1]
    path.unlink()


def test_notes_of_the_user_stay(run):
    model = run.load_model()
    write_card(run, model)
    first = run.card_path.read_text()
    assert first.startswith(describe_run(run, model))
    assert first.endswith(f"\n## Notes\n\n{NOTES_MARK}\n")
    notes = "\nNot for birds.\n\n## Licence\n\nÄ, CC0\n"
    run.card_path.write_text(first + notes, encoding="utf-8")
    for _ in range(2):
        write_card(run, model)
        assert run.card_path.read_text(encoding="utf-8") == first + notes


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    "name, content",
    [
        ("README.md", b"\xff"),
        ("evaluation.json", b""),
        ("evaluation.json", b"[1]"),
        ("evaluation.json", b'{"dataset": "digits", "split": "test"}'),
    ],
)
def test_a_damaged_file_is_found_before_the_work(
    run, digits, tmp_path, monkeypatch, name, content
):
    monkeypatch.setattr(Loop, "train", None)
    monkeypatch.setattr("trainers.evaluation.evaluation.predict_dataset", None)
    monkeypatch.setattr("trainers.export_model.export_model", None)
    copy = RunFolder(shutil.copytree(run.folder, tmp_path / "copy"))
    (copy.folder / name).write_bytes(content)
    with pytest.raises(ContentError, match=name):
        prepare(copy.load_recipe(), str(copy)).train()
    with pytest.raises(ContentError, match=name):
        if name == "README.md":
            evaluate(copy, digits)
        else:
            export_source(copy, digits, tmp_path / "export", ["tflite"])


def test_the_settings_are_those_that_differ(card, run):
    _, text = card()
    recipe = run.load_recipe()
    rows = dict(
        line.strip("| ").split(" | ")
        for line in text.split("## Training")[1].splitlines()
        if line.startswith("| `")
    )
    differ = {
        f"`{field.name}`": f"`{getattr(recipe, field.name)}`"
        for field in dataclasses.fields(Recipe)
        if field.metadata["help"]
        and getattr(recipe, field.name) != field.default
    }
    assert rows == differ
    assert "`model`" in rows


@pytest.mark.parametrize(
    "init_from, shown, base_model",
    [
        ("/home/me/secret/runs/birds/", "birds", None),
        (
            "hf://google/vit-base@main",
            "hf://google/vit-base@main",
            "google/vit-base",
        ),
        ("S/14-dinov2", "S/14-dinov2", "timm/vit_small_patch14_dinov2.lvd142m"),
    ],
)
def test_a_card_names_data_and_initial_model_without_folders(
    run, monkeypatch, init_from, shown, base_model
):
    recipe = dataclasses.replace(
        run.load_recipe(),
        dataset="folder:/home/me/secret/photos/",
        data_dir="/home/me/secret",
        init_from=init_from,
        depth=7,
    )
    monkeypatch.setattr(type(run), "load_recipe", lambda self: recipe)
    figures = {"dataset": recipe.dataset, "split": "test", "num_examples": 9}
    figures |= {"accuracy": 0.9, "calibration_error": 0.1}
    (run.folder / "evaluation.json").write_text(json.dumps(figures))
    text = describe_run(run, run.load_model())
    (run.folder / "evaluation.json").unlink()
    assert "secret" not in text
    assert f"parameters: {shown}, trained with" in text
    assert f"| `init_from` | `{shown}` |" in " ".join(text.split(" " * 2))
    # The model has the sizes of the initial one.
    assert "`depth`" not in text and "`model`" not in text
    front = yaml.safe_load(text.split("---\n", 2)[1])
    assert front.get("base_model") == base_model
    [result] = front["model-index"][0]["results"]
    assert result["dataset"] == {
        "name": "folder:photos",
        "type": "folder",
        "split": "test",
    }


def test_a_card_of_several_labels(run, tmp_path):
    copy = RunFolder(shutil.copytree(run.folder, tmp_path / "copy"))
    content = json.loads(copy.recipe_path.read_text())
    content["recipe"] |= {"labels": "several", "loss": "sigmoid"}
    content["thresholds"] = [0.25, *[0.5] * 9]
    copy.recipe_path.write_text(json.dumps(content))
    report = {
        "dataset": "digits",
        "split": "test",
        "num_examples": 355,
        "mean_average_precision": 0.75,
        "micro_f1": 0.625,
        "exact_match": 0.5,
        "exact_match_low": 0.4,
        "exact_match_high": 0.6,
    }
    path = copy.folder / "evaluation.json"
    path.write_text(json.dumps(report))
    text = describe_run(copy, copy.load_model())
    [result] = yaml.safe_load(text.split("---\n")[1])["model-index"][0][
        "results"
    ]
    assert result["metrics"] == [
        {"type": "mean_average_precision", "value": 0.75}
    ]
    assert "mean average precision 0.7500, F1 of all labels 0.6250" in text
    assert "50.00% of the images (95 % interval: 40.00% to 60.00%)" in text
    assert "at least the threshold (0.25 to 0.5, of each class" in text
    assert "gets one of them" not in text
    # The figures of an evaluation with one label an image are of other data.
    del report["mean_average_precision"]
    path.write_text(json.dumps(report))
    with pytest.raises(ContentError, match="evaluation.json"):
        describe_run(copy, copy.load_model())
