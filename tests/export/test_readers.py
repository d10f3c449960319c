"""A SavedModel read by others than the program that wrote it."""

import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.export import ExportOptions, Serving
from keras_vit.export.contract import ExportRequest
from keras_vit.export.formats.saved_model import (
    make_endpoints,
    make_questions,
    make_reader,
)
from keras_vit.serving.tf_serving import WARMUP_FILE, read_warmup
from tests.export.conftest import NAMES

TOP = 3
ARRAY_SIGNATURES = ["attention", "features", "serve_uint8", "serving_default"]


@pytest.fixture(scope="module")
def folder(bundle):
    return pathlib.Path(bundle["saved_model"].path)


@pytest.fixture(scope="module")
def questions(model, images):
    """Return a request for each signature, with the outputs of Keras."""
    serving = Serving(class_names=NAMES, top=TOP, use_attention=True)
    request = ExportRequest(model, images[:8], ExportOptions(serving))
    endpoints = make_endpoints(model, request.serving)
    found = make_questions(request, endpoints, make_reader(request), False)
    return {question.signature: question for question in found}


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
            values = values[:, :TOP]  # Keras names all.
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
        values = question.inputs
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
            expected = {k: v[:size] for k, v in question.expected.items()}
            assert_same(answers, expected)


def test_in_a_session_as_servers_and_programs_in_c_load_it(folder, questions):
    """By the SignatureDefs alone; batches of 1 and 3, and no other size."""
    v1 = tf.compat.v1
    with v1.Session(graph=tf.Graph()) as session:
        graph = v1.saved_model.loader.load(session, ["serve"], str(folder))
        for name in ARRAY_SIGNATURES:
            definition, question = graph.signature_def[name], questions[name]
            [given] = definition.inputs.values()
            [wanted] = definition.outputs.values()
            [expected] = question.expected.values()
            for size in (1, 3):
                values = {given.name: question.inputs[:size]}
                found = session.run(wanted.name, values)
                np.testing.assert_allclose(found, expected[:size], atol=1e-5)
            # Four images of a quarter have as many pixels as one.
            quarters = np.zeros((4, 16, 12, 3), question.inputs.dtype)
            words = "16,12|16, 12"
            with pytest.raises((ValueError, tf.errors.OpError), match=words):
                session.run(wanted.name, {given.name: quarters})


def test_warm_up_asks_every_signature_and_knows_the_answer(folder, questions):
    loaded = tf.saved_model.load(str(folder)).signatures
    records = read_warmup(folder / WARMUP_FILE)
    assert [record.signature for record in records] == list(questions)
    for record in records:
        inputs = {k: tf.constant(v) for k, v in record.inputs.items()}
        answers = loaded[record.signature](**inputs)
        assert_same({k: v.numpy() for k, v in answers.items()}, record.outputs)
        expected = questions[record.signature].expected
        assert_same(record.outputs, {k: v[:1] for k, v in expected.items()})
