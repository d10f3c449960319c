"""The command-line flags of a recipe: --recipe and one for each field."""

import dataclasses
import json
import pathlib
import typing
from collections.abc import Mapping

from absl import flags

from keras_vit.tables import check_name, guess
from trainers.data.file_lists import (
    LIST_NAMES,
    check_is_no_path,
    is_file_list,
)
from trainers.data.labels import DEPTH, MAPS
from trainers.recipes.photos import (
    FITTED_FIELDS,
    MEMORY_FIELDS,
    RULES,
    fit_to_images,
)
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.recipes.vit import fit_to_task

OF_RECIPE = " Default: that of the recipe."


def flag_fields() -> list[dataclasses.Field]:
    """Return the fields of Recipe that are flags."""
    return [f for f in dataclasses.fields(Recipe) if f.metadata["help"]]


class _Choice(flags.EnumParser):
    """A name of several; the error proposes the one that was meant."""

    def parse(self, argument: str) -> str:
        """Return the name; raise a ValueError if there is no such."""
        if argument not in self.enum_values:
            raise ValueError(
                f"must be one of {', '.join(self.enum_values)}"
                f"{guess(argument, self.enum_values)}"
            )
        return argument


def define_choice(name: str, default: str | None, choices, text: str):
    """Define a flag that is one of several names."""
    parser = _Choice(list(choices))
    kinds = f"<{'|'.join(parser.enum_values)}>: {text}"
    flags.DEFINE(parser, name, default, kinds)


def define_recipe_flags():
    """Define --recipe and one absl flag for each field of Recipe."""
    flags.DEFINE_string(
        "recipe",
        None,
        f"<{'|'.join(RECIPES)}>: Recipe that gives the defaults of the flags "
        "below, or the path of a .json or .yaml file of one, such as the "
        "recipe.json of a run. Default: photos if --dataset is a folder or a "
        "table of images; segment_linear or depth_linear if it is pairs:PATH.",
    )
    types = typing.get_type_hints(Recipe)
    for field in flag_fields():
        text = field.metadata["help"] + OF_RECIPE
        choices = field.metadata["choices"]
        if choices:
            define_choice(field.name, None, choices, text)
            continue
        kinds = set(typing.get_args(types[field.name])) or {types[field.name]}
        define = {
            str: flags.DEFINE_string,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            bool: flags.DEFINE_bool,
        }[(kinds - {type(None)}).pop()]
        define(field.name, None, text)


def show_values(name: str | None):
    """Let --help show the values of a recipe as defaults of its flags."""
    recipe = RECIPES.get(name, Recipe())
    if is_recipe_file(name):
        recipe = read_recipe(name)
    for field in flag_fields():
        flags.FLAGS.set_default(field.name, getattr(recipe, field.name))


FORMS = (".json", ".yaml", ".yml")  # Of the files of recipes.


def is_recipe_file(name: str | None) -> bool:
    """Return whether --recipe is a path, and not a name."""
    return name is not None and name.lower().endswith(FORMS)


def read_recipe(path: str) -> Recipe:
    """Return the recipe in a file, see `Recipe.from_fields`.

    Args:
        path: A JSON or YAML file of fields, or the recipe.json of a run.

    Raises:
        ValueError: If there is no such file, or no recipe in it.
    """
    try:
        if "://" in path:
            from trainers.paths import as_path  # It imports TensorFlow.

            file = as_path(path)
        else:
            file = pathlib.Path(path).expanduser()
        text = file.read_text(encoding="utf-8-sig")
        if path.lower().endswith(".json"):
            fields = json.loads(text)
        else:
            import yaml

            fields = yaml.safe_load(text)
        if isinstance(fields, dict):
            fields = fields.get("recipe", fields)
        return Recipe.from_fields(fields)
    except ModuleNotFoundError:
        fault = "YAML needs the package PyYAML"
    except OSError as error:
        fault = error.strerror
    except Exception as error:  # Of JSON, YAML, UTF-8, or of the recipe.
        fault = " ".join(str(error).split())
    raise ValueError(
        "`recipe` must be a readable file of a recipe. "
        f"Received: recipe={path!r} ({fault})"
    )


