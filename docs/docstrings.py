"""How the sections of our docstrings become those of the reference.

A Griffe extension, named in mkdocs.yml. Griffe knows `Args`, `Returns` and
`Raises`; what it does not know is rewritten as Markdown before it is parsed.
"""

import inspect
import re
import textwrap

import griffe

SECTION = re.compile(
    r"^(Shapes|Example|Reference|Differs):[ \t]*(.*(?:\n(?: .*|(?=\n)))*)",
    re.MULTILINE,
)
ENTRY = re.compile(r"(?:^|(?<=\. )|\n)((?:\w+, )*\w+): ", re.MULTILINE)
ARXIV = re.compile(r"\barXiv:(\d{4}\.\d{4,5})")


class Sections(griffe.Extension):
    """Rewrites docstrings, and gives the builders theirs."""

    def on_instance(self, *, obj: griffe.Object, **kwargs):
        if obj.docstring:
            obj.docstring.value = rewrite(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs):
        if pkg.name != "keras_vit":
            return
        from keras_vit.models.builders import BUILDERS

        module = pkg["models.builders"]
        for name, function in BUILDERS.items():
            module.set_member(name, describe(name, function))


def describe(name: str, function) -> griffe.Function:
    """Return what Griffe would find if a function were not made by another.

    Args:
        name: What it is called.
        function: The function.
    """
    parameters = [
        griffe.Parameter(
            parameter.name,
            kind=griffe.ParameterKind(parameter.kind.description),
            annotation=inspect.formatannotation(parameter.annotation)
            if parameter.annotation is not parameter.empty
            else None,
            default=repr(parameter.default)
            if parameter.default is not parameter.empty
            else None,
        )
        for parameter in inspect.signature(function).parameters.values()
    ]
    return griffe.Function(
        name,
        parameters=griffe.Parameters(*parameters),
        returns="keras.Model",
        docstring=griffe.Docstring(
            rewrite(inspect.cleandoc(function.__doc__)), lineno=1
        ),
    )


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
