"""Write a first recipe for the user's text: split off held-out sets, and choose settings for the amount of text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TextIO

from seq2seq import console
from seq2seq.check.corpus_statistics import scanned
from seq2seq.check.cost import estimate_model, estimate_training, estimate_vocabulary
from seq2seq.check.given_text import MAX_PAIRS_READ, GivenText, recipe_of
from seq2seq.check.measure import PAIRS as MEASURED_PAIRS
from seq2seq.check.measure import measure
from seq2seq.check.monolingual_text import check_monolingual_text, choose_lines
from seq2seq.check.other_pairs import pairs_of_others
from seq2seq.check.pair_checks import CorpusChecker, LanguageChecker
from seq2seq.check.read_corpora import CorpusReader, read_and_check
from seq2seq.check.recipe_text import (
    BATCH_TOKENS,
    EPOCHS,
    MAX_VALIDATED,
    MIN_STEPS,
    Draft,
    Monolingual,
    OtherPairs,
    Settings,
    Step,
)
from seq2seq.check.results import CorpusReport, Finding, Report
from seq2seq.check.split_text import PAIRS_PER_HELD_OUT, HeldOut, Sentences, choose_held_out
from seq2seq.check.time_budget import (
    LOSS_SHARE,
    START_SECONDS,
    Candidate,
    Speed,
    best_plan,
    candidates,
    shortest,
    with_more_time,
)
from seq2seq.check.warnings import (
    EPOCHS_WARNING_THRESHOLD,
    LINE_WARNINGS,
    MAX_WRONG_LANGUAGE_SHARE,
    MAX_WRONG_SIDE_SHARE,
    add_corpus_warnings,
    frequent_kinds,
    train_warnings,
)
from seq2seq.data.corpus import Pair
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.language_identification import lingua_languages
from seq2seq.data.numbers import number_agreement
from seq2seq.data.pair_augmenter import PLACEHOLDER, TAG
from seq2seq.data.preparation import TrainingText, make_tokenizers
from seq2seq.errors import CorpusError, OptionError, UserError
from seq2seq.evaluation.significance import expected_interval
from seq2seq.languages import language_name, main_language
from seq2seq.recipe import Corpus, Recipe
from seq2seq.recipe.model_sizes import consistency_for, size_for
from seq2seq.storage.atomic import new_directory, require_new
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.source import Source

MIN_BATCH_TOKENS = 256
"""Minimum number of target tokens per step, about 15 sentences; the gradients of smaller batches are too noisy."""
# Keys of data.cleaning that drop the lines of each kind in LINE_WARNINGS.
CLEANING = {"duplicate": "remove_duplicates: true", "identical": "remove_identical: true",
            "damaged": "remove_damaged: true", "numbers_differ": "min_number_agreement: 0.7"}
CAUTION = {"numbers_differ": "    # On web text, two thirds of the pairs that this drops were bad (docs/cleaning.md). "
                             "Remove it if\n    # one side writes numbers as words.\n"}
"""Further comment on a key of CLEANING."""
AUGMENTED = {"placeholders": "placeholders such as {name} or %s", "tags": "tags such as <b>"}
"""Keys of data.augmentation that teach a model to copy what text of each kind has."""
MIN_AUGMENTED_SHARE, AUGMENTATION = 0.01, 0.05
"""Share of pairs with placeholders or tags above which the recipe augments them, and the share of pairs that change, as
in recipes/robustness."""
NAMES = ("train", "valid", "monolingual", "other")
"""Names of files of text that a test set cannot have."""
BY_LINGUA = "    language: lingua\n"
"""End of the lines in data.cleaning that drop pairs in a language that lingua identifies as another."""
MONOLINGUAL_PER_PAIR = 3
"""Maximum number of back-translated sentences for each pair."""
OWN_SHARE, MAX_WEIGHT = 0.25, 10
"""Share of the own pairs in an epoch with pairs of other languages, and the largest weight that they get for it. Other
values were not tried."""
MAX_INTERVAL, GOOD_INTERVAL = 4.0, 2.0
"""Half of the 95 % interval of BLEU above which a set is reported as too small, and that of the size to aim at."""


@dataclass
class NewRecipe:
    """Result of `write_recipe`.

    scanned: report on the given text before cleaning. train: report on the training text after cleaning.
    text: the given text. pairs: number of pairs of each set. copies: number of pairs left out, because they repeat a
    held-out pair or have a sentence of a given set. intervals: for each held-out set, half of BLEU's 95 % interval.
    warnings: problems of the text that the settings do not solve. notes: about the time of the training. monolingual:
    text in the target language, for which there are several recipes; `recipe` is then the first, and `path` their
    directory. other: pairs of other languages.
    """

    path: Path
    recipe: Recipe
    size: str
    scanned: CorpusReport
    train: CorpusReport
    text: GivenText
    pairs: dict[str, int]
    copies: int
    steps_per_epoch: int
    intervals: dict[str, float]
    warnings: list[str]
    notes: list[str]
    monolingual: Monolingual | None = None
    other: OtherPairs | None = None


def write_recipe(corpora: Sequence[Corpus], languages: tuple[str, str], output: Path, seed: int = 1,
                 valid: Sequence[Corpus] = (), test: Sequence[Corpus] = (), minutes: float | None = None,
                 monolingual: Sequence[Path] = (), other: tuple[Sequence[Corpus], tuple[str, str]] | None = None,
                 identified: Collection[str] = ()) -> NewRecipe:
    """Write a new directory with a recipe and its training, validation and test text.

    The directory appears only when it is complete. The amount of text decides the settings of the recipe, and what
    `check` finds in the text decides cleaning and augmentation.

    Args:
        corpora: see `corpora_of`. languages: language codes of source and target.
        seed: seed of the split; the same corpora and seed give the same files.
        valid, test: validation and test sets. If there are none, they are split off. No training pair has a sentence of
            a held-out set.
        minutes: time of the training on this machine to which its size and steps are fitted. None: as many steps as
            suit the text.
        monolingual: text in the target language. The recipes are then those of back-translation (`Step.FINAL`).
        other: pairs of other languages, which the model learns, too, and the codes of their source and target.
        identified: sides whose language lingua has identified. lingua takes a language that it does not know for a
            similar one, and then finds others in many lines. Such a finding is no reason to drop these lines.
    """
    require_new(output)
    if monolingual and other:
        raise OptionError("--monolingual and --other plan different trainings. Leave one of them out.")
    if minutes is not None and (monolingual or other):
        raise OptionError(f"--minutes does not plan a training with {'--monolingual' if monolingual else '--other'}. "
                          "Leave one of them out; seq2seq check measures the time.")
    recipe = recipe_of(corpora, languages)
    text = GivenText(corpora, recipe)
    other_text = None if other is None else pairs_of_others(*other, text)
    checked = check_monolingual_text(monolingual, [pair[1:] for pair in islice(text.pairs(), MAX_PAIRS_READ)],
                                     recipe.languages) if monolingual else None
    scanned, augmented = _scan(text)
    others = None if other_text is None else (other_text, _scan(other_text)[0])
    own = _given_sets(recipe, valid, test)
    split = [name for name, given in (("valid", valid), ("test", test)) if not given]
    sentences = Sentences(pair for pairs in own.values() for pair in pairs)
    held_out, overlapping = _choose(text, sentences, split, seed, _is_suitable)
    if split and not getattr(held_out, split[0]):
        raise CorpusError(
            f"{text.label} has too few pairs for a validation and a test set ({scanned.lines:,}). They need at least "
            f"{PAIRS_PER_HELD_OUT} different pairs with undamaged text on both sides and the same numbers. At least "
            "two of these pairs must share neither source nor target with another pair. Add text.")
    left_out = held_out.copies | overlapping
    with new_directory(output) as directory:
        pairs = _write_texts(text, directory, languages, held_out, left_out, own)
        if not pairs["train"]:
            raise CorpusError(f"{text.label}: every one of {scanned.lines:,} pairs has a sentence of the validation or "
                              "test sets, so no training pair is left. Give other training text or other sets.")
        draft = Draft(output, directory, text, languages, scanned, seed, pairs, pairs["train"], split)
        size = size_for(draft.kept)
        frequent = [kind for kind in frequent_kinds(scanned.findings, scanned.lines) if kind in CLEANING]
        settings = Settings(size, BATCH_TOKENS[size], 0, cleaning=tuple(
            _cleaning_line(kind, scanned.findings[kind], scanned.lines) for kind in frequent), augmentation=tuple(
            f"    # {count:,} of {scanned.lines:,} pairs have {AUGMENTED[kind]}.\n    {kind}: {AUGMENTATION}\n"
            for kind, count in augmented.items() if count > MIN_AUGMENTED_SHARE * scanned.lines))
        train, checker = _read_train(draft.write(settings))
        line, doubt = _language_line(train.report, identified, languages)
        if line:
            settings = replace(settings, cleaning=(*settings.cleaning, line))
            train, checker = _read_train(draft.write(settings))
        draft.kept = train.report.pairs                                         # cleaning may drop many pairs
        size = size_for(draft.kept)
        settings = replace(settings, consistency=consistency_for(draft.kept))
        notes: list[str] = []
        if minutes is None:
            settings, steps_per_epoch = _full(draft, settings, size, [train]) if others is None else (
                _with_others(draft, settings, *others))
        else:
            settings, steps_per_epoch, notes = _fitted(draft, settings, size, train, minutes)
        written = draft.write(settings)
        warnings, intervals = _held_out_warnings(written, checker, own)
        if checked:
            written = _write_steps(draft, settings, train, monolingual, checked)
    path = output if monolingual else output / Step.ONLY.value
    train.report.label = str(output / train.report.label)                       # the lines are those of this file
    warnings = [*doubt, *train_warnings(train.report, written.data.cleaning), *warnings]
    return NewRecipe(path, written.with_directory(output), settings.size, scanned, train.report, text, pairs,
                     len(left_out), steps_per_epoch, intervals, warnings, notes, draft.monolingual, draft.other)


def _full(draft: Draft, settings: Settings, size: str, train: Sequence[CorpusReader]) -> tuple[Settings, int]:
    """Return the settings of a training of EPOCHS with a model of this size, and its steps per epoch."""
    settings = replace(settings, size=size, batch_tokens=BATCH_TOKENS[size])
    steps_per_epoch = _steps_per_epoch(draft.write(settings), train)
    while steps_per_epoch * EPOCHS_WARNING_THRESHOLD < MIN_STEPS and settings.batch_tokens > MIN_BATCH_TOKENS:
        settings = replace(settings, batch_tokens=settings.batch_tokens // 2)
        steps_per_epoch = _steps_per_epoch(draft.write(settings), train)
    return replace(settings, max_steps=max(-(-EPOCHS * steps_per_epoch // 100) * 100, MIN_STEPS)), steps_per_epoch


def _fitted(draft: Draft, settings: Settings, size: str, train: CorpusReader, minutes: float
            ) -> tuple[Settings, int, list[str]]:
    """Return settings for a training of this time, its steps per epoch, and notes about the time. size: the size that
    suits the amount of text.
    """
    full: dict[str, tuple[Settings, int]] = {}

    def measured(size: str, consistency: float) -> Candidate:
        full[size] = sized, steps_per_epoch = _full(draft, replace(settings, consistency=consistency), size, [train])
        recipe = draft.write(sized)
        report = Report(recipe.name, [])
        estimate_vocabulary(recipe, train.tokenizers, {}, report)
        estimate_model(recipe, report)
        estimate_training(TrainingText.of(recipe), [train.lengths], report)     # with the memory that it needs
        assert train.tokenizers is not None
        console.print_message(f"measuring the {size} model")
        measure(TrainingText.of(recipe), train.tokenizers, report, translates=True)
        if problems := report.errors or report.warnings:
            raise UserError(problems[0])
        numbers, valid = report.measured, draft.pairs["valid"]
        tests = sum(count for name, count in draft.pairs.items() if name not in ("train", "valid"))
        loss = LOSS_SHARE * numbers["seconds_a_step"] * valid / max(draft.kept / steps_per_epoch, 1)
        repeated = max(1.0, draft.kept / MEASURED_PAIRS)
        return Candidate(size, consistency, Speed(
            train.tokenizer_seconds + numbers["seconds_of_preparation"] * repeated, numbers["seconds_a_step"],
            numbers["seconds_a_sentence"], loss, min(valid, MAX_VALIDATED), tests, "test" not in draft.split),
            steps_per_epoch, sized.max_steps)

    names = list(BATCH_TOKENS)
    sizes = names[names.index(size)::-1]                                        # from the largest to the smallest
    plan, tried = best_plan(candidates(sizes, settings.consistency, measured), 60 * minutes)
    if plan is None:
        raise OptionError(f"--minutes {minutes:g}: {tried[-1].speed.preparation:,.0f} seconds of preparation and the "
                          f"test leave no time for a training on this machine; {shortest(tried)}")
    sized, steps_per_epoch = full[plan.size]
    if plan.seconds < 60 * minutes * 0.8:
        reason = (f"About {EPOCHS} epochs, and at least {MIN_STEPS:,} steps, which take less than the {minutes:g} "
                  "minutes on this machine.")
    else:
        reason = f"{plan.epochs:.1f} epochs, which fit into {minutes:g} minutes on this machine."
    fitted = replace(sized, consistency=plan.consistency, max_steps=plan.steps, validations=plan.validations,
                     valid_sentences=plan.valid_sentences, reason=reason,
                     test_sentences=plan.test_sentences if plan.test_sentences < tried[-1].speed.test else None)
    if not any(one.is_enough(found) for one in tried if (found := one.plan(60 * minutes))):
        console.warn(f"{plan.steps:,} steps, which fit into {minutes:g} minutes on this machine, are too few; "
                     f"{shortest(tried)}")
    speed = next(one.speed for one in tried if (one.size, one.consistency) == (plan.size, plan.consistency))
    return fitted, steps_per_epoch, [
        f"about {plan.seconds / 60:.1f} of {minutes:g} minutes on this machine: "
        f"{speed.preparation + START_SECONDS:,.0f} s preparation, {speed.step:.2g} s a step, {plan.validations} "
        f"validations of {speed.loss + plan.valid_sentences * speed.sentence:,.0f} s, "
        f"{plan.test_sentences * speed.sentence:,.0f} s test",
        *with_more_time(tried, plan, minutes)]


def _write_steps(draft: Draft, settings: Settings, train: CorpusReader, monolingual: Sequence[Path],
                 checker: LanguageChecker) -> Recipe:
    """Write the recipes that follow each other for text in the target language, instead of the only one. Return the
    first of them. checker: result of `check_monolingual_text`."""
    recipe, target = draft.write(settings), draft.languages[1]
    (draft.directory / Step.ONLY.value).unlink()
    sentences = _held_out_sentences(recipe)
    lines, read, wrong = choose_lines(monolingual, sentences, MONOLINGUAL_PER_PAIR * draft.kept, draft.seed, checker)
    assert train.tokenizers is not None
    lengths = [(line, len(ids)) for line, ids in zip(lines, train.tokenizers.target.encode(lines), strict=True)
               if len(ids) <= recipe.data.cleaning.max_pieces]                  # others would be dropped
    draft.monolingual = Monolingual(f"monolingual.{target}", len(lengths), read, wrong)
    (draft.directory / draft.monolingual.file).write_text("".join(f"{line}\n" for line, _ in lengths),
                                                          encoding="utf-8", newline="\n")
    first = draft.write(settings, Step.BASELINE)
    draft.write(settings, Step.REVERSE)
    draft.write(replace(settings, reason="As many steps as the first recipe has.",
                        consistency=consistency_for(draft.kept + len(lengths))), Step.FINAL)
    return first


def _with_others(draft: Draft, settings: Settings, text: GivenText, scanned: CorpusReport) -> tuple[Settings, int]:
    """Write the recipe of a model that also learns pairs of other languages. Return its settings and its steps per
    epoch. text, scanned: these pairs, and the report on them."""
    sentences = _held_out_sentences(draft.write(settings))
    codes, pairs = (str(text.recipe.languages.source), text.recipe.languages.target), 0
    with ExitStack() as stack:
        files = _text_files(stack, draft.directory, "other", codes)
        for _, *pair in text.pairs():
            if not sentences.share_one_with(*pair):
                pairs += 1
                _write_pair(files, *pair)
    of = f"pairs of {' and '.join(codes)}"
    cleaning = [_cleaning_line(kind, scanned.findings[kind], scanned.lines, of)
                for kind in frequent_kinds(scanned.findings, scanned.lines) if kind in CLEANING]
    keys = {line.splitlines()[-1] for line in cleaning}
    own = [line for line in settings.cleaning if line.splitlines()[-1] not in keys and not (
        line.endswith(BY_LINGUA) and any(main_language(code) not in lingua_languages() for code in codes))]
    settings = replace(settings, cleaning=(*own, *cleaning))
    draft.other = OtherPairs(text, scanned, pairs, pairs)
    recipe = draft.write(settings)
    kept = CorpusReader("train", recipe.data.train[1], recipe, None)
    kept.read_train()
    if kept.report.error or not kept.report.pairs:
        raise CorpusError(kept.report.error or f"--other {text.label}: of {scanned.lines:,} pairs, none is left after "
                          "cleaning and without the sentences of the validation and test sets. Give other pairs.")
    draft.other = OtherPairs(text, scanned, pairs, kept.report.pairs, max(1, min(MAX_WEIGHT, round(
        kept.report.pairs / draft.kept * OWN_SHARE / (1 - OWN_SHARE)))))
    total = draft.kept + draft.other.kept
    settings = replace(settings, consistency=consistency_for(total))
    recipe = draft.write(settings)
    tokenizers = make_tokenizers(TrainingText.of(recipe))
    readers = [CorpusReader("train", spec, recipe, tokenizers) for spec in recipe.data.train]
    for reader in readers:
        reader.read_train()
    return _full(draft, settings, size_for(total), readers)


def _held_out_sentences(recipe: Recipe) -> Sentences:
    return Sentences(pair[1:] for spec in recipe.data.held_out().values()
                     for pair in GivenText([spec], recipe).pairs())


def _scan(text: GivenText) -> tuple[CorpusReport, dict[str, int]]:
    """Read the whole text. Return a report with the number of lines of each kind, and the number of pairs with the same
    placeholders, or tags, on both sides.
    """
    report, augmented = CorpusReport("train", text.label), dict.fromkeys(AUGMENTED, 0)

    def pairs() -> Iterator[Pair]:
        for number, source, target in text.pairs(report.counts):
            for kind, pattern in (("placeholders", PLACEHOLDER), ("tags", TAG)):
                if (found := sorted(pattern.findall(source))) or pattern.search(target):
                    augmented[kind] += 1
                    if found != sorted(pattern.findall(target)):
                        report.findings.setdefault(f"{kind}_differ", Finding()).add(number)
            yield number, Source(source), target

    read = scanned(pairs(), report, 2, text.recipe.languages, {})
    for _ in console.with_progress(f"scanning {text.label}", read, "pairs"):
        pass
    if "identical" in report.findings and report.findings["identical"].count > report.lines / 2:
        raise CorpusError(f"{text.label}: of {report.lines:,} pairs, {report.findings['identical']} have the same "
                          "text on both sides. Give the source text and its translation.")
    return report, augmented


def _given_sets(recipe: Recipe, valid: Sequence[Corpus], test: Sequence[Corpus]) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of the given validation and test sets, by name: all validation sets are one, `valid`; a test set
    has the name of its file. Pairs with a blank side are left out with a warning.
    """
    sets: dict[str, list[tuple[str, str]]] = {}
    for kind, corpus in [*(("valid", one) for one in valid), *(("test", one) for one in test)]:
        pairs = list(GivenText([corpus], recipe).pairs())
        kept = [(source, target) for _, source, target in pairs if not is_blank(source) and not is_blank(target)]
        if not kept:
            raise CorpusError(f"--{kind} {corpus.label} has no pair with text on both sides. Give another set.")
        if len(kept) < len(pairs):
            console.warn(f"--{kind} {corpus.label}: {len(pairs) - len(kept):,} of {len(pairs):,} pairs are left out "
                         "because a side is blank")
        name = kind
        if kind == "test" and len(test) > 1:
            stem = re.sub("[^A-Za-z0-9_-]", "_", Path(corpus.label).name.partition(".")[0]) or "test"
            name = next(one for one in (stem, *(f"{stem}_{number}" for number in range(2, 1000)))
                        if one not in sets and one not in NAMES)
        sets[name] = sets.get(name, []) + kept
    return sets


