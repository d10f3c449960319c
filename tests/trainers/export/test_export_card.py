import json
import shutil

from keras_vit.export import ExportReport
from keras_vit.export.agreement import Agreement
from trainers.data.datasets import open_dataset
from trainers.export.exporting import describe_exports, export_source

FILES = {
    "tflite float16": "tflite/{}/{}/float16.tflite",
    "onnx": "onnx/{}/{}/model.onnx",
    "saved_model": "saved_model/{}/{}",
}


def write_version(folder, name, version, kinds):
    """Write the report and the files of a version; return the report."""
    agreements = []
    for kind in kinds:
        path = folder / FILES[kind].format(name, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        agreements.append(
            Agreement(str(path), kind, 2**20, 9, 1e-6, 1e-6, 1.0, 0.5)
        )
    report = ExportReport(name, version, 7, tuple(agreements))
    report.write(folder / "report" / name / str(version))
    return report


def rows_of(text):
    """Return (model, version, format) of the rows of the last table."""
    lines = text.split("### Other versions in this folder")[1].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if "| " in line]
    return [tuple(row[:3]) for row in cells[1:]]


def test_all_versions_are_listed_the_newest_first(tmp_path):
    write_version(tmp_path, "b", 1, ["onnx"])
    write_version(tmp_path, "a", 2, ["tflite float16"])
    write_version(tmp_path, "a", 10, ["onnx", "saved_model"])
    last = write_version(tmp_path, "a", 11, ["tflite float16"])
    text = describe_exports(tmp_path, last)
    assert text.startswith(f"## Export\n\n{last}\n")
    expected = [("a", "10", "onnx"), ("a", "10", "saved_model")]
    expected += [("a", "2", "tflite float16"), ("b", "1", "onnx")]
    assert rows_of(text) == expected
    assert "| b | 1 | onnx | 1.00 | 1.0e-06 | 50.00% |" in text


def test_a_first_version_is_alone(tmp_path):
    last = write_version(tmp_path, "a", 1, ["onnx"])
    assert describe_exports(tmp_path, last) == f"## Export\n\n{last}\n"


def test_what_was_deleted_or_damaged_is_left_out(tmp_path):
    """The folder may have moved since."""
    before = tmp_path / "before"
    write_version(before, "a", 1, ["onnx", "tflite float16"])
    write_version(before, "a", 2, ["onnx"])
    write_version(before, "a", 3, ["onnx"])
    folder = tmp_path / "after"
    before.rename(folder)
    shutil.rmtree(folder / "tflite/a/1")
    shutil.rmtree(folder / "onnx/a/3")
    last = write_version(folder, "a", 4, ["onnx"])
    path = folder / "report/a/2/report.json"
    good = json.loads(path.read_text())
    for content in ("", "[]", "{}", '{"agreements": [{}]}', "[3]"):
        path.write_text(content)
        assert rows_of(describe_exports(folder, last)) == [("a", "1", "onnx")]
    # JSON has no NaN.
    good["agreements"][0]["max_difference"] = None
    path.write_text(json.dumps(good))
    text = describe_exports(folder, last)
    assert rows_of(text) == [("a", "2", "onnx"), ("a", "1", "onnx")]
    assert "| a | 2 | onnx | 1.00 | not finite | 50.00% |" in text


def test_the_card_of_a_run_lists_its_earlier_exports(run, tmp_path):
    dataset = open_dataset(run.load_recipe().dataset)
    choices = {"name": "digits", "num_images": 4, "threads": ()}
    choices["verbose"] = False
    export_source(run, dataset, tmp_path, ["saved_model", "tflite"], **choices)
    export_source(run, dataset, tmp_path, ["tflite"], **choices)
    text = (tmp_path / "README.md").read_text()
    assert "digits, version 2: " in text
    assert rows_of(text) == [
        ("digits", "1", "saved_model"),
        ("digits", "1", "tflite dynamic_int8"),
    ]
