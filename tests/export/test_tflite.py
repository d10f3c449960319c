"""TFLite files: quantizations, sizes, and inputs of uint8 pixels."""

import pathlib
import sys
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.interpreter import Interpreter
from sklearn.datasets import load_sample_images

from keras_vit import Preprocessing, ViT_Ti16
from keras_vit.export import (
    QUANTIZATIONS,
    DisagreementError,
    Serving,
    export_file,
    read_description,
)
from keras_vit.export.formats import tflite
from keras_vit.export.formats.tflite import (
    HALVINGS,
    PixelInput,
    find_pixel_input,
    to_tflite,
)
from keras_vit.preprocessing.description import (
    central_crop_step,
    resize_small_step,
    resize_step,
)
from tests.export.conftest import make_model
from tests.tiny import LATER_KINDS, noise

SIZE = (32, 24)


def export(model, path, images, quantization="float32", **choices):
    return export_file(
        model, path, images, tflite_quantizations=[quantization], **choices
    )


def answer(path, images):
    """Return the outputs of a float file, by the plain interface of LiteRT."""
    runner = Interpreter(str(path)).get_signature_runner()
    [output] = runner(images=images).values()
    return output


def cosine(x, y):
    return np.sum(x * y) / np.linalg.norm(x) / np.linalg.norm(y)


class Operation(NamedTuple):
    """An operation of a TFLite file, and whether its inputs are constants."""

    name: str
    inputs: list
    outputs: list
    is_constant: list[bool]


def operations(path):
    """Return the operations of a TFLite file."""
    content = pathlib.Path(path).read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    codes = [
        # Old codes are in a byte of their own, newer ones do not fit in it.
        max(code.builtinCode, code.deprecatedBuiltinCode)
        for code in model.operatorCodes
    ]
    (graph,) = model.subgraphs
    return [
        Operation(
            names[codes[each.opcodeIndex]],
            *(
                [graph.tensors[i] for i in x]
                for x in (each.inputs, each.outputs)
            ),
            [
                model.buffers[graph.tensors[i].buffer].data is not None
                for i in each.inputs
            ],
        )
        for each in graph.operators
    ]


def assert_gpus_take(path):
    """Four axes at most, and sums of as many; no check of the image's size."""
    for name, inputs, outputs, is_constant in operations(path):
        ranks = [np.size(x.shape) for x in inputs]
        assert max(ranks + [np.size(x.shape) for x in outputs]) <= 4, name
        if name in ("ADD", "SUB", "MUL", "DIV") and not any(is_constant):
            assert len(set(ranks)) == 1, (name, inputs[0].name)
        assert name not in ("MAXIMUM", "BROADCAST_TO", "SHAPE", "CUSTOM")


def types_in(path):
    rows = operations(path)
    return {x.type for row in rows for x in (*row.inputs, *row.outputs)}


def is_one_delegate(path):
    return CompiledModel.from_file(str(path)).is_fully_accelerated()


LIMITS = {  # Largest difference, and least cosine similarity.
    "float32": (1e-5, 0.9999999),
    "float16": (0.01, 0.99999),
    "dynamic_int8": (0.2, 0.999),
    "static_int8": (2, 0.97),
    "int8": (2, 0.97),
}


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_quantization_agrees_and_runs_anywhere(
    bundle, model, images, quantization
):
    report = bundle[f"tflite {quantization}"]
    largest, least_cosine = LIMITS[quantization]
    assert report.max_difference <= largest
    assert report.cosine >= least_cosine
    assert_gpus_take(report.path)
    if quantization == "int8":  # For chips without floats.
        assert schema.TensorType.FLOAT32 not in types_in(report.path)
    # Integers throughout are what XNNPACK cannot do.
    assert is_one_delegate(report.path) == (quantization != "int8")
    is_whole = report.partitions == 1 and not report.left_out
    assert is_whole == (quantization != "int8")
    # Machines without floats want integers at both ends.
    serve = Interpreter(report.path).get_signature_runner()
    dtype = np.int8 if quantization == "int8" else np.float32
    assert serve.get_input_details()["images"]["dtype"] is dtype
    assert serve.get_output_details()["logits"]["dtype"] is dtype
    if quantization == "int8":
        return
    # An image is rounded by itself: the others of the batch do not matter.
    some = images[:3]
    alone = [answer(report.path, image[None])[0] for image in some]
    np.testing.assert_allclose(answer(report.path, some), alone, atol=1e-5)
    assert cosine(alone, model.predict_on_batch(some)) > least_cosine - 0.02