def _choose(text: GivenText, sentences: Sentences, split: Sequence[str], seed: int,
            is_suitable: Callable[[str, str], bool]) -> tuple[HeldOut, frozenset[int]]:
    """Choose the held-out pairs. Return them, and the numbers of the pairs with a sentence of a given set.

    sentences: those of the given sets. split: names of the sets to choose.
    """
    overlapping = []

    def others() -> Iterator[tuple[int, str, str]]:
        for number, source, target in text.pairs():
            if sentences.share_one_with(source, target):
                overlapping.append(number)
            else:
                yield number, source, target

    if split:
        chosen = choose_held_out(others(), seed, is_suitable, split)
    else:
        chosen = HeldOut(frozenset(), frozenset(), frozenset())
        for _ in others():
            pass
    return chosen, frozenset(overlapping)


def _is_suitable(source: str, target: str) -> bool:
    """Return True if a pair may be in a validation or test set: neither side is empty or damaged, the sides are not
    equal, and their numbers agree."""
    return not any(is_blank(text) or is_damaged(text) for text in (source, target)) and source != target and (
        number_agreement(source, target) == 1)


def _write_texts(text: GivenText, directory: Path, languages: tuple[str, str], held_out: HeldOut,
                 left_out: frozenset[int], own: dict[str, list[tuple[str, str]]]) -> dict[str, int]:
    """Write the files of all sets, and return the number of pairs of each set."""
    names = dict.fromkeys(["train", *(["valid"] if held_out.valid else []), *(["test"] if held_out.test else []), *own])
    counts = dict.fromkeys(sorted(names, key=lambda name: (name != "train", name != "valid")), 0)
    with ExitStack() as stack:
        files = {name: _text_files(stack, directory, name, languages) for name in counts}

        def write(name: str, *pair: str) -> None:
            counts[name] += 1
            _write_pair(files[name], *pair)

        for number, *pair in text.pairs():
            if number not in left_out:
                write("valid" if number in held_out.valid else "test" if number in held_out.test else "train", *pair)
        for name, pairs in own.items():
            for one in pairs:
                write(name, *one)
    return counts


