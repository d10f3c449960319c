import itertools
import pathlib
import resource
import sys
import zipfile

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.interpreter import Interpreter

import keras_vit.export.formats.tflite
from keras_vit import ViT_Ti16
from keras_vit.export import (
    QUANTIZATIONS,
    DisagreementError,
    Serving,
    export_tflite,
)
from keras_vit.export.formats.tflite import to_tflite
from tests.export.conftest import make_model
from tests.tiny import LATER_KINDS, noise

CLASS_NAMES = [f"class, {index}" for index in range(7)]
SERVING = Serving(class_names=CLASS_NAMES)


@pytest.fixture(scope="module")
def exported(model, images, tmp_path_factory):
    """Return a function that exports a quantization, each but once."""
    reports = {}

    def export(quantization, batch_size=1):
        if quantization == "static_int8":
            pytest.importorskip("ai_edge_quantizer")
        if (quantization, batch_size) not in reports:
            reports[quantization, batch_size] = export_tflite(
                model,
                tmp_path_factory.mktemp("tflite") / "model.tflite",
                images,
                quantization,
                batch_size=batch_size,
                calibration_images=images,
                serving=SERVING,
            )
        return reports[quantization, batch_size]

    return export


def answer(path, images):
    """Return the outputs of a float file, by the plain interface of LiteRT."""
    interpreter = Interpreter(str(path))
    return interpreter.get_signature_runner()(images=images)["logits"]


def cosine(x, y):
    return np.sum(x * y) / np.linalg.norm(x) / np.linalg.norm(y)


def operations(path):
    """Return the names of the operations of a TFLite file."""
    content = pathlib.Path(path).read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    codes = [
        # Old codes are in a byte of their own, newer ones do not fit in it.
        max(code.builtinCode, code.deprecatedBuiltinCode)
        for code in model.operatorCodes
    ]
    (graph,) = model.subgraphs
    return [names[codes[each.opcodeIndex]] for each in graph.operators]


def is_one_delegate(path):
    return CompiledModel.from_file(str(path)).is_fully_accelerated()


@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_quantization_agrees_and_runs_anywhere(
    exported, quantization, batch_size
):
    report = exported(quantization, batch_size)
    assert report.kind == f"tflite {quantization}"
    largest, least_cosine = {
        "float32": (1e-5, 0.9999999),
        "float16": (0.01, 0.99999),
        "dynamic_int8": (0.2, 0.999),
        "static_int8": (2, 0.97),
        "int8": (2, 0.97),
    }[quantization]
    assert report.max_difference <= largest
    assert report.cosine >= least_cosine
    assert report.num_images == 16
    names = operations(report.path)
    assert "FULLY_CONNECTED" in names and "CUSTOM" not in names
    # Integers throughout are what XNNPACK cannot do.
    assert is_one_delegate(report.path) == (quantization != "int8")


@pytest.mark.parametrize(
    "quantization, bytes_spared", [("float16", 1), ("dynamic_int8", 1.5)]
)
def test_smaller_numbers_make_a_smaller_file(
    exported, model, quantization, bytes_spared
):
    """The position table and all vectors stay float32 in int8 files."""
    sizes = [
        pathlib.Path(exported(each).path).stat().st_size
        for each in ("float32", quantization)
    ]
    assert sizes == [
        exported(each).num_bytes for each in ("float32", quantization)
    ]
    assert sizes[0] - sizes[1] > bytes_spared * model.count_params()


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_file_of_any_batch_answers_as_keras(
    exported, model, images, batch_size
):
    some = images[:batch_size]
    np.testing.assert_allclose(
        answer(exported("float32", None).path, some),
        model.predict_on_batch(some),
        atol=1e-5,
    )
    # An image is rounded by itself: the others of the batch do not matter.
    path = exported("dynamic_int8", None).path
    alone = [answer(path, image[None])[0] for image in some]
    np.testing.assert_allclose(answer(path, some), alone, atol=1e-5)
    assert cosine(alone, model.predict_on_batch(some)) > 0.999


