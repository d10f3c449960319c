import contextlib
import io
import json
import pathlib
import re
import shutil
import sys
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import Preprocessing
from keras_vit.export import (
    FORMATS,
    QUANTIZATIONS,
    DisagreementError,
    ExportReport,
    Serving,
    Tolerance,
    export_model,
)
from keras_vit.export.bundle import published_together
from tests.export.conftest import QUIET

OF_FOUR = Preprocessing(((0.5,) * 4, (0.5,) * 4))


@pytest.fixture(scope="module")
def model():
    """Return the least that can be exported."""
    pixels = keras.Input((4, 4, 3), name="images")
    x = keras.layers.GlobalAveragePooling2D()(pixels)
    layer = keras.layers.Dense(3, kernel_initializer="orthogonal")
    return keras.Model(pixels, layer(x), name="tiny")


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(1)
    return random.uniform(-1, 1, (16, 4, 4, 3)).astype("float32")


class Exported(NamedTuple):
    """Version 1: its folder, report, what was printed and asked of the model.

    Nobody may change what is in the folder.
    """

    folder: pathlib.Path
    report: ExportReport
    output: str
    errors: str
    asked: list[int]


@pytest.fixture(scope="module")
def exported(model, images, tmp_path_factory):
    folder, asked = tmp_path_factory.mktemp("exported"), []
    predict = type(model).predict

    def note_and_predict(self, x, **choices):
        asked.append(len(x))
        return predict(self, x, **choices)

    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        patch.setattr(type(model), "predict", note_and_predict)
        report = export_model(model, folder, images, threads=())
    said = output.getvalue(), errors.getvalue()
    return Exported(folder, report, *said, asked)


def files(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    )


SAVED_MODEL = [
    "assets.extra/keras_vit.json",
    "assets.extra/tf_serving_warmup_requests",
    "fingerprint.pb",
    "saved_model.pb",
    "variables/variables.data-00000-of-00001",
    "variables/variables.index",
]


def test_layout_and_versions(exported, model, images, tmp_path):
    assert (exported.report.name, exported.report.version) == ("tiny", 1)
    expected = [
        "report/tiny/1/report.json",
        "report/tiny/1/report.md",
        *(f"saved_model/tiny/1/{name}" for name in SAVED_MODEL),
        "saved_model/models.config",
        "tflite/tiny/1/dynamic_int8.tflite",
        "tflite/tiny/1/labels.txt",
        "tflite/tiny/1/model.json",
    ]
    # By name, models.config comes before tiny.
    assert files(exported.folder) == sorted(expected)
    shutil.copytree(exported.folder, tmp_path, dirs_exist_ok=True)
    export_model(
        model,
        tmp_path,
        images,
        ["tflite"],
        version=6,
        tflite_quantizations=["float32", "float16"],
        **QUIET,
    )
    # The next is free in all formats, those that are not written, too.
    third = export_model(model, tmp_path, images, ["saved_model"], **QUIET)
    assert third.version == 7
    assert sorted(p.name for p in tmp_path.glob("tflite/tiny/6/*")) == [
        "float16.tflite",
        "float32.tflite",
        "labels.txt",
        "model.json",
    ]
    config = (tmp_path / "saved_model" / "models.config").read_text()
    labels = re.findall(r'key: "(\w+)"\n +value: (\d+)', config)
    assert labels == [("canary", "7"), ("stable", "1")]


def test_report_is_what_was_found(exported, model):
    report, folder = exported.report, exported.folder / "report/tiny/1"
    content = json.loads((folder / "report.json").read_text())
    kinds = [entry["kind"] for entry in content["agreements"]]
    assert kinds == ["saved_model", "tflite dynamic_int8"]
    for entry, agreement in zip(content["agreements"], report.agreements):
        path = pathlib.Path(entry["path"])
        assert path.exists() and path.is_relative_to(exported.folder)
        assert entry["num_images"] == 16
        assert entry["max_difference"] == agreement.max_difference
    assert content["parameters"] == model.count_params() == 12
    table = (folder / "report.md").read_text()
    assert table == f"{report}\n"
    row = [line for line in table.splitlines() if "saved_model" in line][0]
    assert "100.00%" in row and row.endswith("| ok |")
    # Progress is said on the standard error.
    assert "Writing saved_model" in exported.errors and not exported.output
    # Once for all, and for the pixels and the files of a server.
    assert exported.asked == [16, 16, 16]