def _text_files(stack: ExitStack, directory: Path, name: str, languages: Sequence[str]) -> list[TextIO]:
    return [stack.enter_context((directory / f"{name}.{code}").open("w", encoding="utf-8", newline="\n"))
            for code in languages]


def _write_pair(files: Sequence[TextIO], *pair: str) -> None:
    for file, side in zip(files, pair, strict=True):
        file.write(side.replace("\r", " ") + "\n")


def _read_train(recipe: Recipe) -> tuple[CorpusReader, CorpusChecker]:
    """Train the tokenizer, and read and check the training text with it."""
    began = time.perf_counter()
    tokenizers = make_tokenizers(TrainingText.of(recipe))
    seconds = time.perf_counter() - began
    reader, checker = read_and_check(recipe.data.train[0], recipe, tokenizers)
    reader.tokenizer_seconds = seconds
    return reader, checker


def _cleaning_line(kind: str, finding: Finding, lines: int, pairs: str = "pairs") -> str:
    return (f"    # {finding.count:,} of {lines:,} {pairs} {LINE_WARNINGS[kind][1]}.\n"
            f"{CAUTION.get(kind, '')}    {CLEANING[kind]}\n")


def _language_line(report: CorpusReport, identified: Collection[str], languages: tuple[str, str]
                   ) -> tuple[str, list[str]]:
    """Return the line of data.cleaning that drops pairs in a wrong language, "" if there are few, and warnings about
    identified languages."""
    checks = report.judgement
    if checks is None:
        return "", []
    for filter, findings, checked, share, problem in (
            ("sides", checks.wrong_side, checks.pairs, MAX_WRONG_SIDE_SHARE, "the language of the other side"),
            ("lingua", checks.wrong_language, checks.recognised, MAX_WRONG_LANGUAGE_SHARE, "another language")):
        side, count = max(((side, finding.count) for side, finding in findings.items()), key=itemgetter(1),
                          default=("", 0))
        if filter == "lingua" and side in identified and count > max(share * checked, 2):
            return "", [f"the {side} was identified as {language_name(languages[side == 'target'])}, but {count:,} of "
                        f"{checked:,} checked lines look like another language. Give its language with "
                        f"--{side}-language, also if it is none of the 75 that lingua knows."]
        if max(share * checked, 2) < count < checked / 2:                       # else the sides are exchanged
            line = BY_LINGUA if filter == "lingua" else f"    language: {filter}\n"
            return f"    # {count:,} of {checked:,} checked pairs look like {problem} on a side.\n{line}", []
    return "", []


