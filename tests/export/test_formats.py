"""The contract of every export format; a new one needs a row in READERS."""

import json
import shutil
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_vit import FlexibleVisionTransformer, __version__
from keras_vit.export import (
    FORMATS,
    DisagreementError,
    Serving,
    Tolerance,
    export_file,
    export_model,
    read_class_names,
    read_description,
)
from keras_vit.export.formats import find_format, onnx, saved_model
from keras_vit.export.formats.tflite import to_tflite
from keras_vit.models.tuning import layers_with_lora
from tests.export.conftest import KINDS, NAMES, QUIET, make_model
from tests.tiny import LATER_KINDS, noise


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


def read_web(path, images):
    """With the LiteRT of Python, an image at a time."""
    run = Interpreter(f"{path}/model.tflite").get_signature_runner()
    answers = [run(images=image[None]) for image in images]
    return {k: np.concatenate([a[k] for a in answers]) for k in answers[0]}


# How each is read by its own runtime without our help.
READERS = {
    "onnx": read_onnx,
    "openvino": read_openvino,
    "saved_model": read_saved_model,
    "tflite": read_tflite,
    "web": read_web,
}
every_format = pytest.mark.parametrize("format", READERS)


def test_every_format_is_tested():
    assert set(READERS) == set(FORMATS)


@pytest.fixture
def write(engine, tmp_path):
    """Return a function that exports into an empty folder."""

    def write(format, model, images, **choices):
        for package in FORMATS[format].packages:
            pytest.importorskip(package)
        return export_file(
            model,
            tmp_path / f"model{FORMATS[format].suffix}",
            images,
            format,
            **{
                "tflite_quantizations": ["float32"],
                "tflite_batch_size": None,
                "web_engine_dir": engine,
                **choices,
            },
        )

    return write


@every_format
def test_outputs_are_those_of_keras(format, bundle, model, images):
    report = bundle[KINDS[format]]
    assert report.max_difference <= 1e-5 and report.num_images == len(images)
    assert not report.faults
    for batch_size in (1, 3, 8):
        some = images[:batch_size]
        [(name, found)] = READERS[format](report.path, some).items()
        assert name == "logits" and found.dtype == np.float32
        expected = model.predict_on_batch(some)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "format"),
    [
        *((kind, "openvino") for kind in ("beit", "eva02", "dinov3", "aimv2")),
        ("eva02", "onnx"),
        ("beit", "saved_model"),
        *(("merged", format) for format in READERS),
    ],
)
def test_models_of_other_families_agree(kind, format, write):
    """Between them, each part.

    test_tflite.py and test_onnx.py have all kinds, and a page has a TFLite
    file.
    """
    if kind == "merged":
        choices = {"merged_tokens": 4, "pooling": "map", "depth": 2}
    else:
        choices = {"depth": 1, **LATER_KINDS[kind]}
    model = make_model(**choices)
    report = write(format, model, noise(3, *model.input_shape[1:]))
    assert report.max_difference <= 1e-5


SHAPES = [
    (4, 16, 12, 3),  # As many numbers as one image.
    (1, 64, 48, 3),
    (3, 32, 24, 1),
    (1, 32, 24, 1),
    (1, 1, 24, 3),
]


# For TFLite, see test_tflite.py: its Python runner resizes what it is given.
@pytest.mark.parametrize("format", sorted({*READERS} - {"tflite"}))
def test_another_image_size_is_refused(format, bundle):
    words = "shape|dimension|size|Dimension|Expected"
    for shape in SHAPES:
        with pytest.raises(Exception, match=words):
            READERS[format](
                bundle[KINDS[format]].path, np.zeros(shape, "float32")
            )


@every_format
def test_mixed_precision_gives_float32(format, write, shallow, images):
    report = write(format, make_model(dtype="mixed_bfloat16", depth=1), images)
    [found] = READERS[format](report.path, images).values()
    assert found.dtype == np.float32
    wide = shallow.predict_on_batch(images)
    # A SavedModel computes as the model does; all others in float32.
    tolerance = 0.05 if format == "saved_model" else 1e-5
    np.testing.assert_allclose(found, wide, atol=tolerance * np.abs(wide).max())


