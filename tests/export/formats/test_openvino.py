import pathlib
import sys

import numpy as np
import pytest

import keras_vit.export.formats.openvino
from keras_vit.export import DisagreementError
from keras_vit.export.formats.openvino import export_openvino
from tests.export.conftest import make_model

openvino = pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def report(model, images, tmp_path_factory):
    path = tmp_path_factory.mktemp("openvino") / "model.xml"
    return export_openvino(model, path, images)


def answer(path, images):
    compiled = openvino.Core().compile_model(
        str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return compiled({"images": images})["logits"]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_openvino_answers_as_keras(report, model, images, batch_size):
    assert report.kind == "openvino" and report.max_difference <= 1e-5
    some = images[:batch_size]
    np.testing.assert_allclose(
        answer(report.path, some), model.predict_on_batch(some), atol=1e-5
    )


def test_two_files_hold_the_weights_once_in_float32(report, model):
    files = list(pathlib.Path(report.path).parent.iterdir())
    assert sorted(file.name for file in files) == ["model.bin", "model.xml"]
    assert sum(file.stat().st_size for file in files) == report.num_bytes
    weights = pathlib.Path(report.path).with_suffix(".bin").stat().st_size
    assert 4 * model.count_params() <= weights <= 4.2 * model.count_params()


@pytest.mark.parametrize(
    "shape",
    [(4, 16, 12, 3), (1, 24, 32, 3), (3, 32, 24, 1), (1, 1, 24, 3)],
    ids=str,
)
def test_another_image_size_is_refused(report, shape):
    with pytest.raises(RuntimeError, match="shape"):
        answer(report.path, np.zeros(shape, "float32"))


def test_mixed_precision_is_converted_in_float32(images, tmp_path):
    path = tmp_path / "model.xml"
    export_openvino(make_model(dtype="mixed_bfloat16"), path, images)
    np.testing.assert_allclose(
        answer(path, images), make_model().predict_on_batch(images), atol=1e-5
    )


def test_answers_that_differ_leave_nothing_behind(
    model, images, tmp_path, monkeypatch
):
    other = make_model()
    other.get_layer("predictions").bias.assign(np.full(7, 0.5))
    write = keras_vit.export.formats.openvino.write_default_endpoint
    monkeypatch.setattr(
        keras_vit.export.formats.openvino,
        "write_default_endpoint",
        lambda _, *args, **options: write(other, *args, **options),
    )
    with pytest.raises(DisagreementError, match="differ"):
        export_openvino(model, tmp_path / "model.xml", images)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_named(model, images, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must end in `.xml`"):
        export_openvino(model, tmp_path / "model", images)
    weights = tmp_path / "model.bin"
    weights.touch()
    with pytest.raises(ValueError, match="not exist yet.*model.bin"):
        export_openvino(model, tmp_path / "model.xml", images)
    weights.unlink()
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ImportError, match="pip install openvino$"):
        export_openvino(model, tmp_path / "model.xml", images)
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_nothing_behind(model, images, tmp_path, monkeypatch):
    """OpenVINO itself says "iostream error" then."""

    def fail(*args, **options):
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(openvino, "save_model", fail)
    for free, error in ((1000, OSError), (2**40, RuntimeError)):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda _, it=usage: it)
        with pytest.raises(error, match="No space left|iostream"):
            export_openvino(model, tmp_path / "model.xml", images)
        assert not list(tmp_path.iterdir())
