"""ONNX and OpenVINO files."""

import pathlib

import numpy as np
import pytest

from keras_vit import Preprocessing
from keras_vit.export import Serving, export_file
from keras_vit.export.formats import onnx as exporting
from tests.export.conftest import make_model
from tests.tiny import LATER_KINDS, noise

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
openvino = pytest.importorskip("openvino")
pytest.importorskip("tf2onnx")


@pytest.fixture(scope="module")
def exact():
    """Return a model whose GELU becomes an operation tf2onnx lacks."""
    return make_model(activation="exact", depth=1)


def test_the_exact_gelu_and_names_of_axes(exact, images, tmp_path):
    from tf2onnx.handler import tf_op

    report = export_file(exact, tmp_path / "model.onnx", images)
    assert report.kind == "onnx" and report.max_difference <= 1e-5
    graph = onnx.load(report.path).graph
    found = {
        tensor.name: [
            side.dim_param or side.dim_value
            for side in tensor.type.tensor_type.shape.dim
        ]
        for tensor in (*graph.input, *graph.output)
    }
    assert found == {"images": ["batch", 32, 24, 3], "logits": ["batch", 7]}
    # Other conversions do not meet our operation.
    assert "Erf" in tf_op.create_mapping(15, None)
    assert "Erfc" not in tf_op.create_mapping(15, None)


def test_weights_are_stored_once_and_not_copied_while_converting(
    exact, monkeypatch
):
    """tf2onnx copies constants at each of its steps, gigabytes in all."""
    import tf2onnx.convert

    captured = []
    write = tf2onnx.convert.from_function

    def spy(function, signature, **options):
        traced = function.get_concrete_function(*signature)
        captured.append(traced.captured_inputs)
        return write(function, signature, **options)

    monkeypatch.setattr(tf2onnx.convert, "from_function", spy)
    proto = exporting.to_onnx(exact)
    assert captured == [[]]
    sizes = [np.prod(x.dims, dtype=int) for x in proto.graph.initializer]
    # Shapes and other constants are there as well.
    assert 0 <= sum(sizes) - exact.count_params() < 200


# What TensorRT's parser refuses, or computes wrongly with open shapes
# (TensorRT 4558, lightly-train 783, romav2-onnx 6), and functions of angles,
# whose rounding differs.
COMPUTED = {"If", "Loop", "Scan", "NonZero", "Shape", "Size", "Range", "Tile"}
COMPUTED |= {"ConstantOfShape", "Expand", "Where", "Sin", "Cos", "Constant"}


def find_open(proto):
    """Return the tensors without a fixed shape, as ONNX itself infers them."""
    graph = onnx.shape_inference.infer_shapes(
        proto, strict_mode=True, data_prop=True
    ).graph
    fixed = {
        tensor.name
        for tensor in (*graph.value_info, *graph.input, *graph.output)
        if all(side.dim_value > 0 for side in tensor.type.tensor_type.shape.dim)
    }
    made = [name for node in graph.node for name in node.output]
    return [name for name in ("images", *made) if name not in fixed]


KINDS = {
    "map": {"pooling": "map", "representation_size": 10},
    "max": {"pooling": "max", "position_embedding": "learned_2d"},
    "sines": {"position_embedding": "sincos_2d", "dropout_rate": 0.1},
    "hybrid": {"stem_stages": (1, 1), "patch_size": 1, "image_size": (32, 32)},
    "softmax": {"classifier_activation": "softmax"},
    **LATER_KINDS,
}


@pytest.mark.slow(60)
@pytest.mark.parametrize("kind", KINDS)
def test_fixed_shapes_and_only_constants(kind, tmp_path):
    model = make_model(depth=1, **KINDS[kind])
    images = noise(3, *model.input_shape[1:])
    path = tmp_path / "model.onnx"
    report = export_file(model, path, images, onnx_batch_size=2)
    assert report.num_images == 3 and report.max_difference <= 1e-5
    proto = onnx.load(path)
    assert find_open(proto) == []
    assert not {node.op_type for node in proto.graph.node} & COMPUTED
    stored = {x.name for x in proto.graph.initializer}
    for node in proto.graph.node:  # Nothing is left to compute beforehand.
        assert not stored.issuperset(filter(None, node.input)), node
    session = onnxruntime.InferenceSession(path)
    with pytest.raises(Exception, match="images"):
        session.run(None, {"images": images})
    expected = model.predict_on_batch(images[:2])
    (answer,) = session.run(None, {"images": images[:2]})
    np.testing.assert_allclose(answer, expected, atol=1e-5)


def test_shapes_are_open_and_angles_computed_without_it():
    """So the test above would see them."""
    proto = exporting.to_onnx(make_model(depth=1, **LATER_KINDS["mixed"]))
    assert "images" in find_open(proto)
    assert {node.op_type for node in proto.graph.node} >= {"Sin", "Cos", "Tile"}


def test_a_file_that_the_checker_refuses_is_not_kept(
    exact, images, tmp_path, monkeypatch
):
    """Without our handler, tf2onnx silently writes an invalid file."""
    monkeypatch.setattr(
        exporting, "convert_erfc", lambda graph, node, name, arguments: None
    )
    with pytest.raises(onnx.checker.ValidationError, match="Erfc"):
        export_file(exact, tmp_path / "model.onnx", images)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_too_large_is_refused(
    model, images, tmp_path, monkeypatch
):
    monkeypatch.setattr(exporting, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="`model` must be below 2 GiB"):
        export_file(model, tmp_path / "model.onnx", images)


def test_pixels_are_normalised_in_the_file(shallow, images, tmp_path):
    report = export_file(
        shallow,
        tmp_path / "model.onnx",
        (images + 1) / 2,
        serving=Serving(preprocessing=Preprocessing("zero_one")),
        onnx_takes_pixels=True,
    )
    assert not report.faults
    session = onnxruntime.InferenceSession(report.path)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (5, 32, 24, 3), "uint8")
    (answer,) = session.run(None, {"images": pixels})
    expected = shallow.predict_on_batch(pixels / np.float32(255))
    np.testing.assert_allclose(answer, expected, atol=1e-5)


# OpenVINO.


def test_two_files_hold_the_weights_once_in_float32(bundle, model):
    report = bundle["openvino"]
    files = list(pathlib.Path(report.path).parent.iterdir())
    assert sorted(file.name for file in files) == ["model.bin", "model.xml"]
    weights = pathlib.Path(report.path).with_suffix(".bin").stat().st_size
    assert 4 * model.count_params() <= weights <= 4.2 * model.count_params()


def test_both_files_must_be_new(model, images, tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match="not exist yet.*model.bin"):
        export_file(model, tmp_path / "model.xml", images)


def test_full_disk_leaves_nothing_behind(model, images, tmp_path, monkeypatch):
    """The error of OpenVINO itself is only "iostream error"."""

    def fail(*args, **options):
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(openvino, "save_model", fail)
    for free, error in ((1000, OSError), (2**40, RuntimeError)):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda _, it=usage: it)
        with pytest.raises(error, match="No space left|iostream"):
            export_file(model, tmp_path / "model.xml", images)
        assert not list(tmp_path.iterdir())
