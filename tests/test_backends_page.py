import pathlib
import re

import keras
import pytest

import keras_vit

PAGE = pathlib.Path(keras_vit.__file__).parents[1] / "docs/backends.md"
# What a section needs; the others run on every backend.
BACKENDS = {"PyTorch": "torch", "JAX on several devices": "jax"}


def sections():
    """Return the heading and the Python code of each section with code."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
        if blocks:
            found.append((section.partition("\n")[0], blocks))
    return found


@pytest.fixture(autouse=True)
def settings_as_before():
    yield
    keras.config.enable_flash_attention()
    keras.distribution.set_distribution(None)


def test_each_backend_has_a_section():
    assert BACKENDS.keys() < dict(sections()).keys()


@pytest.mark.parametrize(
    "heading, blocks", sections(), ids=lambda x: str(x)[:9]
)
def test_the_code_runs(heading, blocks):
    backend = BACKENDS.get(heading, keras.backend.backend())
    if backend != keras.backend.backend():
        pytest.skip(f"The code of this section is for {backend}")
    names = {}
    for code in blocks:
        exec(compile(code, PAGE.name, "exec"), names)
    assert "keras" in names or names["loss"].isfinite()