@pytest.mark.parametrize(
    "quantization, bytes_spared", [("float16", 1), ("dynamic_int8", 1.5)]
)
def test_smaller_numbers_make_a_smaller_file(
    bundle, model, quantization, bytes_spared
):
    """The position table and all vectors stay float32 in int8 files."""
    reports = [bundle[f"tflite {x}"] for x in ("float32", quantization)]
    sizes = [pathlib.Path(report.path).stat().st_size for report in reports]
    assert sizes == [report.num_bytes for report in reports]
    assert sizes[0] - sizes[1] > bytes_spared * model.count_params()


def test_a_file_of_a_batch_of_four(shallow, images, tmp_path):
    """15 images, the last of four batches is not full."""
    path = tmp_path / "model.tflite"
    report = export(shallow, path, images[:15], tflite_batch_size=4)
    assert report.num_images == 15 and report.max_difference <= 1e-5
    expected = shallow.predict_on_batch(images[:4])
    np.testing.assert_allclose(answer(path, images[:4]), expected, atol=1e-5)


def test_integers_stand_for_the_pixels_and_the_logits(bundle, model, images):
    """The scale of the image spans its range, and no more."""
    path = bundle["tflite int8"].path
    serve = Interpreter(path).get_signature_runner()
    scale, zero = serve.get_input_details()["images"]["quantization"]
    assert 2 / 255 <= scale <= 2.1 / 255
    pixels = np.round(images[:1] / scale + zero).clip(-128, 127).astype("int8")
    scale, zero = serve.get_output_details()["logits"]["quantization"]
    found = scale * (serve(images=pixels)["logits"].astype("float32") - zero)
    assert cosine(found, model.predict_on_batch(images[:1])) > 0.97


WRONG_SHAPES = [
    (4, 16, 12, 3),
    (1, 64, 12, 3),
    (768, 1, 1, 3),
    (1, 32, 72, 1),
    (1, 1, 24, 3),
    (1, 32, 1, 3),
    (1, 0, 24, 3),
    (32, 24, 3),
]


@pytest.mark.parametrize("quantization", [*QUANTIZATIONS, "one"])
def test_another_image_size_is_refused(bundle, quantization):
    """Many have as many numbers as one image: by our reader, and by LiteRT's
    interpreter, as it is and when it is told not to change other axes.
    """
    is_one = quantization == "one"  # At a time, as a page gives them.
    path = f"{bundle['web float32'].path}/model.tflite"
    path = path if is_one else bundle[f"tflite {quantization}"].path
    dtype = "int8" if quantization == "int8" else "float32"
    loaded = tflite.load(path)
    for shape in [*WRONG_SHAPES, *[(2, *SIZE, 3)] * is_one]:
        images = np.zeros(shape, dtype)
        with pytest.raises(ValueError, match="`images` must have the shape"):
            loaded.call(images)
        interpreter = Interpreter(path)
        [info] = interpreter.get_input_details()
        interpreter.allocate_tensors()
        with pytest.raises(ValueError, match="Cannot set tensor"):
            interpreter.set_tensor(info["index"], images)
        with pytest.raises(RuntimeError):
            interpreter.resize_tensor_input(info["index"], shape, strict=True)
    assert loaded.call(np.zeros((1, *SIZE, 3), dtype))["logits"].shape == (1, 7)


def test_equal_models_give_equal_files(shallow, images, tmp_path):
    paths = [tmp_path / name / "model.tflite" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        export(shallow, path, images)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (0, 32, 24, 3)])
def test_wrong_calibration_images_are_named(
    shape, model, images, tmp_path, monkeypatch
):
    monkeypatch.setattr(tflite, "to_tflite", None)
    choices = {"calibration_images": np.zeros(shape)}
    with pytest.raises(ValueError, match="`calibration_images` .*Received: sh"):
        export(model, tmp_path / "x.tflite", images, "int8", **choices)
    assert not list(tmp_path.iterdir())


