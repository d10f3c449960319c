"""A name means one thing in the whole project."""

import ast
import collections

from tests.test_sizes import SOURCES

# Names that several modules define on purpose, because they play one role.
ROLES = {
    "BATCH_SIZE": "how many images a command takes at once",
    "BLOCK_NAME": "the prefix of a block's weights, in each family",
    "CHUNK_BYTES": "how much is read from a stream at once",
    "FLAGS": "absl's flags, in each command",
    "FORMAT": "the row of an export format",
    "LAYOUT": "the row of a checkpoint family",
    "RECIPES": "the rows of a paper, and all of them together",
    "atomic_write": "of local files, and of those in buckets as well",
    "connect": "the graph of a model, and a client to its server",
    "define_flags": "the flags of a command",
    "main": "a command",
    "make_jsons": "the JSON files of a family",
    "start": "a session of an export format, for measuring it",
    "write": "the writer of an export format",
}


def public_names():
    """Return {name: modules of the two packages that define it}."""
    found = collections.defaultdict(set)
    for path, text in SOURCES.items():
        if path.startswith("benchmarks") or not path.endswith(".py"):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            else:
                continue
            for name in names:
                if not name.startswith("_"):
                    found[name].add(path)
    return found


def test_a_name_means_one_thing():
    twice = {name: at for name, at in public_names().items() if len(at) > 1}
    unexplained = {name: at for name, at in twice.items() if name not in ROLES}
    assert not unexplained
    assert not ROLES.keys() - twice.keys(), "these are unique now"
