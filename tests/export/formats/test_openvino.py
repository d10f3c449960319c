import pathlib

import pytest

from keras_vit.export.formats.openvino import export_openvino

openvino = pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def report(model, images, tmp_path_factory):
    path = tmp_path_factory.mktemp("openvino") / "model.xml"
    return export_openvino(model, path, images)


def test_two_files_hold_the_weights_once_in_float32(report, model):
    files = list(pathlib.Path(report.path).parent.iterdir())
    assert sorted(file.name for file in files) == ["model.bin", "model.xml"]
    assert sum(file.stat().st_size for file in files) == report.num_bytes
    weights = pathlib.Path(report.path).with_suffix(".bin").stat().st_size
    assert 4 * model.count_params() <= weights <= 4.2 * model.count_params()


def test_both_files_must_be_new(model, images, tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match="not exist yet.*model.bin"):
        export_openvino(model, tmp_path / "model.xml", images)


def test_full_disk_leaves_nothing_behind(model, images, tmp_path, monkeypatch):
    """The error of OpenVINO itself is only "iostream error"."""

    def fail(*args, **options):
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(openvino, "save_model", fail)
    for free, error in ((1000, OSError), (2**40, RuntimeError)):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda _, it=usage: it)
        with pytest.raises(error, match="No space left|iostream"):
            export_openvino(model, tmp_path / "model.xml", images)
        assert not list(tmp_path.iterdir())