def test_missing_quantizer_is_named(model, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    choices = {"calibration_images": images}
    with pytest.raises(ImportError, match="pip install ai-edge-quantizer"):
        export(model, tmp_path / "x.tflite", images, "static_int8", **choices)


CHOICES = [
    {"pooling": "avg", "position_embedding": "sincos_2d"},
    {"pooling": "map", "representation_size": 10, "activation": "exact"},
    {"position_embedding": "learned_2d", "pooling": "max"},
    {"position_embedding": "sincos_1d", "dropout_rate": 0.1},
    {"position_embedding": "none", "use_class_token": False, "pooling": "avg"},
    {"stem_stages": (1, 1), "patch_size": 1, "image_size": (32, 32)},
]
# Between them, each part of the other families.
IN_INT8 = [LATER_KINDS[name] for name in ("beit", "eva02", "dinov3", "aimv2")]
CASES = [
    *((choices, None) for choices in (*CHOICES, *LATER_KINDS.values())),
    *((choices, 1) for choices in CHOICES[1::2]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("choices", "batch_size"), CASES, ids=str)
def test_every_choice_converts_to_one_delegate_and_agrees(
    choices, batch_size, tmp_path
):
    model = make_model(depth=1, **choices)
    images = noise(3, *model.input_shape[1:])
    path = tmp_path / "model.tflite"
    report = export(model, path, images, tflite_batch_size=batch_size)
    assert report.top1_agreement == 1
    assert is_one_delegate(path)
    assert_gpus_take(path)
    if batch_size is None and choices in (*CHOICES, *IN_INT8):
        content = to_tflite(model, "int8", 1, images)
        path.write_bytes(content)
        assert_gpus_take(path)
        assert not types_in(path) & {
            schema.TensorType.FLOAT32,
            schema.TensorType.FLOAT16,
        }
        [found] = tflite.load(path).call(images[:1]).values()
        assert cosine(found[0], model.predict_on_batch(images[:1])[0]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "dynamic_int8"])
def test_ti16_is_one_delegate(quantization, tmp_path):
    """Of its twelve blocks the first, which reads and answers all tokens, and
    the last, which answers one, show what the others do.
    """
    path = tmp_path / "model.tflite"
    path.write_bytes(to_tflite(ViT_Ti16(depth=2), quantization))
    assert is_one_delegate(path)


def test_partitions_of_a_graph_that_is_interrupted(tmp_path):
    """XNNPACK has no sums of rows that go on."""

    @tf.function(input_signature=[tf.TensorSpec((2, 3), tf.float32)])
    def compute(images):
        return tf.cumsum(tf.exp(images) * 2, axis=1) * 3 - images

    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [compute.get_concrete_function()]
    )
    path = tmp_path / "model.tflite"
    path.write_bytes(converter.convert())
    assert tflite.find_partitions(path) == (2, ("CUMSUM",))


def test_numbers_too_large_for_float16_are_refused(images, tmp_path):
    """A large hidden layer, which the next one makes small again."""
    model, path = make_model(depth=1), tmp_path / "model.tflite"
    mlp, factor = model.get_layer("block_00").mlp, 2.0**15
    for weight in (mlp.hidden.kernel, mlp.hidden.bias):
        weight.assign(weight * factor)
        assert np.abs(weight).max() < np.finfo("float16").max
    mlp.out.kernel.assign(mlp.out.kernel / factor)
    words = "`block_00.*/mlp.*/hidden.*reaches .* in float16, in which GPUs"
    with pytest.raises(DisagreementError, match=words):
        export(model, path, images, "float16")
    assert not list(tmp_path.iterdir())
    report = export(model, path, images, "float16", must_agree=False)
    # On a CPU, nothing shows it.
    assert report.cosine > 0.9999 and len(report.faults) == 1
    path.unlink()
    assert not export(model, path, images).faults


@pytest.mark.parametrize(
    "size, fault", [(65_000, ""), (66_000, "reaches 6.6e+04; above 65,504")]
)
def test_the_largest_number_is_found(size, fault, tmp_path):
    """Of the product of ones with a quarter of the size each."""
    dense = keras.layers.Dense
    model = keras.Sequential(
        [
            keras.Input((2, 2, 1)),
            keras.layers.Flatten(),
            dense(3, "relu", False, keras.initializers.Constant(size / 4)),
            dense(3, None, False, keras.initializers.Constant(1e-5)),
        ]
    )
    images = np.concatenate([np.zeros((4, 2, 2, 1)), np.ones((1, 2, 2, 1))])
    path = tmp_path / "model.tflite"
    report = export(model, path, images, "float16", must_agree=False)
    assert fault in "".join(report.faults)
    assert len(report.faults) == bool(fault)


def test_an_int8_file_of_other_weights_is_found_out(
    shallow, images, tmp_path, monkeypatch
):
    other = make_model(depth=1)
    other.get_layer("predictions").bias.assign(np.arange(7) / 10)
    monkeypatch.setattr(
        tflite,
        "to_tflite",
        lambda model, *a, **rest: to_tflite(other, *a, **rest),
    )
    with pytest.raises(DisagreementError, match="differ"):
        export(shallow, tmp_path / "x.tflite", images, "dynamic_int8")
    assert not list(tmp_path.iterdir())


