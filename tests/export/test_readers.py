"""A SavedModel read by others than the program that wrote it."""

import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.export import ExportOptions, Serving, export_saved_model
from keras_vit.export.contract import ExportRequest
from keras_vit.export.formats.saved_model import (
    expected_records,
    make_endpoints,
)
from keras_vit.serving.tf_serving import WARMUP_FILE, read_warmup
from tests import commands
from tests.export.conftest import make_model

ROOT = pathlib.Path(__file__).parents[2]
TENSORFLOW = pathlib.Path(tf.__file__).parent
LIBRARY = TENSORFLOW / "libtensorflow_cc.so.2"
SERVING = Serving(
    class_names=["ant", "bee", "cat", "dog", "eel", "fox", "gnu"],
    top=3,
    use_attention=True,
)
ARRAY_SIGNATURES = ["attention", "features", "serve_uint8", "serving_default"]


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(1)
    return random.uniform(-1, 1, (8, 32, 24, 3)).astype("float32")


@pytest.fixture(scope="module")
def folder(model, images, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "1"
    export_saved_model(model, path, images, SERVING)
    return path


@pytest.fixture(scope="module")
def questions(model, images):
    """Return a request for each signature, with the outputs of Keras."""
    request = ExportRequest(model, images, ExportOptions(SERVING))
    endpoints = make_endpoints(model, request.serving)
    records = expected_records(request, endpoints)
    return {question.signature: question for question in records}


@pytest.fixture(scope="module")
def definitions(folder):
    """Return the SignatureDefs by name, as the file has them."""
    content = (folder / "saved_model.pb").read_bytes()
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    assert list(graph.meta_info_def.tags) == ["serve"]
    definitions = dict(graph.signature_def)
    del definitions["__saved_model_init_op"]
    return definitions


def assert_same(answers, expected):
    assert answers.keys() == expected.keys()
    for name, values in expected.items():
        if "labels" in answers:
            values = values[:, : SERVING.top]  # Keras names all.
        if values.dtype == object:
            np.testing.assert_array_equal(answers[name], values)
        else:
            np.testing.assert_allclose(answers[name], values, atol=1e-5)


def test_signatures_are_what_a_server_needs(definitions):
    names = {
        name: (
            {k: (v.dtype, shape_of(v)) for k, v in signature.inputs.items()},
            {k: (v.dtype, shape_of(v)) for k, v in signature.outputs.items()},
        )
        for name, signature in definitions.items()
    }
    f, u, s = tf.float32, tf.uint8, tf.string
    shape = (-1, 32, 24, 3)
    assert names == {
        "serving_default": ({"images": (f, shape)}, {"logits": (f, (-1, 7))}),
        "serve_uint8": ({"images": (u, shape)}, {"logits": (f, (-1, 7))}),
        "serve_bytes": (
            {"image_bytes": (s, (-1,))},
            {"labels": (s, (-1, 3)), "probabilities": (f, (-1, 3))},
        ),
        "features": ({"images": (f, shape)}, {"features": (f, (-1, 24))}),
        "attention": ({"images": (f, shape)}, {"rollout": (f, (-1, 4, 3))}),
        "attention_bytes": (
            {"image_bytes": (s, (-1,))},
            {"rollout": (f, (-1, 4, 3)), "images": (f, shape)},
        ),
    }
    methods = {signature.method_name for signature in definitions.values()}
    assert methods == {"tensorflow/serving/predict"}


def shape_of(tensor):
    return tuple(dim.size for dim in tensor.tensor_shape.dim)


def test_weights_are_stored_once(folder, model):
    prefix = str(folder / "variables" / "variables")
    assert pathlib.Path(f"{prefix}.data-00000-of-00001").stat().st_size <= (
        1.1 * 4 * model.count_params()
    )
    names = [name for name, _ in tf.train.list_variables(prefix)]
    values = [name for name in names if name.endswith("VARIABLE_VALUE")]
    assert len(values) == len(model.weights)
    assert not any(name.startswith("variables/") for name in names)


@pytest.mark.slow
def test_in_a_process_without_this_package(
    folder, questions, tmp_path, subprocess_environment
):
    """All signatures, batches of 1, 3 and 8."""
    for name, question in questions.items():
        ((_, values),) = question.inputs.items()
        # Bytes as numbers: NumPy's own files of objects are pickles.
        if values.dtype == object:
            for number, content in enumerate(values):
                (tmp_path / f"{number}.png").write_bytes(content)
        else:
            np.save(tmp_path / f"{name}.npy", values)
    program = textwrap.dedent(
        f"""
        import pathlib, sys
        sys.modules["keras_vit"] = None  # Importing it would fail.
        import numpy as np, tensorflow as tf
        model = tf.saved_model.load({str(folder)!r})
        for name, serve in model.signatures.items():
            if name.endswith("_bytes"):
                files = [pathlib.Path(f"{{i}}.png") for i in range(8)]
                files = [file.read_bytes() for file in files]
                key, values = "image_bytes", np.array(files, object)
            else:
                key, values = "images", np.load(f"{{name}}.npy")
            for size in (1, 3, 8):
                answers = serve(**{{key: tf.constant(values[:size])}})
                answers = {{k: v.numpy() for k, v in answers.items()}}
                if "labels" in answers:
                    answers["labels"] = answers["labels"].astype("S")
                np.savez(f"{{name}}_{{size}}.npz", **answers)
        """
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**subprocess_environment, "PYTHONPATH": ""},
        check=True,
    )
    for name, question in questions.items():
        for size in (1, 3, 8):
            with np.load(tmp_path / f"{name}_{size}.npz") as file:
                answers = dict(file)
            if "labels" in answers:
                answers["labels"] = answers["labels"].astype(object)
            expected = {k: v[:size] for k, v in question.outputs.items()}
            assert_same(answers, expected)