def name_recipe(path: str) -> str:
    """Return the name of the recipe in a file: of a run, that of its folder.

    Example:
        >>> name_recipe("runs/mine/recipe.json"), name_recipe("a/b.yaml")
        ('mine', 'b')
    """
    file = pathlib.Path(path).expanduser().absolute()
    return file.parent.name if file.stem == "recipe" else file.stem


@dataclasses.dataclass(frozen=True)
class ChosenRecipe:
    """The recipe of --recipe and the flags that change it.

    Args:
        name: A key of RECIPES, or the name of `file`.
        given: The values of the flags that were given, by field.
        file: The recipe of a file; None for the one of RECIPES.
    """

    name: str
    given: dict
    file: Recipe | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether settings follow from the number of images."""
        return self.file is None and self.name in RULES

    @property
    def recipe(self) -> Recipe:
        """The recipe with the flags, and with the settings that they imply."""
        if self.file:
            recipe = dataclasses.replace(self.file, **self.given)
        else:
            changes = fit_to_task(self.name, self.given)
            recipe = dataclasses.replace(RECIPES[self.name], **changes)
        recipe.check_operations()
        return recipe

    def fit(
        self,
        num_images: int,
        started: Recipe | None,
        num_replicas: int = 1,
        has_several_labels: bool = False,
    ) -> Recipe:
        """Return the recipe with settings that suit the data set.

        Args:
            num_images: Number of training images.
            started: The recipe of the run to continue, whose settings stay
                although there may be other images now; None for a new run.
            num_replicas: Number of replicas that share a batch.
            has_several_labels: Whether an image may have several labels.
        """
        if not self.is_fitted:
            return self.recipe
        given = dict(self.given)
        if started:
            kept = (*FITTED_FIELDS, *MEMORY_FIELDS, "total_steps")
            given = {n: getattr(started, n) for n in kept} | given
        return fit_to_images(
            self.name,
            self.recipe,
            given,
            num_images,
            num_replicas,
            has_several_labels,
        )

    def free_fields(self, started: Recipe | None) -> set[str]:
        """Return the fields that the memory of the machine decides.

        Args:
            started: See `fit`.
        """
        if not self.is_fitted or started:
            return set()
        return set(MEMORY_FIELDS) - self.given.keys()


class NoRecipeError(ValueError):
    """No recipe is named, and the data set has no default."""


def recipe_from_flags(values: flags.FlagValues = flags.FLAGS) -> ChosenRecipe:
    """Return the recipe of --recipe and the flags that were given.

    Raises:
        NoRecipeError, ValueError: See `choose_recipe`.
    """
    given = {
        field.name: values[field.name].value
        for field in flag_fields()
        if values[field.name].value is not None
    }
    return choose_recipe(values.recipe, given)


def settle_given(given: Mapping) -> dict:
    """Return the fields to change, with those that they leave no meaning."""
    given = dict(given)
    if "epochs" in given and "total_steps" not in given:
        given["total_steps"] = None
    if given.get("keep_best") is False:
        given.setdefault("patience", None)  # It needs a best model.
    return given


def choose_recipe(name: str | None, given: Mapping) -> ChosenRecipe:
    """Return the recipe of a name or a file, with some fields changed.

    Args:
        name: A key of RECIPES, or the path of a file; None for the default of
            the data set.
        given: The fields to change, and their values.

    Raises:
        NoRecipeError: If there is none, and the data set has no default.
        ValueError: If the recipe is not possible, or a field to change has no
            effect.
    """
    given = settle_given(given)
    if is_recipe_file(name):
        chosen = ChosenRecipe(name_recipe(name), given, read_recipe(name))
    else:
        name = _find_default(given) if name is None else name
        check_name(RECIPES, name, "recipe")
        chosen = ChosenRecipe(name, given)
    chosen.recipe.check_effect(given)
    return chosen


def _find_default(given):
    """Return the name of the default recipe of a data set."""
    dataset, objective = given.get("dataset", ""), given.get("objective")
    check_is_no_path(dataset)
    if dataset.startswith("pairs:") or (dataset and objective in MAPS):
        return "depth_linear" if objective == DEPTH else "segment_linear"
    if is_file_list(dataset):
        return "photos"
    raise NoRecipeError(
        f"`recipe` must be given, unless `dataset` is {LIST_NAMES}: "
        f"one of {', '.join(RECIPES)}. Received: "
        f"recipe=None, dataset={given.get('dataset')!r}"
    )