def _held_out_warnings(recipe: Recipe, checker: CorpusChecker, own: Collection[str]
                       ) -> tuple[list[str], dict[str, float]]:
    """Return the warnings about the validation and test sets, and for each set half of the 95 % interval of BLEU. own:
    names of the given sets. The faults of the others are those of the training text."""
    warnings: list[str] = []
    intervals = {}
    for role, spec in recipe.data.held_out().items():
        name = role.removeprefix("test.")
        if name in own:
            reader = CorpusReader(role, spec, recipe, None)
            reader.read_held_out()
            reader.check_pairs(checker)
            add_corpus_warnings(reader.report, recipe.data.cleaning, warnings)
        targets = [target for _, _, target in GivenText([spec], recipe).pairs()]
        intervals[name] = expected_interval(targets, recipe.languages.target)
        if intervals[name] > MAX_INTERVAL:
            needed = round(len(targets) * (intervals[name] / GOOD_INTERVAL) ** 2, -1)
            warnings.append(f"{name}: with {len(targets):,} pairs, BLEU is known to about ± {intervals[name]:.0f} "
                            "(95 %), and smaller differences mean nothing. Some "
                            f"{needed:,.0f} pairs like these give ± {GOOD_INTERVAL:.0f}: give a set of your own with "
                            f"--{role.partition('.')[0]}, or add text.")
    return warnings, intervals


def _steps_per_epoch(recipe: Recipe, train: Sequence[CorpusReader]) -> int:
    """Return the number of optimizer steps of an epoch. Raises CorpusError if cleaning drops all pairs."""
    report = Report(recipe.name, [])
    estimate_training(TrainingText.of(recipe), [reader.lengths for reader in train], report)
    return int(report.training["steps_per_epoch"])
