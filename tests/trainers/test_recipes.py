import dataclasses

import pytest
from absl import flags

from trainers.recipes import (
    RECIPES,
    Recipe,
    define_flags,
    recipe_from_flags,
)


@pytest.fixture
def parse(monkeypatch):
    """Return a function from a command line to a recipe."""
    values = flags.FlagValues()
    for name in ("string", "integer", "float", "bool", "enum"):
        define = getattr(flags, f"DEFINE_{name}")
        monkeypatch.setattr(
            flags,
            f"DEFINE_{name}",
            lambda *args, _define=define: _define(*args, flag_values=values),
        )
    define_flags()

    def parse_line(line):
        values(["train", *line.split()])
        return recipe_from_flags(values)

    return parse_line


@pytest.mark.parametrize("name", RECIPES)
def test_without_other_flags_it_is_the_recipe(parse, name):
    assert parse(f"--recipe={name}") == RECIPES[name]


def test_every_field_is_a_flag_that_replaces_it(parse):
    """Type by type: the flag's value arrives in the field, others stay."""
    samples = {str: "x", int: 7, float: 0.25, bool: True}
    chosen = {
        "augment": "flip_lr",
        "model": "S/32",
        "pooling": "map",
        "position_embedding": "none",
        "gelu": "exact",
        "loss": "sigmoid",
        "optimizer": "sgd",
        "schedule": "linear",
        "strategy": "mirrored",
        "precision": "bfloat16",
    }
    for field in dataclasses.fields(Recipe):
        kind = next(k for k in samples if k.__name__ in str(field.type))
        want = chosen.get(field.name, samples[kind])
        changed = parse(f"--recipe=digits --{field.name}={want}")
        assert getattr(changed, field.name) == want
    expected = {
        f.name: chosen.get(
            f.name,
            samples[next(k for k in samples if k.__name__ in str(f.type))],
        )
        for f in dataclasses.fields(Recipe)
    }
    assert dataclasses.asdict(changed) == expected


def test_epochs_win_over_the_steps_of_a_recipe(parse, monkeypatch):
    steps = dataclasses.replace(RECIPES["digits"], total_steps=50)
    monkeypatch.setitem(RECIPES, "digits", steps)
    assert parse("--recipe=digits --epochs=2").total_steps is None


@pytest.mark.parametrize(
    "line, message",
    [
        ("--optimizer=adam", "one of <adamw|sgd>"),
        ("--model=B/17", "Ti/16"),
        ("--batch_size=many", "batch_size"),
        ("--recipe=digit", "digits"),
    ],
)
def test_mistyped_values_are_refused_with_what_is_known(parse, line, message):
    with pytest.raises(
        flags.IllegalFlagValueError, match=message.replace("|", r"\|")
    ):
        parse(line)


def test_mistyped_flag_gets_a_suggestion(parse):
    with pytest.raises(flags.UnrecognizedFlagError, match="learning_rate"):
        parse("--lerning_rate=1")


@pytest.mark.parametrize(
    "field, value",
    [
        ("batch_size", 0),
        ("epochs", -1.0),
        ("epochs", float("inf")),
        ("total_steps", 0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(field, value):
    with pytest.raises(
        ValueError, match=f"`{field}` must be positive.*{value}"
    ):
        dataclasses.replace(RECIPES["digits"], **{field: value})


def test_augmentation_is_read_at_once():
    with pytest.raises(
        ValueError, match="`augment`: `operation` must be one of"
    ):
        Recipe(augment="flip")


def test_unknown_name_is_refused_in_python_too():
    with pytest.raises(ValueError, match="`schedule` must be one of 'cosine'"):
        Recipe(schedule="step")


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_decay": -1.0},
        {"clip_norm": -1.0},
        {"warmup_steps": -1},
        {"label_smoothing": 1.0},
    ],
    ids=str,
)
def test_numbers_out_of_their_range_are_refused(changes):
    [name] = changes
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        Recipe(**changes)