def test_an_export_that_differs_leaves_nothing(
    model, images, tmp_path, monkeypatch
):
    row = QUANTIZATIONS["dynamic_int8"]
    never = row._replace(tolerance=Tolerance(relative_difference=-1.0))
    monkeypatch.setitem(QUANTIZATIONS, "dynamic_int8", never)
    with pytest.raises(DisagreementError, match="Nothing was written") as error:
        export_model(model, tmp_path / "exported", images, **QUIET)
    assert "tflite dynamic_int8: logits: the largest" in str(error.value)
    assert "| saved_model |" in str(error.value)  # The whole table is shown.
    assert not list(tmp_path.iterdir())
    report = export_model(
        model, tmp_path / "exported", images, force=True, **QUIET
    )
    assert report.faults and "differs |" in str(report)
    assert (tmp_path / "exported/tflite/tiny/1/dynamic_int8.tflite").exists()


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"formats": ["saved_model", "onx"]}, "`formats` .*'onnx'"),
        ({"formats": []}, "`formats`"),
        ({"formats": ["saved_model"] * 2}, "`formats` .*each once"),
        ({"tflite_quantizations": ["int4"]}, "`tflite_quantizations` .*int4"),
        ({"tflite_quantizations": []}, "`tflite_quantizations`"),
        ({"tflite_quantizations": ["float32"] * 2}, "each once"),
        ({"tflite_quantizations": ["int8"]}, "`calibration_images`"),
        ({"tflite_batch_size": 0}, "`tflite_batch_size`"),
        (
            {"formats": ["onnx"], "onnx_batch_size": 0},
            "`onnx_batch_size`.*onnx_batch_size=0",
        ),
        ({"name": "a/b"}, "`name` must consist of the letters.*a/b"),
        ({"name": ".hidden"}, "`name`"),
        ({"name": "models.config"}, "not be models.config"),
        ({"version": 0}, "`version` must be positive"),
        ({"version": "1"}, "`version` must be a whole number"),
        ({"serving": Serving(output="scores")}, "`output` must be .*'logits'"),
        ({"serving": Serving(class_names=["a"])}, "1 names for 3"),
        (
            {
                "formats": ["tflite"],
                "serving": Serving(class_names=["a", "b\nc", "d"]),
            },
            "line of text",
        ),
        ({"serving": Serving(top=0)}, "`top`"),
        ({"serving": Serving(activation="relu")}, "`activation` .*softmax"),
        ({"serving": Serving(use_attention=True)}, "VisionTransformer"),
        ({"serving": Serving(preprocessing=OF_FOUR)}, "`preprocessing`"),
    ],
    ids=str,
)
def test_bad_arguments_leave_nothing(model, images, tmp_path, choices, match):
    with pytest.raises(ValueError, match=match):
        export_model(model, tmp_path / "new", images, **{**QUIET, **choices})
    assert not list(tmp_path.iterdir())


def test_no_version_is_overwritten(exported, model, images):
    before = files(exported.folder)
    for name in ("saved_model", "openvino"):  # The number is that of all.
        with pytest.raises(ValueError, match="version=1, and 'tiny' in .* 1"):
            export_model(
                model, exported.folder, images, [name], version=1, **QUIET
            )
    assert files(exported.folder) == before


def test_a_file_in_the_place_of_the_folder(model, images, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="`export_dir` must be a folder.*file"):
        export_model(model, tmp_path / "file", images, **QUIET)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "choices, module",
    [
        ({"formats": ["saved_model", "onnx"]}, "tf2onnx"),
        ({"formats": ["saved_model", "openvino"]}, "openvino"),
        (
            {
                "formats": ["saved_model", "tflite"],
                "tflite_quantizations": ["static_int8"],
            },
            "ai_edge_quantizer",
        ),
    ],
)
def test_a_missing_extra_is_found_at_once(
    model, images, tmp_path, monkeypatch, choices, module
):
    package = module.replace("_", "-")
    monkeypatch.setitem(sys.modules, module, None)  # Importing it fails.
    # Is not come to.
    row = FORMATS["saved_model"]._replace(write=None)
    monkeypatch.setitem(FORMATS, "saved_model", row)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}$"):
        export_model(
            model,
            tmp_path / "new",
            images,
            calibration_images=images,
            **choices,
            **QUIET,
        )
    assert not list(tmp_path.iterdir())


