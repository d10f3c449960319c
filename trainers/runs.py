"""The folder of a run: what is written where, and read back."""

import dataclasses
import json
import os
import pathlib

import keras

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

    def check_recipe(self, recipe: Recipe, class_names: list[str]):
        """Compare with the run that is there, if it has begun.

        Fields that do not change what is learnt, such as the strategy, may
        differ: a run may go on with other devices.

        Raises:
            ValueError: If the folder holds a run of another recipe.
        """
        started = self.model_path.exists() or self.checkpoints_path.exists()
        if not (started and self.recipe_path.exists()):
            return
        old, new = (
            _binding_fields(recipe) | {"class_names": names}
            for recipe, names in (
                (self.load_recipe(), self.load_class_names()),
                (recipe, class_names),
            )
        )
        changed = [
            f"{name}: {old[name]!r} there, {new[name]!r} here"
            for name in new
            if old[name] != new[name]
        ]
        if changed:
            raise ValueError(
                "`run_dir` holds a run of another recipe; choose another "
                "folder, or --force to go on with the new one. "
                f"Received: run_dir={str(self.folder)!r} with "
                + "; ".join(changed)
            )

    def save_recipe(self, recipe: Recipe, class_names: list[str]):
        """Write the recipe that the run goes on with."""
        content = {
            "recipe": dataclasses.asdict(recipe),
            "class_names": class_names,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.recipe_path, json.dumps(content, indent=2))

    def load_recipe(self) -> Recipe:
        """Return the recipe of the run.

        Raises:
            ValueError: If there is none, or one of another version.
        """
        fields = self._content()["recipe"]
        unknown = fields.keys() - {f.name for f in dataclasses.fields(Recipe)}
        if unknown:
            raise ValueError(
                f"{self.recipe_path} has fields of another version: "
                + ", ".join(sorted(unknown))
            )
        return Recipe(**fields)

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


def _binding_fields(recipe):
    return {
        field.name: getattr(recipe, field.name)
        for field in dataclasses.fields(recipe)
        if not field.metadata["is_free"]
    }


def write_atomically(path: pathlib.Path, text: str):
    """Write a text file; a reader sees the old content or the new one."""
    draft = path.with_name(f".draft-{path.name}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
