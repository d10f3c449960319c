import os
import re

import keras
import pytest

from keras_vit.keras_files import load_keras


def a_model():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def test_the_model_of_a_file_is_read_without_its_optimizer(tmp_path):
    model = a_model()
    model.compile("sgd", "mse")
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = load_keras(path)
    assert not loaded.compiled
    kernel, bias = loaded.get_weights()
    assert (kernel == model.get_weights()[0]).all() and bias == [0]


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_a_damaged_file_is_named(content, tmp_path):
    path = tmp_path / "model.keras"
    if content is None:
        a_model().save(path)
        content = path.read_bytes()[:-50]
    path.write_bytes(content)
    message = re.escape(
        f"{path} cannot be read: it is not a complete .keras file"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        load_keras(str(path))


def test_a_file_that_may_not_be_read_is_not_called_damaged(
    tmp_path, monkeypatch
):
    path = tmp_path / "model.keras"
    a_model().save(path)

    def refuse(path, *arguments, **options):
        raise PermissionError(13, os.strerror(13), path)

    monkeypatch.setattr("builtins.open", refuse)  # Root may read every file.
    with pytest.raises(PermissionError, match="Permission denied.*model.keras"):
        load_keras(str(path))
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="none.keras"):
        load_keras(str(tmp_path / "none.keras"))