def test_file_of_a_batch_of_four(shallow, images, tmp_path):
    """15 images, the last of four batches is not full."""
    model = shallow
    path = tmp_path / "model.tflite"
    report = export_tflite(model, path, images[:15], "float32", batch_size=4)
    assert report.num_images == 15 and report.max_difference <= 1e-5
    np.testing.assert_allclose(
        answer(path, images[:4]),
        model.predict_on_batch(images[:4]),
        atol=1e-5,
    )


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_types_of_inputs_and_outputs(exported, quantization):
    """Machines without floats want integers at both ends."""
    serve = Interpreter(exported(quantization).path).get_signature_runner()
    inputs, outputs = serve.get_input_details(), serve.get_output_details()
    expected = np.int8 if quantization == "int8" else np.float32
    assert inputs["images"]["dtype"] is expected
    assert outputs["logits"]["dtype"] is expected
    assert list(inputs["images"]["shape"]) == [1, 32, 24, 3]


def test_integers_stand_for_the_pixels_and_the_logits(exported, model, images):
    """The scale of the image spans its range, and no more."""
    serve = Interpreter(exported("int8").path).get_signature_runner()
    scale, zero = serve.get_input_details()["images"]["quantization"]
    assert 2 / 255 <= scale <= 2.1 / 255
    pixels = np.round(images[:1] / scale + zero).clip(-128, 127).astype("int8")
    scale, zero = serve.get_output_details()["logits"]["quantization"]
    found = scale * (serve(images=pixels)["logits"].astype("float32") - zero)
    assert cosine(found, model.predict_on_batch(images[:1])) > 0.97


def test_scales_of_integers_are_those_of_pixels_and_tokens(exported):
    """The check of the size leaves no number that small machines cannot do."""
    content = pathlib.Path(exported("int8").path).read_bytes()
    (graph,) = schema.ModelT.InitFromPackedBuf(content).subgraphs
    scales = [each.quantization.scale for each in graph.tensors]
    scales = np.concatenate([x for x in scales if x is not None])
    assert len(scales) > 50
    assert scales.max() < 1


WRONG_SHAPES = [
    (4, 16, 12, 3),
    (1, 64, 12, 3),
    (1, 24, 32, 3),
    (768, 1, 1, 3),
    (3, 32, 24, 1),
    (1, 32, 72, 1),
    (1, 32, 24, 1),
    (1, 1, 24, 3),
    (1, 32, 1, 3),
    (1, 1, 1, 3),
    (1, 0, 24, 3),
]


@pytest.mark.parametrize("shape", WRONG_SHAPES, ids=str)
@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_another_image_size_is_refused(
    exported, quantization, batch_size, shape
):
    """Many have as many numbers as one image, or would be broadcast to it."""
    path = exported(quantization, batch_size).path
    dtype = "int8" if quantization == "int8" else "float32"
    serve = Interpreter(path).get_signature_runner()
    with pytest.raises((RuntimeError, ValueError)):
        serve(images=np.zeros(shape, dtype))


def test_another_batch_size_is_refused(exported):
    serve = Interpreter(exported("float32").path).get_signature_runner()
    with pytest.raises((RuntimeError, ValueError)):
        serve(images=np.zeros((2, 32, 24, 3), "float32"))


@pytest.mark.parametrize("image_size", [(1, 16), (16, 1)], ids=str)
def test_an_image_side_of_1_is_checked_as_well(image_size, tmp_path):
    model = make_model(image_size=image_size, patch_size=1, depth=1)
    images = noise(3, *image_size, 3)
    path = tmp_path / "model.tflite"
    report = export_tflite(model, path, images, "float32", batch_size=None)
    assert report.max_difference <= 1e-5
    for shape in [(1, *image_size[::-1], 3), (1, 4, 4, 3), (16, 1, 1, 3)]:
        serve = Interpreter(str(path)).get_signature_runner()
        with pytest.raises((RuntimeError, ValueError)):
            serve(images=np.zeros(shape, "float32"))


def test_labels_are_in_a_zip_behind_the_model(exported, model, images):
    path = exported("float32").path
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["labels.txt", "model.json"]
        labels = archive.read("labels.txt").decode().splitlines()
        entry, _ = archive.infolist()
    assert labels == CLASS_NAMES
    assert entry.compress_type == zipfile.ZIP_STORED
    np.testing.assert_allclose(
        answer(path, images[:1]), model.predict_on_batch(images[:1]), atol=1e-5
    )


