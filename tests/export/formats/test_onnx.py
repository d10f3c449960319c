import resource

import numpy as np
import pytest

import keras_vit.export.formats.onnx
from keras_vit.export.formats.onnx import export_onnx, to_onnx
from tests.export.conftest import make_model
from tests.tiny import noise

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")


@pytest.fixture(scope="module")
def exact():
    """Return a model whose GELU becomes an operation tf2onnx lacks."""
    return make_model(activation="exact")


@pytest.fixture(scope="module")
def report(exact, images, tmp_path_factory):
    return export_onnx(
        exact, tmp_path_factory.mktemp("onnx") / "model.onnx", images
    )


def answer(path, images):
    session = onnxruntime.InferenceSession(str(path))
    (answers,) = session.run(["logits"], {"images": images})
    return answers


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_onnx_answers_as_keras(report, exact, images, batch_size):
    assert report.kind == "onnx" and report.max_difference <= 1e-5
    some = images[:batch_size]
    np.testing.assert_allclose(
        answer(report.path, some), exact.predict_on_batch(some), atol=1e-5
    )


def test_onnx_says_what_goes_in_and_out(report):
    graph = onnx.load(report.path).graph
    found = {
        tensor.name: [
            side.dim_param or side.dim_value
            for side in tensor.type.tensor_type.shape.dim
        ]
        for tensor in (*graph.input, *graph.output)
    }
    assert found == {"images": ["batch", 32, 24, 3], "logits": ["batch", 7]}


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
    proto = to_onnx(exact)
    assert captured == [[]]
    sizes = [np.prod(x.dims, dtype=int) for x in proto.graph.initializer]
    # Shapes and other constants are there as well.
    assert 0 <= sum(sizes) - exact.count_params() < 200


def test_other_conversions_do_not_meet_our_operation(report):
    from tf2onnx.handler import tf_op

    assert "Erf" in tf_op.create_mapping(15, None)
    assert "Erfc" not in tf_op.create_mapping(15, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices",
    [
        {"pooling": "map", "representation_size": 10},
        {"position_embedding": "learned_2d", "pooling": "max"},
        {"position_embedding": "sincos_2d", "dropout_rate": 0.1},
        {"stem_stages": (1, 1), "patch_size": 1, "image_size": (32, 32)},
        {"classifier_activation": "softmax"},
    ],
    ids=str,
)
def test_every_choice_agrees(choices, tmp_path):
    model = make_model(depth=1, **choices)
    images = noise(3, *model.input_shape[1:])
    report = export_onnx(model, tmp_path / "model.onnx", images)
    assert report.top1_agreement == 1


def test_a_file_that_the_checker_refuses_is_not_kept(
    exact, images, tmp_path, monkeypatch
):
    """Without our handler, tf2onnx silently writes an invalid file."""
    monkeypatch.setattr(
        keras_vit.export.formats.onnx,
        "convert_erfc",
        lambda graph, node, name, arguments: None,
    )
    with pytest.raises(onnx.checker.ValidationError, match="Erfc"):
        export_onnx(exact, tmp_path / "model.onnx", images)
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_nothing_behind(
    report, model, images, tmp_path, monkeypatch
):
    """Files must not grow here beyond 10 kB, as if that was all the space."""
    proto = onnx.load(report.path)
    monkeypatch.setattr(
        keras_vit.export.formats.onnx, "to_onnx", lambda *_: proto
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            export_onnx(model, tmp_path / "model.onnx", images)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_named(model, images, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    monkeypatch.setattr(keras_vit.export.formats.onnx, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="below 2 GiB.*Received: .* weights"):
        export_onnx(model, path, images)