@every_format
def test_what_is_compared_is_what_was_written(
    format, write, shallow, images, monkeypatch, tmp_path
):
    """An export of other weights is found out, and can be let pass.

    That it is an error otherwise, which leaves nothing, is the same for all.
    """
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
    if format == "tflite":
        with pytest.raises(DisagreementError, match="differ"):
            write(format, shallow, images)
        assert not list(tmp_path.iterdir())
    report = write(format, shallow, images, must_agree=False)
    assert report.faults and list(tmp_path.iterdir())


def test_the_tolerance_may_be_chosen(write, shallow, images, tmp_path):
    never = Tolerance(relative_difference=-1.0)
    with pytest.raises(DisagreementError, match="allowed is -1e[+]00"):
        write("tflite", shallow, images, tolerance=never)
    assert not list(tmp_path.iterdir())


@every_format
def test_missing_packages_are_named(
    format, model, images, monkeypatch, tmp_path
):
    path = tmp_path / f"x{FORMATS[format].suffix}"
    for package in FORMATS[format].packages:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            name = package.replace("_", "-")
            with pytest.raises(ModuleNotFoundError, match=f"install {name}"):
                export_file(model, path, images, format)
    assert not list(tmp_path.iterdir())


def test_paths_and_models_that_do_not_fit(model, images, tmp_path):
    (tmp_path / "old.tflite").mkdir()
    path = tmp_path / "new.tflite"
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    for arguments, words in [
        ((model, tmp_path / "old.tflite", images), "`path` must not exist"),
        ((model, tmp_path / "x.h5", images, "onnx"), "end in `.onnx`"),
        ((model, tmp_path / "x.onxx", images), "`path` must end in .*x.onxx"),
        ((model, path, images, "onx"), "`format` must be one of .*onnx"),
        ((model, path, images[:, :8]), r"`images` .*\(32, 24, 3\)"),
        ((model, path, images[:0]), "at least one image"),
        ((model, path, None), "at least one image"),
        ((None, path, images), "Keras model. Received: NoneType"),
        ((unbuilt, path, images), "`model` .*call it on images first"),
        (
            (FlexibleVisionTransformer(model), path, images),
            "`model` .*export its `vision_transformer`",
        ),
        (
            (make_model(use_dynamic_image_size=True), path, images),
            "fixed image size",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            export_file(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["old.tflite"]


# Descriptions.


@every_format
def test_labels_and_preprocessing_are_read_back(format, bundle, thresholds):
    path = bundle[KINDS[format]].path
    assert read_class_names(path) == NAMES
    assert read_description(path) == {
        "format": "keras_vit 1",
        "version": __version__,
        "name": "pets",
        "input": {"height": 32, "width": 24, "channels": 3, "dtype": "float32"},
        "image_steps": [
            {"kind": "resize", "height": 32, "width": 24, "method": "antialias"}
        ],
        "mean": [0.5] * 3,
        "deviation": [0.5] * 3,
        "output": "logits",
        "activation": "sigmoid",
        "class_names": NAMES,
        "thresholds": thresholds.tolist(),
    }


def test_runtimes_read_them_without_our_help(bundle):
    import onnxruntime
    import openvino

    session = onnxruntime.InferenceSession(bundle["onnx"].path)
    text = session.get_modelmeta().custom_metadata_map["keras_vit"]
    assert json.loads(text)["class_names"] == NAMES
    graph = openvino.Core().read_model(bundle["openvino"].path)
    text = graph.get_rt_info("keras_vit").astype(str)
    assert json.loads(text)["class_names"] == NAMES
    path = bundle["tflite float32"].path
    folder = path.rpartition("/")[0]
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["labels.txt", "model.json"]
        entry, _ = archive.infolist()
        assert entry.compress_type == zipfile.ZIP_STORED
        for name in archive.namelist():
            with open(f"{folder}/{name}", "rb") as file:
                assert file.read() == archive.read(name)
        labels = archive.read("labels.txt").decode().splitlines()
    assert labels == NAMES


def test_a_file_without_a_description(model, tmp_path, bundle, monkeypatch):
    path = tmp_path / "plain.tflite"
    path.write_bytes(to_tflite(model))
    folder = tmp_path / "saved_model"
    shutil.copytree(bundle["saved_model"].path, folder)
    (folder / "assets.extra/keras_vit.json").unlink()
    for place in (path, folder):
        with pytest.raises(ValueError, match="`path` .*with a description"):
            read_description(place)
    with pytest.raises(ValueError, match=r"ends in .onnx, .xml, .tflite"):
        read_class_names(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="saved_model.pb or index.html"):
        find_format(str(tmp_path))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match="pip install onnx"):
        read_class_names(bundle["onnx"].path)


@pytest.fixture(scope="module")
def tiny():
    """Return the least that can be exported."""
    pixels = keras.Input((4, 4, 3), name="images")
    x = keras.layers.GlobalAveragePooling2D()(pixels)
    layer = keras.layers.Dense(3, kernel_initializer="orthogonal")
    return keras.Model(pixels, layer(x), name="tiny")


def softmax_behind(model):
    return keras.Sequential([model, keras.layers.Softmax()], name="tiny")


@pytest.mark.parametrize(
    "change, output, expected",
    [
        (lambda model: model, "features", "features"),
        (softmax_behind, None, "probabilities"),
    ],
)
def test_outputs_are_called_what_they_are(
    tiny, engine, tmp_path, change, output, expected
):
    """In all formats, whether the name is inferred or given."""
    for package in ("onnx", "tf2onnx", "openvino"):
        pytest.importorskip(package)
    model, images = change(tiny), noise(2, 4, 4, 3)
    # A page shows classes.
    formats = [*(FORMATS.keys() - ({"web"} if output else {}))]
    report = export_model(
        model,
        tmp_path,
        images,
        formats,
        tflite_quantizations=["float32"],
        tflite_batch_size=None,
        serving=Serving(output=output),
        web_engine_dir=engine,
        force=True,  # On noise, classes are tied.
        **QUIET,
    )
    wanted = model.predict_on_batch(images)
    for format, agreement in zip(formats, report.agreements):
        [(name, found)] = READERS[format](agreement.path, images).items()
        assert name == expected
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        description = read_description(agreement.path)
        assert description["output"] == expected
        assert description["activation"] is None
        if output:
            with pytest.raises(ValueError, match="`path` .*returns features"):
                read_class_names(agreement.path)
        else:
            assert read_class_names(agreement.path) == ["0", "1", "2"]
    loaded = tf.saved_model.load(str(tmp_path / "saved_model" / "tiny" / "1"))
    files = loaded.signatures["serve_bytes"].structured_outputs
    assert ("labels" in files) == (output is None)
    found = loaded.signatures["features"](images=tf.constant(images))
    below = wanted if output else np.mean(images, (1, 2))
    np.testing.assert_allclose(found["features"], below, atol=1e-6)


# LoRA: the weights are merged.


@pytest.fixture(scope="module")
def tuned():
    model = make_model(depth=1)
    model.enable_lora(2, alpha=3)
    for index, weight in enumerate(model.trainable_weights):
        weight.assign(noise(*weight.shape, seed=[5, index], scale=0.2))
    return model


def test_a_model_with_lora_is_exported_merged(tuned, images, tmp_path):
    report = export_file(tuned, tmp_path / "exported", images)
    found = read_saved_model(report.path, images)["logits"]
    np.testing.assert_allclose(found, tuned(images), atol=1e-4)
    stored = tf.train.list_variables(tmp_path / "exported/variables/variables")
    shapes = [tuple(shape) for _, shape in stored]
    layer = tuned.get_layer("block_00").attention.qkv
    assert (24, 72) in shapes
    assert tuple(layer.lora_kernel_a.shape) == (24, 2)
    assert (24, 2) not in shapes
    assert len(layers_with_lora(tuned)) == 2, "the model was changed"


def test_the_bundle_compares_and_times_the_merged_model(
    tuned, images, tmp_path, monkeypatch
):
    seen = []
    row = FORMATS["tflite"]._replace(
        write=lambda request, folder: seen.append(request.model) or []
    )
    monkeypatch.setitem(FORMATS, "tflite", row)
    monkeypatch.setattr(
        "keras_vit.export.bundle.measure_latency",
        lambda model, *args, **choices: seen.append(model) or [],
    )
    monkeypatch.setattr(
        "keras_vit.export.bundle.ExportReport.__str__", lambda self: ""
    )
    choices = {"threads": [1], "verbose": False}
    export_model(tuned, tmp_path, images, ["tflite"], **choices)
    assert len(seen) == 2
    assert not any(layers_with_lora(model) for model in seen)
