"""The structure of the code: imports between files, and docstrings."""

import ast
import functools
import importlib
import inspect
import os
import pathlib
import re
import sys
import textwrap

import pytest

import keras_vit
from tests import commands

ROOT = pathlib.Path(__file__).parents[1]

# Rank of each folder, and of each file beside them; imports go from a higher
# rank to a lower one, or stay inside one folder.
RANKS = {
    "keras_vit.version": 0,
    "keras_vit.errors": 0,
    "keras_vit.tables": 0,
    "keras_vit.arguments": 0,
    "keras_vit.progress": 0,
    "keras_vit.files": 1,
    "keras_vit.keras_files": 1,
    "keras_vit.packages": 1,
    "keras_vit.image_decoding": 1,
    "keras_vit.image_resizing": 1,
    "keras_vit.layer_decay": 1,
    "keras_vit.distribution": 1,
    "keras_vit.preprocessing": 1,
    "keras_vit.layers": 2,
    "keras_vit.models": 3,
    "keras_vit.pretraining": 4,
    "keras_vit.weights": 4,
    "keras_vit.analysis": 4,
    "keras_vit.serving": 4,
    "keras_vit.class_names": 5,
    "keras_vit.export": 5,
    "keras_vit.applications": 5,
    "keras_vit": 6,  # Its __init__, the public names, and the commands.
    "trainers.paths": 2,
    "trainers.distribute": 3,
    "trainers.pages": 3,
    "trainers.augment": 4,
    "trainers.optim": 4,
    "trainers.data": 5,
    "trainers.loop": 5,
    "trainers.recipes": 6,
    "trainers.help": 7,
    "trainers.models": 7,
    "trainers.runs": 8,
    "trainers.evaluation": 9,
    "trainers.export": 10,
    "trainers.sweeps": 10,
    "trainers": 11,  # The commands.
}
# What trains any model uses these parts of keras_vit alone: how to look up a
# name, to write a file, to show progress, to decode, resize and normalise an
# image, and the rates of layers.
KNOW_NO_VIT = (
    "trainers.paths",
    "trainers.pages",
    "trainers.distribute",
    "trainers.augment",
    "trainers.optim",
    "trainers.data",
    "trainers.loop",
)
# Of keras_vit everything else is optional or imported inside a function.
ALLOWED_PACKAGES = {
    "keras",
    "keras_vit",
    "ml_dtypes",
    "numpy",
    "safetensors",
    *sys.stdlib_module_names,
}
PLOTS = "keras_vit.analysis.plots"
EXTRA_PACKAGES = {
    "keras_vit.image_decoding": {
        "tensorflow"
    },  # Imported by export in a function.
    "keras_vit.image_resizing": {"tensorflow"},  # As well.
    # Imported by serving.client in a function.
    "keras_vit.serving.grpc": {
        "google",
        "grpc",
        "tensorflow",
        "tensorflow_serving",
    },
    "keras_vit.serving.rest": {"urllib3"},
    # Imported by keras_vit.serve in a function.
    "keras_vit.serving.server.answers": {"starlette"},
    "keras_vit.serving.server.app": {"starlette"},
    "keras_vit.serving.server.guard": {"starlette"},
    "keras_vit.serving.server.rest": {"starlette"},
    "keras_vit.serving.server.uvicorn_server": {"starlette", "uvicorn"},
}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


SOURCES = {
    module_name(path): path
    for package in ("keras_vit", "trainers")
    for path in sorted((ROOT / package).rglob("*.py"))
}
of_keras_vit = [name for name in SOURCES if name.startswith("keras_vit")]


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


def outside_functions(tree):
    """Yield the nodes that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
            yield from outside_functions(node)


def unit(name):
    """Return the key of RANKS for a module."""
    folder = ".".join(name.split(".")[:2])
    return folder if folder in RANKS else name.split(".")[0]


def test_imports_go_one_way():
    unranked = [name for name in SOURCES if unit(name) not in RANKS]
    assert not unranked, "give the new modules a rank"
    wrong = [
        f"{name} imports {target}"
        for name in SOURCES
        for target in own_imports(name) - {name}
        if unit(target) != unit(name)
        and RANKS[unit(target)] >= RANKS[unit(name)]
    ]
    assert not wrong


def test_what_trains_any_model_knows_no_vit():
    known = {
        "keras_vit.errors",
        "keras_vit.files",
        "keras_vit.image_decoding",
        "keras_vit.image_resizing",
        "keras_vit.layer_decay",
        "keras_vit.preprocessing",
        "keras_vit.progress",
        "keras_vit.tables",
    }
    wrong = [
        f"{name} imports {target}"
        for name in SOURCES
        if name.startswith(KNOW_NO_VIT)
        for target in own_imports(name)
        if "keras_vit" in target and unit(target) not in known
    ]
    assert not wrong


def test_no_modules_import_each_other():
    waiting = {
        name: own_imports(name) - {name}
        for name in SOURCES
        if SOURCES[name].name != "__init__.py"
    }
    while waiting:
        free = [n for n, needs in waiting.items() if not needs & set(waiting)]
        assert free, f"a circle among {sorted(waiting)}"
        for name in free:
            del waiting[name]


def test_the_package_needs_keras_and_numpy_only():
    wrong = []
    for name in of_keras_vit:
        allowed = ALLOWED_PACKAGES | EXTRA_PACKAGES.get(name, set())
        if name.startswith(PLOTS):
            allowed = allowed | {"matplotlib"}
        modules = imported(outside_functions(tree_of(name)))
        packages = {module.split(".")[0] for module in modules}
        wrong += [f"{name} imports {each}" for each in packages - allowed]
    assert not wrong


def test_matplotlib_is_imported_by_plots_alone_and_never_pyplot():
    for name in of_keras_vit:
        names = imported(outside_functions(tree_of(name)))
        found = {n for n in names if "matplotlib" in n or "plots" in n}
        assert not found or name.startswith(PLOTS), name
        assert not any("pyplot" in n for n in names)


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
        assert "tensorflow" not in sys.modules
    """
    result = commands.run_anew(
        ["-c", textwrap.dedent(program)],
        {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "(2, 5) (2, 5)"


def test_public_names_exist_and_are_sorted():
    for name in of_keras_vit:
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
    for module_name in of_keras_vit:
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
            known += [
                parameter.name
                for parameter in inspect.signature(member).parameters.values()
                if parameter.kind
                in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            ]
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
