"""Differences between recipes: that of a run and the one that resumes it, and those of models that are compared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seq2seq.recipe.schema import Recipe

MAY_CHANGE_ON_RESUME = (
    "name", "license", "expected", "metrics", "decoding", "data.test", "training.max_steps",
    "training.validate_every", "training.early_stopping", "training.keep_checkpoints",
    "training.checkpoint_minutes", "training.average", "training.divergence", "training.log_every",
    "training.device", "training.threads")
"""Keys and sections that may change when a run is resumed, because they concern its length, checkpoints, evaluation,
logging or hardware."""


OF_ONE_RECIPE = ("seed", "license", "expected", "data.test", "training.keep_checkpoints", "training.checkpoint_minutes",
                 "training.log_every", "training.device", "training.threads")
"""Keys and sections that may differ between trainings of one recipe with several seeds."""
KEYS_WITHOUT_EFFECT = ("max_line_bytes", "license", "url")
"""Keys of a corpus that may also change when a run is resumed, because they do not change the text of the corpus: a
line longer than `max_line_bytes` is an error, and `license` and `url` only describe the corpus."""


@dataclass(frozen=True)
class Difference:
    """Key whose values differ between two recipes."""

    key: str
    old: Any
    new: Any
    may_change_on_resume: bool
    """True if a run can be resumed with the new value."""

    def __str__(self) -> str:
        old, new = ("not set" if value is None else value for value in (self.old, self.new))
        return f"{self.key}: {old} -> {new}"


def differences(old: Recipe, new: Recipe, of_one_run: bool = True) -> list[Difference]:
    """Return all keys whose values differ, in the order of the schema.

    of_one_run: True if `new` resumes the run of `old`. Two paths are then no difference, because a run knows its text
        and models by their checksums (`training/run.py`), so that they can move. A path that only one recipe has is a
        difference, such as that of another corpus.
    """
    before, after = (dict(_leaves(recipe.model_dump(mode="json"), "")) for recipe in (old, new))
    paths = {*_path_keys(old)} & {*_path_keys(new)} if of_one_run else set()
    return [
        Difference(key, before.get(key), after.get(key), may_change_on_resume(key))
        for key in [*after, *(key for key in before if key not in after)]
        if before.get(key) != after.get(key) and key not in paths
    ]


def are_of_one_recipe(one: Recipe, other: Recipe) -> bool:
    """Return True if two trainings differ in their seeds, their machines and what is kept of them, but not in the
    models that they are expected to give. Paths must be the same, too, as they are written in the recipes."""
    same_root = one.data_directory.resolve() == other.data_directory.resolve()
    return all(not changes_model(difference.key)
               or difference.key == "data.root" and same_root             # from the directories of two runs
               for difference in differences(one, other, of_one_run=False))


def changes_model(key: str) -> bool:
    """Return True if trainings with other values of the key are not expected to give the same model, but for chance."""
    return not (_is_in(key, OF_ONE_RECIPE) or key.rpartition(".")[2] in KEYS_WITHOUT_EFFECT)


def settings_that_differ(recipes: Sequence[Recipe]) -> list[list[str]]:
    """Return a row for each key whose value is not the same in all recipes: the key, and the value of each recipe.
    Names, and keys without an effect on a model, have none."""
    rows: dict[str, list[str]] = {}
    for number, recipe in enumerate(recipes[1:], 1):
        for one in differences(recipes[0], recipe, of_one_run=False):
            if one.key != "name" and one.key.rpartition(".")[2] not in KEYS_WITHOUT_EFFECT:
                old, new = ("not set" if value is None else str(value) for value in (one.old, one.new))
                rows.setdefault(one.key, [one.key, *[old] * len(recipes)])[number + 1] = new
    return list(rows.values())


def _path_keys(recipe: Recipe) -> Iterator[str]:
    """Yield the dotted keys of all paths in a recipe."""
    yield "data.root"
    if recipe.tokenizer.taken_from is not None:
        yield "tokenizer.taken_from"
    if recipe.training.start_from is not None:
        yield "training.start_from"
    for steps, corpus in recipe.data.corpora_with_keys():
        models = (f"translated_by.{number}" for number in range(len(corpus.translated_by or ())))
        for key in (*corpus.path_keys, *models):
            yield ".".join(map(str, ("data", *steps, key)))


def may_change_on_resume(key: str) -> bool:
    """Return True if the value of the key may change when a run is resumed."""
    if key.startswith("data.") and key.rpartition(".")[2] in KEYS_WITHOUT_EFFECT:
        return True
    return _is_in(key, MAY_CHANGE_ON_RESUME)


def _is_in(key: str, sections: Sequence[str]) -> bool:
    return any(key == start or key.startswith(f"{start}.") for start in sections)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each scalar in a nested value. key: dotted key of the nested value."""
    if isinstance(value, dict | list):
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{key}.{step}" if key else str(step))
    else:
        yield key, value
