"""How many of timm's released Vision Transformers are read exactly.

    python -m benchmarks.families --python=.venv-torch/bin/python

A small random model of every architecture is made by timm itself, in a process
of `--python`, which needs the extra `peers`. It is read here, and its answers
are compared. Each architecture counts as often as it has released weights.
"""

import collections
import csv
import json
import pathlib
import subprocess
import tempfile
import warnings

import keras
import numpy as np

import keras_vit
from benchmarks.harness import make_parser

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
# Largest difference, in parts of the largest output; convolutions,
# standardisations and group norms in a row cost more rounding.
TOLERANCE, HYBRID_TOLERANCE = 1e-5, 5e-5


def main():
    """Make the models, read them and print the outcomes."""
    rows = [("--python", str, None, "a Python with the extra `peers`")]
    options = make_parser(__doc__, rows).parse_args()
    with open(TESTS / "golden" / "timm_architectures.tsv") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    architectures, released = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        errors = make_models(rows, folder, options.python)
        for row, error in zip(rows, errors):
            name, count = row["architecture"], int(row["released"])
            if error:
                outcome = f"not made: {error.strip().splitlines()[-1]}"
            else:
                outcome = judge_model(folder / name)
            kind = outcome.split(":")[0]
            architectures[kind] += 1
            released[kind] += count
            if kind != "exact":
                print(f"{name} ({count} released): {outcome[:160]}")
    for kind in architectures:
        print(
            f"{kind}: {architectures[kind]} of {len(rows)} architectures, "
            f"{released[kind]} of {sum(released.values())} released weights"
        )


def make_models(rows: list[dict], folder, python: str) -> list[str]:
    """Write a model of each architecture; return the errors, "" for none."""
    requests = [
        {
            "task": "build_architecture",
            "folder": str(folder / row["architecture"]),
            "name": row["architecture"],
            "seed": seed,
        }
        for seed, row in enumerate(rows)
    ]
    path = folder / "requests.json"
    path.write_text(json.dumps(requests))
    worker = TESTS / "weights" / "peers.py"
    subprocess.run(
        [python, str(worker)], input=f"{path}\n", text=True, check=True
    )
    return json.loads(path.with_suffix(".errors.json").read_text())


def judge_model(folder: pathlib.Path) -> str:
    """Return "exact", "wrong" or why a model is refused."""
    keras.backend.clear_session()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = keras_vit.from_checkpoint(folder)
    except ValueError as error:
        return f"refused: {str(error).replace(str(folder), '')}"
    with np.load(folder / "expected.npz") as file:
        answer, expected = np.asarray(model(file["x"])), file["logits"]
    is_hybrid = model.config.stem_stages is not None
    limit = HYBRID_TOLERANCE if is_hybrid else TOLERANCE
    error = np.abs(answer - expected).max() / np.abs(expected).max()
    return "exact" if error < limit else f"wrong: {error:.1e}"


if __name__ == "__main__":
    main()