def test_the_json_report_contains_no_nan(model, images, tmp_path):
    """Every JSON parser reads the report, and the verdict names the fault."""
    layer = model.layers[-1]
    before = layer.get_weights()
    layer.bias.assign([0.0, np.nan, 0.0])
    try:
        with pytest.raises(DisagreementError, match="NaN .* 16 of 16"):
            export_model(model, tmp_path / "new", images, **QUIET)
        assert not list(tmp_path.iterdir())
        report = export_model(model, tmp_path, images, force=True, **QUIET)
    finally:
        layer.set_weights(before)
    assert [line.split("|")[-2] for line in str(report).splitlines()[4:6]] == [
        " not finite "
    ] * 2

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    text = (tmp_path / "report/tiny/1/report.json").read_text()
    content = json.loads(text, parse_constant=refuse)
    for entry in content["agreements"]:
        assert entry["max_difference"] is None and entry["cosine"] is None
        assert (
            "the Keras model gives NaN or infinity for 16 of 16"
            in entry["faults"][0]
        )


def test_models_config_of_someone_else_stays(exported, model, images, tmp_path):
    shutil.copytree(exported.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "saved_model" / "models.config"
    path.write_text("# mine\n")
    with pytest.warns(UserWarning, match="stays as it is"):
        export_model(model, tmp_path, images, ["saved_model"], **QUIET)
    assert path.read_text() == "# mine\n"


def test_what_is_published_together_appears_at_once(tmp_path):
    paths = [tmp_path / "a" / "x" / "1", tmp_path / "b" / "x" / "1"]
    with published_together(paths) as drafts:
        for draft in drafts:
            (draft / "file").write_text("")
        # A server that looks now sees no version.
        assert not list(tmp_path.glob("*/x/[!.]*"))
    assert files(tmp_path) == ["a/x/1/file", "b/x/1/file"]


def test_folders_that_were_there_stay(model, images, tmp_path):
    (tmp_path / "mine").mkdir()
    for folder in ("mine", "new/deep"):
        with pytest.raises(ValueError, match="images"):
            export_model(model, tmp_path / folder, images[:0], **QUIET)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_export_leaves_nothing(tmp_path, error):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    paths = [tmp_path / "a" / "x" / "1", tmp_path / "b" / "x" / "1"]
    with pytest.raises(error):
        with published_together(paths):
            raise error
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert files(tmp_path) == ["b/mine"]


def test_all_are_taken_back_if_one_cannot_be_published(tmp_path):
    paths = [tmp_path / "a" / "1", tmp_path / "b" / "1"]
    (tmp_path / "b" / "1").mkdir(parents=True)
    (tmp_path / "b" / "1" / "file").write_text("of another process")
    with pytest.raises(OSError):
        with published_together(paths):
            pass
    assert files(tmp_path) == ["b/1/file"]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(
            None, None, "variables.data; No space left on device"
        ),
        OSError(28, "No space left on device"),
        RuntimeError("write failed: no space left on device"),
    ],
    ids=["tensorflow", "python", "another"],
)
def test_a_full_disk_is_said_plainly(
    model, images, tmp_path, monkeypatch, error
):
    def write(request, folder):
        (folder / "half").write_text("written")
        raise error

    row = FORMATS["saved_model"]._replace(write=write)
    monkeypatch.setitem(FORMATS, "saved_model", row)
    with pytest.raises(OSError, match="^The disk is full, so nothing was writ"):
        export_model(model, tmp_path / "new", images, **QUIET)
    assert not list(tmp_path.iterdir())


def test_another_backend_is_named_before_any_package(
    model, images, tmp_path, monkeypatch
):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match="TensorFlow backend.*BACKEND=jax$"):
        export_model(model, tmp_path / "new", images, ["onnx"], **QUIET)