# Files that take uint8 pixels and halve them.

PHOTOS = load_sample_images().images


@pytest.fixture(scope="module", params=[*HALVINGS, None], ids=str)
def halving(request):
    return PixelInput("zero_one", request.param)


@pytest.fixture(scope="module")
def of_pixels(shallow, images, halving, tmp_path_factory):
    path = tmp_path_factory.mktemp("pixels") / "model.tflite"
    report = export(
        shallow,
        path,
        (images + 1) / 2,
        tflite_takes_pixels=True,
        serving=Serving(
            preprocessing=Preprocessing("zero_one"),
            image_steps=[resize_step(SIZE, halving.method or "bilinear")],
        ),
    )
    assert not report.faults
    assert_gpus_take(path)
    return str(path)


def test_the_file_resizes_as_tensorflow_does(of_pixels, halving, shallow):
    size = [side * halving.pixels_per_side for side in SIZE]
    choices = {
        "antialias": {"antialias": True},
        "area": {"method": "area"},
        "bicubic": {"method": "bicubic", "antialias": True},
    }
    for photo in PHOTOS:
        image = tf.image.resize(photo, size, antialias=True)
        image = tf.cast(tf.round(image), tf.uint8)[None]
        scaled = tf.image.resize(image, SIZE, **choices.get(halving.method, {}))
        expected = shallow.predict_on_batch(np.clip(scaled, 0, 255) / 255)
        found = answer(of_pixels, image.numpy())
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pixels_may_be_written_as_signed_bytes(of_pixels, halving):
    """As Kotlin does, which has no unsigned bytes."""
    model = CompiledModel.from_file(of_pixels)
    inputs = model.create_input_buffers(0)
    outputs = model.create_output_buffers(0)
    shape = (1, *(side * halving.pixels_per_side for side in SIZE), 3)
    image = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    inputs[0].write(image.view("int8").ravel())
    model.run_by_index(0, inputs, outputs)
    found = outputs[0].read(7, np.float32)
    np.testing.assert_allclose(found, answer(of_pixels, image)[0], atol=1e-5)


@pytest.mark.parametrize(
    "steps, method",
    [
        ([resize_step(SIZE, "antialias")], "antialias"),
        ([resize_small_step(36), central_crop_step(SIZE)], "area"),
        (
            [
                resize_step(SIZE, "bicubic", "resize_to_cover"),
                central_crop_step(SIZE),
            ],
            "bicubic",
        ),
        # Without antialiasing, the model saw single pixels.
        ([resize_step(SIZE, "bilinear")], None),
        ([resize_small_step(36), resize_step(SIZE, "bilinear")], None),
    ],
)
def test_the_method_is_that_of_the_preprocessing(steps, method):
    assert find_pixel_input(steps, "vit").method == method


def test_a_photo_gets_the_answer_of_the_model(shallow, images, tmp_path):
    """From the steps of the description, with 8 bits between them."""
    path = tmp_path / "model.tflite"
    steps = [resize_small_step(36), central_crop_step(SIZE)]
    serving = Serving(image_steps=steps)
    choices = {"serving": serving, "tflite_takes_pixels": True}
    report = export(shallow, path, images[:16], "dynamic_int8", **choices)
    assert not report.faults
    description = read_description(path)
    sizes = {"height": 64, "width": 48, "channels": 3, "dtype": "uint8"}
    assert description["input"] == sizes and description["mean"] is None
    steps = [resize_small_step(72), central_crop_step((64, 48))]
    assert description["image_steps"] == steps
    assert tflite.load(path, 1).call(np.zeros((1, 64, 48, 3)))
    for photo in PHOTOS:
        both = []
        for size, crop in ((36, SIZE), (72, (64, 48))):
            sides = np.array(photo.shape[:2])
            target = np.round(sides * size / sides.min()).astype(int)
            image = tf.image.resize(photo, target, method="area").numpy()
            top, left = (target - crop) // 2
            both.append(image[top : top + crop[0], left : left + crop[1]])
        expected = shallow.predict_on_batch(both[0][None] / 127.5 - 1)
        found = answer(path, np.rint(both[1])[None].astype("uint8"))
        probabilities = [keras.ops.softmax(x)[0] for x in (found, expected)]
        np.testing.assert_allclose(*probabilities, atol=0.01)
    choices["calibration_images"] = images
    with pytest.raises(ValueError, match="`tflite_takes_pixels`"):
        export(shallow, tmp_path / "x.tflite", images, "int8", **choices)