def test_equal_models_give_equal_files(exported, model, images, tmp_path):
    path = tmp_path / "model.tflite"
    export_tflite(model, path, images, "float32", serving=SERVING)
    first = pathlib.Path(exported("float32").path)
    assert path.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            {"quantization": "int4"},
            "'float32', .*'dynamic_int8'.*Received.*'int4'",
        ),
        (
            {"quantization": "int8"},
            "`calibration_images` .* must be given.*'int8'",
        ),
        (
            {"quantization": "static_int8"},
            "`calibration_images` .*'static_int8'",
        ),
        (
            {
                "quantization": "int8",
                "calibration_images": np.zeros((2, 8, 8, 3)),
            },
            r"\(None, 32, 24, 3\). Received: shape=\(2, 8, 8, 3\)",
        ),
        (
            {
                "quantization": "int8",
                "calibration_images": np.zeros((0, 32, 24, 3)),
            },
            r"one or more images .* shape=\(0, 32, 24, 3\)",
        ),
        ({"batch_size": 0}, "`batch_size` must be 1 or more"),
        (
            {"serving": Serving(class_names=["a", "b"])},
            "`class_names` .*2 names for 7",
        ),
        (
            {"serving": Serving(class_names=[*"abcdef", "g\nh"])},
            "line of text.*'g.*nh'",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(
    arguments, words, model, images, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras_vit.export.formats.tflite, "to_tflite", None)
    with pytest.raises(ValueError, match=words):
        export_tflite(model, images=images, **{"path": "x.tflite", **arguments})
    assert not list(tmp_path.iterdir())


def test_missing_quantizer_is_named(model, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    with pytest.raises(ImportError, match="pip install ai-edge-quantizer"):
        export_tflite(
            model,
            tmp_path / "model.tflite",
            images,
            "static_int8",
            calibration_images=images,
        )
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_nothing_behind(model, images, tmp_path, monkeypatch):
    """Files must not grow here beyond 10 kB, as if that was all the space."""
    monkeypatch.setattr(
        keras_vit.export.formats.tflite, "to_tflite", lambda *_: bytes(20_000)
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            export_tflite(model, tmp_path / "x.tflite", images, "float32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


CHOICES = [
    {"pooling": "avg", "position_embedding": "sincos_2d"},
    {"pooling": "map", "representation_size": 10, "activation": "exact"},
    {"position_embedding": "learned_2d", "pooling": "max"},
    {"position_embedding": "sincos_1d", "dropout_rate": 0.1},
    {"position_embedding": "none", "use_class_token": False, "pooling": "avg"},
    {"stem_stages": (1, 1), "patch_size": 1, "image_size": (32, 32)},
]
CASES = [
    *itertools.product(CHOICES, [1, None]),
    *((choices, None) for choices in LATER_KINDS.values()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("choices", "batch_size"), CASES, ids=str)
def test_every_choice_converts_to_one_delegate_and_agrees(
    choices, batch_size, tmp_path
):
    model = make_model(depth=1, **choices)
    images = noise(3, *model.input_shape[1:])
    path = tmp_path / "model.tflite"
    report = export_tflite(
        model, path, images, "float32", batch_size=batch_size
    )
    assert report.top1_agreement == 1
    # Keras' group normalisation, in the stem, asks for the batch size.
    asks = batch_size is None and "stem_stages" in choices
    assert is_one_delegate(path) != asks


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "dynamic_int8"])
def test_ti16_is_one_delegate(quantization, tmp_path):
    """Of its twelve blocks the first, which reads and answers all tokens, and
    the last, which answers one, show what the others do.
    """
    path = tmp_path / "model.tflite"
    path.write_bytes(to_tflite(ViT_Ti16(depth=2), quantization))
    assert is_one_delegate(path)


def test_an_int8_file_of_other_weights_is_found_out(
    shallow, images, tmp_path, monkeypatch
):
    model, other = shallow, make_model(depth=1)
    other.get_layer("predictions").bias.assign(np.arange(7) / 10)
    monkeypatch.setattr(
        keras_vit.export.formats.tflite,
        "to_tflite",
        lambda model, *args: to_tflite(other, *args),
    )
    with pytest.raises(DisagreementError, match="differ"):
        export_tflite(model, tmp_path / "x.tflite", images)
    assert not list(tmp_path.iterdir())
