"""Distillation: a run trains teachers first. Their ensemble, or each of them, then translates the run's training text.

The run's model, the student, learns from these and from the original translations (Kim and Rush 2016, arXiv:1606.07947;
with an ensemble, Freitag et al. 2017, arXiv:1702.01802; with each teacher, Nguyen et al. 2020, arXiv:1911.01986).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from seq2seq.data.corpus import Counts
from seq2seq.data.preparation import cleaned
from seq2seq.recipe import Corpus, Languages, Recipe
from seq2seq.storage.atomic import make_directories, replacing
from seq2seq.tokenizers.vocabulary import as_line

TEACHERS = "teachers"
"""Directory of the teachers in the run directory. It also has the text that the teachers translate."""
LABEL = "translations of the teachers"
"""Name of the translated text in reports."""


def teachers_of(recipe: Recipe, run: Path) -> list[tuple[Recipe, Path]]:
    """Return recipe and run directory of each teacher of a run; an empty list if the recipe has no teachers.

    A teacher's recipe is the student's with another seed, the keys of `training.teachers.model`, the number of steps
    of `training.teachers`, and no test sets. It is the only recipe that is derived from another, because a teacher is a
    run of its own, which stores its recipe. All teachers have the tokenizer of the first teacher, because the members
    of an ensemble share a vocabulary.
    """
    section = recipe.training.teachers
    training = {"teachers": type(section)(count=0), "max_steps": section.max_steps or recipe.training.max_steps}
    found = []
    for number in range(1, section.count + 1):
        tokenizer = recipe.tokenizer
        if number > 1 and recipe.tokenizer_model is None:
            tokenizer = tokenizer.model_copy(update={"taken_from": str((run / TEACHERS / "1").absolute())})
        teacher = recipe.model_copy(update={
            "name": f"{recipe.name}_teacher_{number}", "seed": recipe.seed + number, "tokenizer": tokenizer,
            "model": recipe.teacher_model, "data": recipe.data.model_copy(update={"test": {}}), "expected": {},
            "training": recipe.training.model_copy(update=training)})
        found.append((teacher, run / TEACHERS / str(number)))
    return found


def text_of_teachers(recipe: Recipe, run: Path) -> tuple[Corpus, ...]:
    """Return a monolingual corpus for each direction and weight of the recipe's corpora, and with `ensemble: false` for
    each teacher: the text that the teachers of a run translate; () if the recipe has no teachers."""
    teachers = tuple(str(directory.absolute()) for _, directory in teachers_of(recipe, run))
    if not teachers:
        return ()
    files = source_files(recipe, run)
    by_label = {LABEL: teachers} if recipe.training.teachers.ensemble else {
        f"translations of teacher {number}": (teacher,) for number, teacher in enumerate(teachers, 1)}
    return tuple(
        Corpus(source=str(path.absolute()), name=label if len(files) == 1 else f"{label} ({path.stem})",
               languages=direction, weight=weight,
               translated_by=translated_by, max_line_bytes=max(corpus.max_line_bytes for corpus in recipe.data.train))
        for (direction, weight), path in files.items() for label, translated_by in by_label.items())


def source_files(recipe: Recipe, run: Path) -> dict[tuple[Languages, float], Path]:
    """Return the file with the text that the teachers translate, by direction and weight of the original corpora."""
    groups = dict.fromkeys(_group(corpus, recipe) for corpus in recipe.data.train if corpus.translated_by is None)
    files = {}
    for each in recipe.directions:
        weights = [weight for direction, weight in groups if direction == each]
        name = f"{each.source}-{each.target}" if len(recipe.directions) > 1 else "sources"
        for weight in weights:
            ending = f"_weight_{weight:g}" if len(weights) > 1 else ""
            files[each, weight] = run / TEACHERS / f"{name}{ending}.txt"
    return files


def _group(corpus: Corpus, recipe: Recipe) -> tuple[Languages, float]:
    return recipe.languages_of(corpus), corpus.weight


def write_sources(recipe: Recipe, run: Path) -> None:
    """Write the sources of the cleaned training pairs with their tags, each source once. Keep existing files.

    Raises:
        CorpusError: a corpus cannot be read.
    """
    for group, path in source_files(recipe, run).items():
        if path.exists():
            continue
        make_directories(path.parent)
        seen = set[bytes]()
        with replacing(path) as file:
            for corpus in recipe.data.train:
                if corpus.translated_by is not None or _group(corpus, recipe) != group:
                    continue
                for _, source, _ in cleaned(corpus, recipe, Counts()):
                    line = as_line(source).replace("\n", " ")
                    digest = hashlib.blake2b(line.encode(), digest_size=8).digest()
                    if digest not in seen:
                        seen.add(digest)
                        file.write(f"{line}\n".encode())
