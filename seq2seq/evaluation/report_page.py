"""The report as one HTML page that loads nothing from the network. All text of systems and test sets is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from seq2seq.errors import CheckpointError, CorpusError
from seq2seq.evaluation import error_analysis
from seq2seq.evaluation.calibration import reliability
from seq2seq.evaluation.learning_curves import compared_curves, learning_curves
from seq2seq.evaluation.pages import escaped, filled_page, page_table
from seq2seq.evaluation.recipe_tests import TestSet
from seq2seq.evaluation.scores import TITLES
from seq2seq.evaluation.significance import Comparison, compare, signed
from seq2seq.evaluation.systems import System
from seq2seq.recipe.recipe_differences import settings_that_differ
from seq2seq.storage.run_directory import LOG_FILE, log_records
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.translation.output_faults import FAULTS, faults

METRICS = ("bleu", "chrf", "ter")

SETTINGS_IN_SHORT = ("model.type", "model.d_model", "model.encoder_layers", "model.decoder_layers", "model.num_heads",
                     "model.feed_forward", "model.dropout", "tokenizer.type", "tokenizer.vocab_size",
                     "training.batch_tokens", "training.learning_rate", "training.max_steps", "decoding.beam_size",
                     "decoding.length_penalty")
"""Keys whose values describe a single system."""
_SENTENCES = """
<p class="note">In a translation, <ins>words like this</ins> are not in the reference; they can still be right. In the
reference, <del>words like this</del> are missing in the first translation. chrF (0 to 100) is that of the sentence
alone; "expected" is the chrF that the model's own confidence predicts, with its standard deviation.</p>
<div id="controls">
<label>test set<select id="test"></select></label>
<label>order<select id="order"></select></label>
<label>fault<select id="fault"></select></label>
<label>search in all texts<input id="search" type="search"></label>
<button id="before" type="button" aria-label="previous sentences">◀</button><span id="place" role="status"></span>
<button id="after" type="button" aria-label="next sentences">▶</button>
</div>
<div class="wide" tabindex="0" role="region" aria-label="sentences"><table id="list"></table></div>"""

NOTES = {
    "Groups of sentences":
        "Mean chrF of the sentences of each group: a system can be better on short ones and worse on long ones.",
    "Faults, numbers and terms":
        "Sentences in which a check without a reference finds a fault. Loop: words repeat that the source does not "
        "repeat. Too short, too long: the length is implausible for the source. Copied: a part is not translated. Lost "
        "URL, lost number: missing or changed.",
    "Unusual text":
        "BLEU if the sources are changed as users write them, against the same references.",
    "Confidence":
        "A model is well calibrated if both bars of a row are equally long.",
    "n-grams":
        "Sequences of words whose counts in the translations and in the references differ most.",
    "Speed and size":
        "Speeds depend on the machine and on what else it did; compare those of one report only.",
    "Data and cleaning":
        "Pairs of the training text, and how many of them each rule of data.cleaning dropped."}
"""Explanations of sections by title."""
Columns = Callable[[Sequence[str], Sequence[str]], Mapping[str, str]]
"""Function that takes the sources and a system's translations of a test set, and returns further cells of the table of
faults, by the titles of their columns. The titles depend only on the sources."""


@dataclass(frozen=True)
class Lines:
    """Measures of each sentence of a test set, by system: sentence chrF, faults, and expected chrF with its standard
    deviation (None if the system has no calibration)."""

    chrf: list[list[float]]
    faults: list[list[list[str]]]
    expected: list[list[tuple[float, float]] | None]


def page(systems: Sequence[System], tests: Sequence[TestSet], *, frequencies: Mapping[str, int] | None = None,
         columns: Columns | None = None, scores: Mapping[str, Sequence[Sequence[float]]] | None = None) -> str:
    """Return the report as HTML.

    Args:
        frequencies: occurrences of source words in the training text; None: not known.
        columns: further columns of the table of faults; None: no further columns.
        scores: additional scores by name: for each system, a number for each sentence. Requires a single test set.
    """
    by_test = {test.name: _lines_of(test, systems) for test in tests}
    sections = [("Scores", [part for test in tests for part in _scores(test, systems, scores or {})]),
                ("Sentences", [_SENTENCES])]
    sections += [("Learning curves", _curves(systems)),
                 ("Groups of sentences", [part for test in tests for part in _groups(
                     test, systems, by_test[test.name], frequencies)]),
                 ("Faults, numbers and terms", [part for test in tests for part in _faults(
                     test, systems, by_test[test.name], columns)]),
                 ("Unusual text", [part for test in tests for part in _robustness(test, systems)]),
                 ("Confidence", [part for test in tests for part in _calibration(test, systems, by_test[test.name])]),
                 ("n-grams", [part for test in tests for part in _ngrams(test, systems)]),
                 ("Speed and size", _speed(systems, tests)), ("Data and cleaning", _data(systems)),
                 _settings(systems), ("Files", _hashes(systems))]
    names = [system.name for system in systems]
    body = [f'<section id="s{number}"><h2>{escaped(title)}</h2>{_note(title)}{"".join(parts)}</section>'
            for number, (title, parts) in enumerate(sections) if parts]
    contents = [f'<a href="#s{number}">{escaped(title)}</a>' for number, (title, parts) in enumerate(sections)
                if parts]
    values = {"systems": names, "tests": [_sentences(test, systems, by_test[test.name]) for test in tests]}
    return filled_page("report_page.html", title=escaped(", ".join(names)), contents=" ".join(contents),
                       body="\n".join(body), data=_json(values))


def _note(title: str) -> str:
    """Return the explanation of a section as HTML."""
    return f'<p class="note">{escaped(NOTES[title])}</p>' if title in NOTES else ""


def _lines_of(test: TestSet, systems: Sequence[System]) -> Lines:
    chrf, found = [], []
    expected: list[list[tuple[float, float]] | None] = []
    for system in systems:
        translations = system.translations[test.name]
        chrf.append(error_analysis.sentence_scores(translations, test.references))
        found.append([list(faults(source, text, *test.languages)) for source, text in
                      zip(test.texts or [""] * len(translations), translations, strict=True)])
        confidences = system.confidences.get(test.name)
        if system.calibration is None or confidences is None:
            expected.append(None)
        else:
            values, spread = system.calibration.expected(confidences)
            expected.append(list(zip(values.tolist(), spread.tolist(), strict=True)))
    return Lines(chrf, found, expected)


# Sections


def _scores(test: TestSet, systems: Sequence[System], others: Mapping[str, Sequence[Sequence[float]]]) -> list[str]:
    language, rows, signatures = test.languages[1], [], {}
    first = systems[0]
    for number, system in enumerate(systems):
        translations = system.translations[test.name]
        row = [system.name, f"{system.precision} on {system.device}" if system.precision else "not known (a file)"]
        found = error_analysis.scores_with_intervals(translations, test.references, language, METRICS)
        differences_to_first = _differences(system, first, test) if number else dict.fromkeys(METRICS, "")
        for metric, score in found.items():
            row.append(f"{score.value:.2f} ± {score.half:.2f}")
            signatures[metric] = score.signature
            row += [differences_to_first[metric]] * (len(systems) > 1)
        row += [f"{sum(values[number]) / len(values[number]):.4f}" for values in others.values()]
        rows.append(row)
    header = ["system", "precision"]
    for metric in METRICS:
        header += [TITLES[metric], *([f"{TITLES[metric]}: difference"] if len(systems) > 1 else [])]
    explained = ["BLEU and chrF: higher is better; TER: lower is better."]
    if len(systems) > 1:
        explained.append(f"Differences are to {first.name}. p (paired bootstrap, Koehn 2004) is the probability of a "
                         "difference of this size if the systems were equally good: below 0.05, it is called "
                         "significant. It covers the choice of sentences, not the chance of training.")
    explained.append(f"±: 95 % interval, from a bootstrap of {error_analysis.RESAMPLED:,} test sets. Signatures: "
                     + "; ".join(f"{TITLES[metric]} {signature}" for metric, signature in signatures.items()) + ".")
    return [_heading(test, len(test.references)), page_table([*header, *others], rows),
            *(f'<p class="note">{escaped(text)}</p>' for text in explained)]


def _differences(system: System, first: System, test: TestSet) -> dict[str, str]:
    """Return the difference of a system to the first, and its significance, as text for each metric."""
    try:
        found = compare(system.translations[test.name], first.translations[test.name], [test.references],
                        test.languages[1], METRICS, names=[system.name, first.name, test.name])
    except CorpusError as error:                                                # a system has no text at all
        return dict.fromkeys(METRICS, str(error))
    return {metric: _verdict(one) for metric, one in found.items()}


def _verdict(found: Comparison) -> str:
    if found.p_value is None:
        return f"{signed(found.difference)} (too few lines differ for a test)"
    return f"{signed(found.difference)} (p = {found.p_value:.3f}{', significant' * found.significant})"


def _curves(systems: Sequence[System]) -> list[str]:
    """Draw one picture for all runs, so that they can be compared. The first run decides which score is drawn."""
    runs: dict[str, list[dict[str, Any]]] = {}
    sections = []
    for system in systems:
        if system.run is None or system.recipe is None:
            continue
        try:
            runs[system.name] = [record for _, record in log_records(system.run / LOG_FILE)]
        except CheckpointError:
            continue
        sections.append(system.recipe.training)
    if not runs:
        return []
    metric, smoothed = sections[0].best_metric, any(section.label_smoothing > 0 for section in sections)
    name, records = next(iter(runs.items()))
    picture = learning_curves(records, name, metric, smoothed) if len(runs) == 1 else compared_curves(
        {run: [log] for run, log in runs.items()}, f"{len(runs)} runs", metric, smoothed)
    return [f"<figure>{picture}</figure>"]


def _groups(test: TestSet, systems: Sequence[System], lines: Lines, frequencies: Mapping[str, int] | None) -> list[str]:
    if test.texts is None:
        return []
    parts = [_heading(test)]
    for title, groups in error_analysis.buckets(test.texts, test.languages[0], frequencies).items():
        rows = [[group.name, f"{len(group.sentences):,}",
                 *(_bar(sum(chrf[index] for index in group.sentences) / len(group.sentences)) for chrf in lines.chrf)]
                for group in groups]
        parts.append(page_table([title, "sentences", *(f"{system.name}: mean chrF" for system in systems)], rows,
                            raw_from=2))
    return parts


def _faults(test: TestSet, systems: Sequence[System], lines: Lines, columns: Columns | None) -> list[str]:
    if test.texts is None:
        return []
    rows = []
    others: Mapping[str, str] = {}
    for system, by_line in zip(systems, lines.faults, strict=True):
        others = columns(test.texts, system.translations[test.name]) if columns else {}
        counts = [sum(name in line for line in by_line) for name in FAULTS]
        rows.append([system.name, *(f"{count:,}" for count in counts), *others.values()])
    return [_heading(test), page_table(["system", *(name.replace("_", " ") for name in FAULTS), *others], rows)]


def _robustness(test: TestSet, systems: Sequence[System]) -> list[str]:
    measured = [system for system in systems if system.slices.get(test.name)]
    if not measured:
        return []
    names = list(measured[0].slices[test.name])
    rows = [[system.name, *(f"{system.slices[test.name][name]:.2f}" for name in names)] for system in measured]
    return [_heading(test), page_table(["system (BLEU)", *(name.replace("_", " ") for name in names)], rows)]


def _calibration(test: TestSet, systems: Sequence[System], lines: Lines) -> list[str]:
    parts = []
    for system, chrf in zip(systems, lines.chrf, strict=True):
        if system.calibration is None or test.name not in system.confidences:
            continue
        texts = [index for index, reference in enumerate(test.references) if not is_blank(reference)]
        found = reliability(system.calibration, [system.confidences[test.name][index] for index in texts],
                            [chrf[index] for index in texts])
        rows = [[f"{number:,}", _bar(expected), _bar(actual)] for number, expected, actual in found.rows]
        parts += [f"<h3>{escaped(f'{system.name}, {test.name}')}</h3>"
                  f"<p>Mean difference between expected and actual chrF: {found.error:.1f}. The expected chrF of a "
                  "translation is a function of its mean log-probability, fitted on the validation set.</p>",
                  page_table(["sentences", "expected chrF", "actual chrF"], rows, raw_from=1)]
    return parts


def _ngrams(test: TestSet, systems: Sequence[System]) -> list[str]:
    parts = [_heading(test)]
    for system in systems:
        sides = error_analysis.ngram_differences(system.translations[test.name], test.references, test.languages[1])
        parts.append('<div class="pair">' + "".join(
            page_table([f"{system.name}: {title}", "translations", "references"],
                   [[ngram, f"{ours:,}", f"{theirs:,}"] for ngram, ours, theirs in side])
            for title, side in zip(("too often", "too rarely"), sides, strict=True)) + "</div>")
    return parts


def _speed(systems: Sequence[System], tests: Sequence[TestSet]) -> list[str]:
    rows = []
    for system in systems:
        if system.recipe is None:
            continue
        seconds = sum(system.seconds.values())
        count = sum(len(test.references) for test in tests)
        parameters = system.metadata.get("parameters")
        rows.append([system.name, f"{count / max(seconds, 1e-9):,.1f}", f"{system.precision} on {system.device}",
                     f"{parameters:,}" if isinstance(parameters, int) else "unknown", f"{system.megabytes:,.1f}",
                     _memory(system.peak_megabytes)])
    header = ["system", "sentences/s in this report", "precision", "parameters", "MB on disk",
              "MB of memory besides the weights"]
    return [page_table(header, rows)] if rows else []


def _memory(megabytes: float) -> str:
    """Return memory rounded to 50 MB. The exact amount is unknown, because freed memory is kept for reuse."""
    if not megabytes:
        return "unknown"
    return f"about {round(megabytes / 50) * 50:,}" if megabytes >= 50 else "below 50"


def _data(systems: Sequence[System]) -> list[str]:
    rows = []
    for system in systems:
        try:
            for label, count in system.metadata.get("corpora", {}).items():
                reasons = ", ".join(f"{reason} {number:,}" for reason, number in count["dropped"].items()) or "none"
                rows.append([system.name, label, f"{count['lines']:,}", f"{count['kept']:,}", reasons])
        except (AttributeError, KeyError, TypeError, ValueError) as error:      # another person's metadata
            raise CheckpointError(f"{system.path}: the counts of the corpora in its metadata.json have an unexpected "
                                  f"form ({type(error).__name__}: {error}).") from error
    return [page_table(["system", "corpus", "pairs", "kept", "dropped in cleaning"], rows)] if rows else []


def _settings(systems: Sequence[System]) -> tuple[str, list[str]]:
    """Return the title and the table of settings: of several models, those that differ; of one, the most important."""
    models = [system for system in systems if system.recipe is not None]
    if len(models) < 2:
        rows = [[key, _value(attrgetter(key)(model.recipe))] for model in models for key in SETTINGS_IN_SHORT]
        return "Settings", [page_table(["key", models[0].name], rows)] if rows else []
    rows = settings_that_differ([model.recipe for model in models if model.recipe])
    return "Settings that differ", [page_table(["key", *(system.name for system in models)], rows) if rows else
                                    "<p>No setting differs.</p>"]


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)


def _hashes(systems: Sequence[System]) -> list[str]:
    rows = [[system.name, name, value] for system in systems for name, value in system.hashes.items()]
    return [page_table(["system", "file", "SHA-256"], rows)] if rows else []


def _sentences(test: TestSet, systems: Sequence[System], lines: Lines) -> dict[str, Any]:
    """Return the values for the table of sentences, which the page's script shows."""
    return {"name": test.name, "sources": test.texts, "references": test.references,
            "translations": [system.translations[test.name] for system in systems],
            "chrf": [[round(value, 1) for value in values] for values in lines.chrf], "faults": lines.faults,
            "expected": [values and [[round(value, 1), round(spread, 1)] for value, spread in values]
                         for values in lines.expected]}


# HTML


def _heading(test: TestSet, lines: int | None = None) -> str:
    return f"<h3>{escaped(test.name)}{'' if lines is None else f': {lines:,} sentences'}</h3>"


def _bar(value: float) -> str:
    return f'<span class="bar" style="width:{max(0.0, min(value, 100.0)):.1f}px"></span> {value:.1f}'


def _json(values: Any) -> str:
    """Return values as JSON in which no text can end the script element."""
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
