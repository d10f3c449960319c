"""What all exporters have in common."""

import pathlib
import sys

import numpy as np
import pytest

from keras_vit.export import (
    DisagreementError,
    Tolerance,
    export_saved_model,
    export_tflite,
)
from tests.export.conftest import make_model

NEVER = Tolerance(relative_difference=-1.0)


@pytest.mark.parametrize("export", [export_saved_model, export_tflite])
def test_export_that_differs_leaves_nothing_behind(
    export, model, images, tmp_path
):
    with pytest.raises(DisagreementError, match="differ"):
        export(model, str(tmp_path / "x.tflite"), images, tolerance=NEVER)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", [export_saved_model, export_tflite])
def test_export_that_may_differ_says_so(export, model, images, tmp_path):
    path = str(tmp_path / "x.tflite")
    report = export(model, path, images, tolerance=NEVER, must_agree=False)
    assert "allowed is -1e+00" in report.faults[0]
    assert pathlib.Path(path).exists()


def test_bad_paths_and_models_are_refused(model, images, tmp_path):
    with pytest.raises(ValueError, match="must not exist yet"):
        export_saved_model(model, str(tmp_path), images)
    dynamic = make_model(use_dynamic_image_size=True)
    with pytest.raises(ValueError, match="fixed image size"):
        export_tflite(dynamic, str(tmp_path / "m.tflite"), images)


@pytest.mark.parametrize(
    "export, name",
    [
        (export_saved_model, "make_endpoints"),
        (export_tflite, "write_default_endpoint"),
    ],
)
def test_what_is_compared_is_what_was_written(
    export, name, model, images, tmp_path, monkeypatch
):
    """An export of other weights must be found out."""
    other = make_model()
    other.get_layer("predictions").bias.assign(np.full(7, 0.5))
    module = sys.modules[export.__module__]
    function = getattr(module, name)
    monkeypatch.setattr(
        module,
        name,
        lambda model, *args, **options: function(other, *args, **options),
    )
    with pytest.raises(RuntimeError, match="differ"):
        export(model, str(tmp_path / "x.tflite"), images)
    assert not list(tmp_path.iterdir())


def test_more_models_that_are_refused(images, tmp_path):
    with pytest.raises(ValueError, match="at least one image"):
        export_saved_model(make_model(), tmp_path / "1", images[:0])
