"""Limits for the sizes of files and functions.

A line is any line of a file, blank ones and comments included. The body of a
function runs from its first statement after the docstring to its last line.
`-rP` prints the figures.
"""

import ast
import pathlib
import statistics

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("keras_vit", "trainers", "benchmarks")
MOST_LINES = 300
MOST_LINES_OF_THE_MEDIAN = 120
MOST_LINES_OF_A_BODY = 40
MOST_LINES_OF_A_CALL = 15


def read_sources(*folders):
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in folders
        for pattern in ("*.py", "*.js")
        for path in sorted((ROOT / folder).rglob(pattern))
    }


SOURCES = read_sources(*PACKAGES)
SOURCES_AND_SCRIPTS = SOURCES | read_sources("docs")


def count_lines(text):
    return text.count("\n")


def count_body_lines(function):
    """Return the lines of a function without its signature and docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def functions(text):
    """Yield (name, lines of the body) of all functions of a source text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, count_body_lines(node)


def test_no_file_is_long():
    lines = {
        name: count_lines(text) for name, text in SOURCES_AND_SCRIPTS.items()
    }
    longest = max(lines, key=lines.get)
    print(f"longest file: {longest}, {lines[longest]} lines")
    assert not {n: count for n, count in lines.items() if count > MOST_LINES}


def test_no_function_is_long():
    bodies = [
        (lines, f"{name}: {function}")
        for name, text in SOURCES_AND_SCRIPTS.items()
        if name.endswith(".py")
        for function, lines in functions(text)
    ]
    lines, longest = max(bodies)
    print(f"longest body: {longest}, {lines} lines")
    assert not [body for body in bodies if body[0] > MOST_LINES_OF_A_BODY]


def test_half_of_the_files_are_short():
    lines = {
        name: count_lines(text)
        for name, text in SOURCES.items()
        if name.endswith(".py") and name.startswith(("keras_vit", "trainers"))
    }
    median = statistics.median(lines.values())
    print(f"{len(lines)} files, median {median:.0f} lines")
    for package in (*PACKAGES, "tests"):
        total = sum(
            count_lines(path.read_text(encoding="utf-8"))
            for path in (ROOT / package).rglob("*.py")
        )
        print(f"{package}: {total} lines")
    assert median <= MOST_LINES_OF_THE_MEDIAN


def test_the_graph_of_the_model_reads_on_one_screen():
    source = SOURCES["keras_vit/models/connecting.py"]
    [lines] = [
        count for name, count in functions(source) if name == "connect_layers"
    ]
    print(f"connect_layers: {lines} lines")
    assert lines <= MOST_LINES_OF_A_BODY


def test_the_calls_of_layers_are_short():
    calls = [
        (lines, name)
        for name, text in SOURCES.items()
        if name.startswith("keras_vit/layers/")
        for function, lines in functions(text)
        if function == "call"
    ]
    print("longest call of a layer: {1}, {0} lines".format(*max(calls)))
    assert max(calls)[0] <= MOST_LINES_OF_A_CALL


def test_lines_are_counted_without_signature_and_docstring():
    text = '''
def function(
    argument,
):
    """Do.

    Long.
    """
    first = argument

    return first


def empty():
    """Do nothing."""
'''
    assert dict(functions(text)) == {"function": 3, "empty": 0}
