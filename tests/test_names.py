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
    "define_flags": "the flags of a command",
    "main": "a command",
    "make_jsons": "the JSON files of a family",
    "start": "a session of an export format, for measuring it",
    "write": "the writer of an export format",
}


# Roles that each benchmark has, or each of several.
ROLES_OF_BENCHMARKS = {
    "MODEL_BUILDERS": "the models that a worker can build",
    "RATES": "the learning rates that are tried",
    "Result": "a row of the CSV file",
    "STUDY": "what a study trains",
    "WAYS": "what is compared",
    "batch": "the images and labels of a worker",
    "csv_rows": "the results as rows of the CSV file",
    "describe": "the report",
    "draw": "the figure",
    "find_gpu": "the GPU that a worker uses",
    "format_page": "the report as a page, and the help of a command",
    "forward_step": "the inference that a worker measures",
    "make_panels": "the panels of the figure",
    "measure": "the measurement",
    "measure_case": "the measurement of one case",
    "name_arm": "the name of an arm in the figure",
    "our_model": "keras_vit's model in a worker",
    "parse": "the options",
    "prepare": "what a worker measures; in the trainers, a run",
    "product": "the matrix product of a worker",
    "run": "the training of one trial, or of all",
    "train_step": "the training step that a worker measures",
}


def public_names():
    """Return {name: modules that define it}."""
    found = collections.defaultdict(set)
    for path, text in SOURCES.items():
        if not path.endswith(".py"):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            elif isinstance(node, ast.AnnAssign):
                names = [node.target.id]
            else:
                continue
            for name in names:
                if not name.startswith("_"):
                    found[name].add(path)
    return found


def test_a_name_means_one_thing():
    twice = {name: at for name, at in public_names().items() if len(at) > 1}
    roles = ROLES | ROLES_OF_BENCHMARKS
    unexplained = {name: at for name, at in twice.items() if name not in roles}
    assert not unexplained
    assert not roles.keys() - twice.keys(), "these are unique now"
