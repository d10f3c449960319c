"""How many of timm's released Vision Transformers are read exactly.

    python -m benchmarks.families --python=.venv-torch/bin/python

A small random model of every architecture is made by timm itself, in a process
of `--python`, which needs the extra `peers`. It is read here, and its answers
are compared. Each architecture counts as often as it has released weights.
"""

import argparse
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

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
# Largest difference, in parts of the largest output; convolutions,
# standardisations and group norms in a row cost more rounding.
TOLERANCE, HYBRID_TOLERANCE = 1e-5, 5e-5


def main():
    """Make the models, read them and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", required=True, help="a Python with the extra `peers`"
    )
    options = parser.parse_args()
    with open(TESTS / "golden" / "timm_architectures.tsv") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        built = make_models(rows, folder, options.python)
        outcomes = {name: judge_model(folder / name) for name in built}
    print_outcomes(rows, outcomes)


def make_models(rows: list[dict], folder, python: str) -> list[str]:
    """Write a model of each architecture; return those that timm can make.

    Args:
        rows: The architectures.
        folder: Where the models are written.
        python: The Python of timm.
    """
    names = [row["architecture"] for row in rows]
    requests = [
        {
            "task": "build_architecture",
            "folder": str(folder / name),
            "name": name,
            "seed": seed,
        }
        for seed, name in enumerate(names)
    ]
    path = folder / "requests.json"
    path.write_text(json.dumps(requests))
    worker = TESTS / "weights" / "peers.py"
    subprocess.run(
        [python, str(worker)], input=f"{path}\n", text=True, check=True
    )
    errors = json.loads(path.with_suffix(".errors.json").read_text())
    for name, error in zip(names, errors):
        if error:
            print(f"not made: {name}: {error.strip().splitlines()[-1]}")
    return [name for name, error in zip(names, errors) if not error]


def judge_model(folder: pathlib.Path) -> str:
    """Return "exact", "wrong" or why a model is refused.

    Args:
        folder: A model with its outputs.
    """
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


def print_outcomes(rows: list[dict], outcomes: dict[str, str]):
    """Print every model that is not exact, and the counts.

    Args:
        rows: The architectures.
        outcomes: What `judge` returned, by architecture.
    """
    architectures, released = collections.Counter(), collections.Counter()
    for row in rows:
        name = row["architecture"]
        outcome = outcomes.get(name, "not made")
        kind = outcome.split(":")[0]
        architectures[kind] += 1
        released[kind] += int(row["released"])
        if kind != "exact":
            print(f"{name} ({row['released']} released): {outcome[:160]}")
    for kind in architectures:
        print(
            f"{kind}: {architectures[kind]} of {len(rows)} architectures, "
            f"{released[kind]} of {sum(released.values())} released weights"
        )


if __name__ == "__main__":
    main()
