"""Makes all figures of the background pages: `make figures`."""

import pathlib
import runpy

import style

for path in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py")):
    style.write(runpy.run_path(str(path)).get("FIGURES", {}))
    print(path.name)
