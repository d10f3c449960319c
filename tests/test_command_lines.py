import pytest

from keras_vit.command_lines import LAYOUT_TITLES, PARSERS
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.saving import WRITERS
from tests import commands


def test_the_layouts_are_those_that_can_be_written():
    assert LAYOUT_TITLES == {name: LAYOUTS[name].title for name in WRITERS}


@pytest.mark.parametrize(
    "module, words, code, answer",
    [
        ("convert", ["a", "b", "--layot=timm"], 2, "required: --layout"),
        (
            "convert",
            ["a", "b", "--layout=tim"],
            2,
            "). Did you mean 'timm'?\n",
        ),
        ("convert", ["a", "b", "--layout=flax"], 2, "invalid choice: 'flax'"),
        (
            "inspect",
            ["m", "x", "--out=d", "--formt=svg"],
            2,
            "there is no argument --formt=svg. Did you mean '--format'?",
        ),
        ("serve", ["d", "x", "--verbose"], 2, "no argument x --verbose\n"),
        ("inspect_checkpoint", [], 2, "required: path"),
        (
            "serve",
            ["d", "--port=70000"],
            2,
            "--port: must be from 0 to 65535, not '70000'",
        ),
        ("convert", ["--help"], 0, "huggingface: Hugging Face"),
    ],
)
def test_a_command_answers_before_it_imports_keras(
    subprocess_environment, module, words, code, answer
):
    result = commands.run_anew(
        ["-X", "importtime", "-m", f"keras_vit.{module}", *words],
        subprocess_environment,
        timeout=30,
    )
    assert result.returncode == code
    assert answer in result.stdout + result.stderr
    assert "keras_vit.command_lines" in result.stderr
    assert not {"keras", "tensorflow"} & {
        line.split("|")[-1].strip() for line in result.stderr.splitlines()
    }


@pytest.mark.parametrize("module", PARSERS)
def test_a_command_is_called_by_its_module(module):
    assert PARSERS[module]().prog == f"python -m {module}"
