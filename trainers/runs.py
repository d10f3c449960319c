"""The folder of a run: what is written where, and read back."""

import dataclasses
import json
import os
import pathlib

import keras

from trainers.files import write_atomically
from trainers.recipes import Recipe


@dataclasses.dataclass(frozen=True)
class Run:
    """A folder `saved_models/<run>/` and the paths in it.

    Args:
        folder: Where everything of the run is.
    """

    folder: pathlib.Path

    @property
    def recipe_path(self) -> pathlib.Path:
        """The recipe as it was run, and the classes of its data."""
        return self.folder / "recipe.json"

    @property
    def model_path(self) -> pathlib.Path:
        """The trained model; answers logits."""
        return self.folder / "model.keras"

    @property
    def metrics_path(self) -> pathlib.Path:
        """One row of figures an epoch."""
        return self.folder / "metrics.csv"

    @property
    def checkpoints_path(self) -> pathlib.Path:
        """The states from which a run can go on."""
        return self.folder / "checkpoints"

    def save_recipe(self, recipe: Recipe, class_names: list[str]):
        """Write the recipe, or check it against the one that is there.

        Raises:
            ValueError: If the folder holds a run of another recipe.
        """
        content = {
            "recipe": dataclasses.asdict(recipe),
            "class_names": class_names,
        }
        started = self.model_path.exists() or self.checkpoints_path.exists()
        if started and self.recipe_path.exists():
            old, new = (
                {**run["recipe"], "class_names": run["class_names"]}
                for run in (self._content(), content)
            )
            changed = [
                f"{name}: {old.get(name)!r} there, {new.get(name)!r} here"
                for name in sorted(old.keys() | new.keys())
                if old.get(name) != new.get(name)
            ]
            if changed:
                raise ValueError(
                    f"`run_dir` holds a run of another recipe; choose another "
                    f"folder. Received: run_dir={str(self.folder)!r} with "
                    + "; ".join(changed)
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.recipe_path, json.dumps(content, indent=2))

    def load_recipe(self) -> Recipe:
        """Return the recipe of the run."""
        return Recipe(**self._content()["recipe"])

    def load_class_names(self) -> list[str]:
        """Return the names of the classes, in the order of the logits."""
        return self._content()["class_names"]

    def save_model(self, model: keras.Model):
        """Write the model; a reader sees the old file or the new one."""
        draft = self.folder / ".draft-model.keras"
        model.save(draft)
        os.replace(draft, self.model_path)

    def load_model(self) -> keras.Model:
        """Return the trained model.

        Raises:
            ValueError: If the run has no model.
        """
        if not self.model_path.exists():
            raise ValueError(
                "`run_dir` must be the folder of a finished run, with a "
                f"model.keras in it. Received: run_dir={str(self.folder)!r}"
            )
        return keras.saving.load_model(self.model_path, compile=False)

    def _content(self):
        if not self.recipe_path.exists():
            raise ValueError(
                "`run_dir` must be the folder of a run, with a recipe.json "
                f"in it. Received: run_dir={str(self.folder)!r}"
            )
        return json.loads(self.recipe_path.read_text())
