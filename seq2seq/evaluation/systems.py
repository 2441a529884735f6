"""Systems of a report: runs, bundles and files of translations, on the same test sets."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.data.corpus import read_pairs, read_texts, validation_pairs
from seq2seq.data.modifiers import robustness_slices
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.devices import kind, return_freed_memory
from seq2seq.errors import CorpusError, OptionError, UserError
from seq2seq.evaluation.calibration import Calibration, fit
from seq2seq.evaluation.error_analysis import sentence_scores, word_frequencies
from seq2seq.evaluation.recipe_tests import TestSet, read_translations
from seq2seq.evaluation.scores import announce, corpus_scores
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import bundle_metadata, recipe_of_training, resolve_model_path, run_of
from seq2seq.storage.directories import read_metadata
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator

MAX_VALIDATION = 2_000
"""Maximum number of validation pairs that the confidence is calibrated on."""


@dataclass
class System:
    """System of a report.

    path: a run, a bundle or a file. translations, confidences, seconds: by test set. A file has only translations. The
    confidence of a translation is its mean log-probability per token. slices: BLEU of each test set with changed text,
    by test set and by slice (see `robustness_slices`). run: None for a bundle or a file. megabytes: size on disk.
    peak_megabytes: peak memory, without the weights, during translation; 0 if the operating system does not report it.
    """

    name: str
    path: Path
    translations: dict[str, list[str]] = field(default_factory=dict)
    confidences: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    slices: dict[str, dict[str, float]] = field(default_factory=dict)
    calibration: Calibration | None = None
    recipe: Recipe | None = None
    run: Path | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    megabytes: float = 0.0
    peak_megabytes: float = 0.0
    precision: str = ""
    device: str = ""


def read_system(path: Path, tests: Sequence[TestSet], *, device: str = "auto", precision: str = "reference",
                threads: int | None = None, robustness: bool = False) -> System:
    """Return a system with its translations of the test sets. If it is a model, this function translates them.

    robustness: True to also translate test sets with changed text (see `robustness_slices`).
    """
    if not path.is_dir():
        return System(path.name, path, {tests[0].name: read_translations(path, tests)})
    bundle = resolve_model_path(path)
    recipe = recipe_of_training(bundle)
    hashes = dict(read_metadata(bundle, "bundle", required=())["sha256"])
    megabytes = sum(file.stat().st_size for file in bundle.iterdir() if file.is_file()) / 1e6
    translator = Translator.load(bundle, device, precision, threads)
    system = System((run_of(bundle) or path.absolute()).name, path, recipe=recipe, run=path if bundle != path else None,
                    metadata=bundle_metadata(bundle), hashes=hashes, megabytes=megabytes,
                    precision=translator.precision, device=translator.device)
    directed = {test.name: translator.into(*reversed(test.languages)) for test in tests}
    first = tests[0]
    directed[first.name].translate(first.sources_for(translator.context)[:200])   # libraries allocate at first use
    memory = _reset_peak_memory(translator.device)
    for test in tests:
        sources = test.sources_for(translator.context)
        began = time.perf_counter()
        found = _translate(directed[test.name], sources, system.name, test.name)
        system.seconds[test.name] = time.perf_counter() - began
        system.translations[test.name] = [best.text for best in found]
        system.confidences[test.name] = [_confidence(best) for best in found]
    system.peak_megabytes = max(_peak_memory(translator.device) - memory, 0) / 1e6
    for test in tests:
        if robustness:
            system.slices[test.name] = _robustness(directed[test.name], test, system.name)
    system.calibration = _calibrated(translator, recipe, system.name)
    return system


def tell_apart(systems: Sequence[System]) -> list[System]:
    """Return all systems, with paths in place of names that are not unique. Paths that are equal get a number."""
    names, paths = [system.name for system in systems], [system.path for system in systems]
    return [system if names.count(system.name) == 1 else
            replace(system, name=f"{system.name} {number}" if paths.count(system.path) > 1 else str(system.path))
            for number, system in enumerate(systems, 1)]


def read_scores(options: Sequence[str], systems: int, lines: int) -> dict[str, list[list[float]]]:
    """Return additional scores by name: for each system, the score of each line. options: texts such as comet=FILE."""
    found: dict[str, list[list[float]]] = {}
    for option in options:
        name, equals, path = option.partition("=")
        if not (name and equals and path):
            raise OptionError(f"--scores {option}: expected NAME=FILE, such as comet=scores.txt.")
        texts = read_texts(Path(path))
        require_as_many_lines([path, "the test set"], len(texts), lines)
        values = []
        for number, text in enumerate(texts, 1):
            try:
                values.append(float(text))
            except ValueError:
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                raise CorpusError(f"{path}:{number}: expected a number, found '{text[:30]}'.")
        found.setdefault(name, []).append(values)
    for name, files in found.items():
        if len(files) != systems:
            raise OptionError(f"--scores {name}: {len(files)} files for {systems} systems. Give one for each, in the "
                              "order of the systems.")
    return found


def training_frequencies(systems: Sequence[System], language: str) -> Counter[str] | None:
    """Return the frequencies of source words in the training text of the first model whose text can be read."""
    for system in systems:
        if system.recipe is None:
            continue
        try:
            return word_frequencies((source.text for spec in system.recipe.data.train if spec.translated_by is None
                                     for _, source, _ in read_pairs(system.recipe, spec, context=0)),
                                    language)
        except CorpusError:
            console.warn(f"the training text of {system.name} cannot be read, so that the report has no table by the "
                         "frequency of words")
    return None


def _translate(translator: Translator, lines: Sequence[str | Source], system: str, text: str) -> list[Translation]:
    announce(translator, len(lines), text)
    with console.progress(f"{system}: {text}", len(lines)) as advance:
        return [n_best[0] for n_best in translator.translate(lines, progress=advance)]


def _reset_peak_memory(device: str) -> int:
    """Reset the peak memory and return the memory in use now, in bytes.

    On a GPU, this is GPU memory; otherwise, it is the memory of this process, which only Linux reports.
    """
    gc.collect()
    if kind(device) == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.memory_allocated(device))
    return_freed_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")                           # proc(5): resets VmHWM
    return _peak_memory(device)


def _peak_memory(device: str) -> int:
    """Return the peak memory in bytes since `_reset_peak_memory`; 0 if it is unknown."""
    if kind(device) == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def _confidence(translation: Translation) -> float:
    return translation.log_probability / max(translation.tokens, 1)


def _robustness(translator: Translator, test: TestSet, name: str) -> dict[str, float]:
    sources = [translator.reader.source(line) for line in test.sources_for(translator.context)]
    texts = [as_line(replace(source, tag="")) for source in sources]            # with their contexts, without tags
    scores = {}
    for slice, (lines, expected) in robustness_slices(texts, test.references, test.languages).items():
        changed = [replace(source, text=line, context=None) for line, source in zip(lines, sources, strict=True)]
        translations = [best.text for best in _translate(translator, changed, name, f"{test.name}: {slice}")]
        scores[slice] = corpus_scores(translations, [expected], test.languages[1], ["bleu"])["bleu"].value
    return scores


def _calibrated(translator: Translator, recipe: Recipe, name: str) -> Calibration | None:
    """Return the calibration on the model's validation set; None if the set cannot be read or is too small."""
    try:
        pairs = [(source, target) for _, source, target in islice(validation_pairs(recipe), MAX_VALIDATION)]
    except UserError:
        console.warn(f"the validation text of {name} cannot be read, so that its confidence is not calibrated")
        return None
    found = _translate(translator, [source for source, _ in pairs], name, "the validation set")
    # The blank lines between documents would be certain translations with a score of 0.
    scored = [(best, target) for best, (_, target) in zip(found, pairs, strict=True) if not is_blank(target)]
    return fit([_confidence(best) for best, _ in scored],
               sentence_scores([best.text for best, _ in scored], [target for _, target in scored]))
