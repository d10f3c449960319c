"""How the sections of our docstrings become those of the reference.

A Griffe extension, named in mkdocs.yml. Griffe knows `Args`, `Returns` and
`Raises`; what it does not know is rewritten as Markdown before it is parsed.
"""

import inspect
import json
import re
import subprocess
import sys
import textwrap

import griffe

SECTION = re.compile(
    r"^(Shapes|Example|Reference|Differs):[ \t]*(.*(?:\n(?: .*|(?=\n)))*)",
    re.MULTILINE,
)
ENTRY = re.compile(r"(?:^|(?<=\. )|\n)((?:\w+, )*\w+): ", re.MULTILINE)
ARXIV = re.compile(r"\barXiv:(\d{4}\.\d{4,5})")


class Sections(griffe.Extension):
    """Rewrites docstrings and documents generated builders and flags."""

    def on_instance(self, *, obj: griffe.Object, **kwargs):
        if obj.docstring:
            obj.docstring.value = rewrite(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs):
        if pkg.name == "keras_vit":
            module = pkg["applications"]
            for name, function in describe_builders().items():
                module.set_member(name, function)
        if pkg.name == "trainers":
            document_fields(find_class(pkg, "Recipe"))


def find_class(module: griffe.Module, name: str) -> griffe.Class | None:
    """Return the class of this name, wherever it is in the package.

    Args:
        module: The package or module to search.
        name: Name of the class.
    """
    if name in module.classes and not module.members[name].is_alias:
        return module.classes[name]
    found = (find_class(part, name) for part in module.modules.values())
    return next(filter(None, found), None)


def document_fields(recipe: griffe.Class):
    """List the fields of Recipe as arguments, with the help of their flags.

    Args:
        recipe: The class, whose docstring is extended.
    """
    lines = ["", "", "Args:"]
    path = f"{recipe.module.path}:{recipe.name}"
    for name, default, text in json.loads(run(print_fields, path)):
        recipe.attributes[name].value = default
        lines.append(f"    {name}: {text}")
    recipe.docstring.value += "\n".join(lines)


def print_fields(path: str):
    """Print names, defaults and help texts of a dataclass, as JSON."""
    import dataclasses
    import json
    import pkgutil

    fields = dataclasses.fields(pkgutil.resolve_name(path))
    rows = [
        (
            field.name,
            repr(field.default),
            field.metadata.get("help") or "A note.",
        )
        for field in fields
    ]
    print(json.dumps(rows))


def run(function, *arguments) -> str:
    """Call a function in another process; return the last line it prints.

    What importing Keras and TensorFlow prints is then no part of the build.

    Args:
        function: Needs nothing but what it imports itself.
        arguments: Strings.
    """
    code = inspect.getsource(function)
    code += f"\n{function.__name__}(*{arguments!r})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    return result.stdout.splitlines()[-1]


def describe_builders() -> dict[str, griffe.Function]:
    """Return the builders, which are made by a function and not written."""
    return {
        name: griffe.Function(
            name,
            parameters=griffe.Parameters(
                *(
                    griffe.Parameter(
                        parameter["name"],
                        kind=griffe.ParameterKind(parameter["kind"]),
                        annotation=parameter["annotation"],
                        default=parameter["default"],
                    )
                    for parameter in parameters
                )
            ),
            returns="keras.Model",
            docstring=griffe.Docstring(rewrite(docstring), lineno=1),
        )
        for name, docstring, parameters in json.loads(run(print_builders))
    }


def print_builders():
    """Print names, docstrings and parameters of the builders, as JSON."""
    import inspect
    import json

    from keras_vit.applications import BUILDERS

    def say(value):
        if value is inspect.Parameter.empty:
            return None
        return inspect.formatannotation(value)

    def describe(parameter):
        empty = parameter.default is parameter.empty
        return {
            "name": parameter.name,
            "kind": parameter.kind.description,
            "annotation": say(parameter.annotation),
            "default": None if empty else repr(parameter.default),
        }

    builders = [
        (
            name,
            inspect.getdoc(function),
            list(
                map(describe, inspect.signature(function).parameters.values())
            ),
        )
        for name, function in BUILDERS.items()
    ]
    print(json.dumps(builders))


def rewrite(text: str) -> str:
    """Return a docstring whose sections Griffe and Markdown understand.

    Args:
        text: The docstring, its indentation taken off.
    """
    text = SECTION.sub(
        lambda found: REWRITES[found[1]](clean(found[2])) + "\n", text
    )
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def clean(body: str) -> str:
    """Return the body of a section without its indentation."""
    first, _, rest = body.partition("\n")
    return f"{first.strip()}\n{textwrap.dedent(rest)}".strip()


def list_shapes(body: str) -> str:
    """Return an admonition with one point for each tensor."""
    names = list(ENTRY.finditer(body))
    points = []
    for found, after in zip(names, [*names[1:], None]):
        end = after.start() if after else len(body)
        what = " ".join(body[found.end() : end].split())
        points.append(f"- **{found[1]}**: {what}")
    return admonition("abstract", "Shapes", "\n".join(points) or body)


def show_example(body: str) -> str:
    """Return a section of code, a doctest or not."""
    language = "pycon" if ">>>" in body else "python"
    return admonition("example", "Example", f"```{language}\n{body}\n```")


def admonition(kind: str, title: str, body: str) -> str:
    """Return an admonition of Python-Markdown."""
    return f'!!! {kind} "{title}"\n\n{textwrap.indent(body, "    ")}'


REWRITES = {
    "Shapes": list_shapes,
    "Example": show_example,
    "Reference": lambda body: f"**Reference:** {body}",
    "Differs": lambda body: f"**Differs:** {body}",
}
