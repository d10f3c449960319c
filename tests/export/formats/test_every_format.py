"""The contract of every export format; a new one needs a row in READERS."""

import functools
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_vit.export import (
    FORMATS,
    DisagreementError,
    Tolerance,
    export_onnx,
    export_openvino,
    export_saved_model,
    export_tflite,
    export_web,
)
from keras_vit.export.formats import onnx, saved_model
from tests.export.conftest import make_model
from tests.export.web_engine import stand_in_engine
from tests.tiny import LATER_KINDS, noise

NEVER = Tolerance(relative_difference=-1.0)


def read_saved_model(path, images):
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    return {k: x.numpy() for k, x in serve(images=tf.constant(images)).items()}


def read_tflite(path, images):
    return Interpreter(str(path)).get_signature_runner()(images=images)


def read_onnx(path, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images})))


def read_openvino(path, images):
    import openvino

    compiled = openvino.Core().compile_model(
        str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    outputs = compiled({"images": images})
    return {key.any_name: value for key, value in outputs.items()}


def write_web(*arguments, **choices):
    with stand_in_engine() as folder:
        return export_web(*arguments, engine_dir=folder, **choices)


def read_web(path, images):
    """With the LiteRT of Python, an image at a time."""
    run = Interpreter(f"{path}/model.tflite").get_signature_runner()
    answers = [run(images=image[None]) for image in images]
    return {k: np.concatenate([a[k] for a in answers]) for k in answers[0]}


# How each is written, and read by its own runtime without our help.
READERS = {
    "onnx": (export_onnx, read_onnx),
    "openvino": (export_openvino, read_openvino),
    "saved_model": (export_saved_model, read_saved_model),
    "tflite": (
        functools.partial(
            export_tflite, quantization="float32", batch_size=None
        ),
        read_tflite,
    ),
    "web": (write_web, read_web),
}


def test_every_format_is_tested():
    assert set(READERS) == set(FORMATS)


@pytest.fixture(params=READERS)
def format(request):
    for package in FORMATS[request.param].packages:
        pytest.importorskip(package)
    return request.param


@pytest.fixture
def write(format, tmp_path):
    """Return a function that exports into an empty folder."""
    export, _ = READERS[format]
    path = tmp_path / "new" / f"model{FORMATS[format].suffix}"
    (tmp_path / "new").mkdir()

    def write(model, images, path=path, **choices):
        return export(model, path, images, **choices)

    write.folder = tmp_path / "new"
    return write


@pytest.fixture(scope="module")
def exported(model, images, tmp_path_factory):
    """Return a function that exports the model to a format, but once."""

    @functools.cache
    def export(format):
        name = f"model{FORMATS[format].suffix}"
        path = tmp_path_factory.mktemp(format) / name
        return READERS[format][0](model, path, images)

    return export


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_outputs_are_those_of_keras(
    format, exported, model, images, batch_size
):
    report = exported(format)
    assert report.kind.startswith(format)
    assert report.max_difference <= 1e-5 and report.num_images == len(images)
    some = images[:batch_size]
    [(name, found)] = READERS[format][1](report.path, some).items()
    assert name == "logits" and found.dtype == np.float32
    np.testing.assert_allclose(found, model.predict_on_batch(some), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["beit", "eva02", "dinov3", "aimv2"])
def test_models_of_other_families_agree(kind, format, write):
    """Between them, each part; test_tflite.py has all kinds."""
    if format == "tflite":
        pytest.skip("in test_tflite.py")
    model = make_model(depth=1, **LATER_KINDS[kind])
    report = write(model, noise(3, *model.input_shape[1:]))
    assert report.max_difference <= 1e-5


@pytest.mark.parametrize(
    "shape",
    [
        (4, 16, 12, 3),  # As many numbers as one image.
        (1, 64, 48, 3),
        (1, 24, 32, 3),
        (3, 32, 24, 1),
        (1, 32, 24, 1),
        (1, 1, 24, 3),
    ],
    ids=str,
)
def test_another_image_size_is_refused(format, exported, shape):
    read = READERS[format][1]
    words = "shape|dimension|size|Dimension|Expected"
    with pytest.raises(Exception, match=words):
        read(exported(format).path, np.zeros(shape, "float32"))


def test_mixed_precision_gives_float32(format, write, model, images):
    report = write(make_model(dtype="mixed_bfloat16"), images)
    [found] = READERS[format][1](report.path, images).values()
    assert found.dtype == np.float32
    wide = model.predict_on_batch(images)
    # A SavedModel computes as the model does; all others in float32.
    tolerance = 0.05 if format == "saved_model" else 1e-5
    np.testing.assert_allclose(found, wide, atol=tolerance * np.abs(wide).max())


def test_what_is_compared_is_what_was_written(
    write, shallow, images, monkeypatch
):
    """An export of other weights is found out, and can be let pass."""
    other = make_model(depth=1)
    other.get_layer("predictions").bias.assign(np.arange(7) / 10)
    for module in (onnx, saved_model):
        make = module.make_forward
        monkeypatch.setattr(
            module,
            "make_forward",
            lambda model, *args, make=make, **options: make(
                other, *args, **options
            ),
        )
    with pytest.raises(DisagreementError, match="differ"):
        write(shallow, images)
    assert not list(write.folder.iterdir())
    report = write(shallow, images, must_agree=False)
    assert report.faults and pathlib.Path(report.path).exists()


def test_the_tolerance_may_be_chosen(write, shallow, images):
    with pytest.raises(DisagreementError, match="allowed is -1e[+]00"):
        write(shallow, images, tolerance=NEVER)
    assert not list(write.folder.iterdir())


def test_missing_packages_are_named(format, write, model, images, monkeypatch):
    for package in FORMATS[format].packages:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ModuleNotFoundError) as caught:
                write(model, images)
        name = package.replace("_", "-")
        assert re.search(rf"pip install {name}(-api)?$", str(caught.value))
    assert not list(write.folder.iterdir())


def test_paths_and_models_that_do_not_fit(format, write, model, images):
    suffix = FORMATS[format].suffix
    (write.folder / f"old{suffix}").mkdir()
    with pytest.raises(ValueError, match="must not exist yet; nothing is"):
        write(model, images, path=write.folder / f"old{suffix}")
    if suffix:
        with pytest.raises(ValueError, match=f"must end in `{suffix}`"):
            write(model, images, path=write.folder / "model")
    with pytest.raises(ValueError, match="fixed image size"):
        write(make_model(use_dynamic_image_size=True), images)
    for wrong in (images[:0], images[:, :8], images[0], None):
        with pytest.raises(ValueError) as error:
            write(model, wrong)
        assert str(error.value) == (
            "`images` must have at least one image to compare outputs on, each "
            f"{images.shape[1:]}. Received: shape={np.shape(wrong)}"
        )
    with pytest.raises(ValueError, match="Keras model. Received: NoneType"):
        write(None, images)
    assert [path.name for path in write.folder.iterdir()] == [f"old{suffix}"]
