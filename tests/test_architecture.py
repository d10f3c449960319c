"""The structure of the code: imports between files, and docstrings."""

import ast
import functools
import importlib
import inspect
import os
import pathlib
import re
import textwrap

import pytest

import keras_vit
from tests import commands

ROOT = pathlib.Path(__file__).parents[1]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


SOURCES = {
    module_name(path): path
    for package in ("keras_vit", "trainers")
    for path in sorted((ROOT / package).rglob("*.py"))
}
of_keras_vit = [name for name in SOURCES if name.startswith("keras_vit")]
# PyTorch is in an environment of its own.
importable = [n for n in of_keras_vit if not n.endswith("kernels_torch")]


@functools.cache
def tree_of(name):
    return ast.parse(SOURCES[name].read_text(encoding="utf-8"))


def imported(nodes):
    """Return the modules that import statements among `nodes` name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {n if n in SOURCES else node.module for n in names}
    return found


def own_imports(name):
    """Return the modules of this project that a module imports anywhere."""
    return imported(ast.walk(tree_of(name))) & set(SOURCES)


def folder(name):
    """Return the folder of a module; a file beside the folders is its own."""
    return ".".join(name.split(".")[:2])


def order(needs):
    """Raise unless the graph of `needs` has an order."""
    needs = dict(needs)
    while needs:
        free = [name for name in needs if not needs[name] & set(needs)]
        assert free, f"a circle among {sorted(needs)}"
        for name in free:
            del needs[name]


def test_folders_import_one_way():
    needs = {folder(name): set() for name in SOURCES}
    for name in SOURCES:
        needs[folder(name)] |= {folder(target) for target in own_imports(name)}
    order({name: targets - {name} for name, targets in needs.items()})


def test_the_package_never_imports_the_trainers():
    wrong = {
        name: targets
        for name in of_keras_vit
        if (targets := {n for n in own_imports(name) if "trainers" in n})
    }
    assert not wrong


def test_no_modules_import_each_other():
    order(
        {
            name: own_imports(name) - {name}
            for name in SOURCES
            if SOURCES[name].name != "__init__.py"
        }
    )


def test_pyplot_is_never_imported():
    # It would choose a window system for the whole process.
    assert not [
        name
        for name in SOURCES
        if any("pyplot" in n for n in imported(ast.walk(tree_of(name))))
    ]


def test_private_modules_of_keras_are_not_used():
    wrong = [
        f"{name} imports {module}"
        for name in of_keras_vit
        for module in imported(ast.walk(tree_of(name)))
        if module.startswith("keras.src")
    ]
    assert not wrong


def test_no_assert_statements():
    # They vanish under `python -O`.
    asserts = [
        f"{SOURCES[name]}:{node.lineno}"
        for name in SOURCES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts


@pytest.mark.slow
def test_works_without_tensorflow():
    pytest.importorskip("jax")
    program = """
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "tensorflow":
                    raise ModuleNotFoundError(f"No module named {name!r}")

        sys.meta_path.insert(0, Blocker())
        import numpy as np
        import keras
        import keras_vit

        config = keras_vit.ViTConfig(
            12, 1, 24, 3, patch_size=4, image_size=8, num_classes=5
        )
        model = keras_vit.VisionTransformer(config)
        images = keras_vit.preprocess_input(np.zeros((2, 8, 8, 3)))
        print(tuple(model(images).shape), tuple(
            model.with_image_size(12)(np.zeros((2, 12, 12, 3))).shape
        ))
        assert keras.backend.backend() == "jax"
        assert not {"tensorflow", "starlette", "grpc"} & set(sys.modules)
    """
    result = commands.run_anew(
        ["-c", textwrap.dedent(program)],
        {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "(2, 5) (2, 5)"


def test_public_names_exist_and_are_sorted():
    for name in importable:
        module = importlib.import_module(name)
        names = list(getattr(module, "__all__", ()))
        assert len(names) == len(set(names)), name
        for public in names:
            assert hasattr(module, public), f"{name}.{public}"


def documented(docstring, section):
    """Return the names a section of a docstring lists."""
    pattern = rf"^{section}:[^\n]*\n(.*?)(?=^\S|\Z)"
    found = re.search(pattern, inspect.cleandoc(docstring), re.M | re.S)
    if not found:
        return []
    entries = re.findall(r"^    ([\w*]+(?:, \w+)*): ", found[1] + " ", re.M)
    entries += re.findall(r"^    ([\w*]+(?:, \w+)*):$", found[1], re.M)
    return [n.strip("* ") for entry in entries for n in entry.split(",")]


def parameters(member):
    """Return the parameters of a function or of a class's own constructor."""
    if inspect.isclass(member):
        constructor = "__new__" if issubclass(member, tuple) else "__init__"
        if constructor not in vars(member):
            return []
        member = vars(member)[constructor]
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in inspect.signature(member).parameters.items()
        if name not in ("self", "_cls") and parameter.kind not in skipped
    ]


def documented_members():
    """Yield the public functions, classes and methods of the package."""
    for module_name in importable:
        module = importlib.import_module(module_name)
        for name, member in vars(module).items():
            if (
                name.startswith("_")
                or getattr(member, "__module__", None) != module_name
                or not (inspect.isclass(member) or inspect.isfunction(member))
            ):
                continue
            yield f"{module_name}.{name}", member
            if inspect.isclass(member):
                for key, method in vars(member).items():
                    if inspect.isfunction(method) and key[0] != "_":
                        yield f"{module_name}.{name}.{key}", method


MEMBERS = dict(documented_members())


def test_documented_arguments_exist():
    """And are documented in the order of the signature."""
    wrong = {}
    for name, member in MEMBERS.items():
        if "<locals>" in member.__qualname__:
            continue  # Documented by its template.
        arguments = documented(member.__doc__ or "", "Args")
        known = parameters(member)
        if inspect.isfunction(member):
            known = list(inspect.signature(member).parameters)
        if arguments != [each for each in known if each in arguments]:
            wrong[name] = arguments
    assert not wrong


PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (
        keras_vit,
        keras_vit.analysis,
        keras_vit.layers,
        keras_vit.models,
        keras_vit.weights,
    )
    for name in module.__all__
    if callable(getattr(module, name))
}


def test_every_argument_of_a_public_name_is_documented():
    missing = [
        f"{name}: {argument}"
        for name, member in PUBLIC.items()
        for argument in parameters(member)
        if argument
        not in documented(member.__doc__, "Args")
        + documented(member.__doc__, "Shapes")
    ]
    assert not missing


def test_the_parser_of_docstrings_sees_what_is_missing():
    text = """Do.

    Shapes:
        x: (B,). returns: (B,).

    Args:
        first, second: Both.
        third: One that takes
            two lines: really.

    Returns:
        What: ever.
    """
    assert documented(text, "Args") == ["first", "second", "third"]
    assert documented(text, "Shapes") == ["x"]
