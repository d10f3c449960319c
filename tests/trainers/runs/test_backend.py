import pytest

from tests import commands


@pytest.mark.slow
def test_another_backend_is_refused_before_tensorflow_is_imported(
    subprocess_environment, tmp_path
):
    pytest.importorskip("jax")
    (tmp_path / "tensorflow.py").write_text("raise ModuleNotFoundError")
    environment = {**subprocess_environment, "KERAS_BACKEND": "jax"}
    del environment["TF_CPP_MIN_LOG_LEVEL"]
    result = commands.run_anew(["-m", "trainers.train"], environment, tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        "Error: the trainers need the TensorFlow backend of Keras. "
        "Received: KERAS_BACKEND=jax\n"
    )