def run_c_api(folder, definition, images, tmp_path):
    """Return the finished process, and its answer if it has one."""
    (given,) = definition.inputs.values()
    (wanted,) = definition.outputs.values()
    np.save(tmp_path / "in.npy", images)
    process = subprocess.run(
        [
            sys.executable,
            str(pathlib.Path(__file__).parent / "c_api.py"),
            str(LIBRARY),
            str(folder),
            given.name,
            wanted.name,
            str(tmp_path / "in.npy"),
            str(tmp_path / "out.npy"),
        ],
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": ""},
        capture_output=True,
        text=True,
    )
    answer = None if process.returncode else np.load(tmp_path / "out.npy")
    return process, answer


@pytest.mark.skipif(not LIBRARY.exists(), reason="no shared library")
class TestCFunctions:
    @pytest.mark.parametrize("name", ARRAY_SIGNATURES)
    def test_answer_as_keras(
        self, name, folder, questions, definitions, tmp_path
    ):
        ((_, values),) = questions[name].inputs.items()
        ((_, expected),) = questions[name].outputs.items()
        process, answer = run_c_api(
            folder, definitions[name], values[:3], tmp_path
        )
        assert process.returncode == 0, process.stderr
        np.testing.assert_allclose(answer, expected[:3], atol=1e-5)

    @pytest.mark.parametrize("name", ARRAY_SIGNATURES)
    def test_refuse_another_size(
        self, name, folder, questions, definitions, tmp_path
    ):
        """Four images of a quarter have as many pixels as one."""
        ((_, values),) = questions[name].inputs.items()
        quarters = np.zeros((4, 16, 12, 3), values.dtype)
        process, _ = run_c_api(folder, definitions[name], quarters, tmp_path)
        assert process.returncode == 3  # TF_INVALID_ARGUMENT
        assert "16,12" in process.stderr


@pytest.mark.slow
def test_openvino(folder, questions):
    openvino = pytest.importorskip("openvino")
    question = questions["serving_default"]
    core = openvino.Core()
    # Unlike `openvino.convert_model`, this reports nothing to its makers.
    graph = core.read_model(folder)
    read = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for size in (1, 3, 8):
        (answer,) = read(question.inputs["images"][:size]).values()
        np.testing.assert_allclose(
            answer, question.outputs["logits"][:size], atol=1e-5
        )


@pytest.mark.slow
def test_saved_model_cli(folder, questions, tmp_path, subprocess_environment):
    question = questions["serving_default"]
    np.save(tmp_path / "images.npy", question.inputs["images"])
    command = ["-m", "tensorflow.python.tools.saved_model_cli"]
    where = ["--dir", str(folder), "--tag_set", "serve"]
    where += ["--signature_def", "serving_default"]
    environment = subprocess_environment
    shown = commands.run([*command, "show", *where], environment).stdout
    assert "inputs['images']" in shown and "outputs['logits']" in shown
    words = ["--inputs", f"images={tmp_path / 'images.npy'}"]
    words += ["--outdir", tmp_path]
    result = commands.run([*command, "run", *where, *words], environment)
    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "logits.npy"), question.outputs["logits"], atol=1e-5
    )


def test_warm_up_asks_every_signature_and_knows_the_answer(folder, questions):
    loaded = tf.saved_model.load(str(folder)).signatures
    records = read_warmup(folder / WARMUP_FILE)
    assert [record.signature for record in records] == list(questions)
    for record in records:
        inputs = {k: tf.constant(v) for k, v in record.inputs.items()}
        answers = loaded[record.signature](**inputs)
        assert_same({k: v.numpy() for k, v in answers.items()}, record.outputs)
        expected = questions[record.signature].outputs
        assert_same(record.outputs, {k: v[:1] for k, v in expected.items()})
