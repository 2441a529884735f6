"""Adaptation of a model to the text of a domain, such as a translation memory, with little loss of quality elsewhere.

A model that is trained on the text of a domain alone forgets other text. So the training text also has general pairs
(mixed fine-tuning, Chu et al. 2017, arXiv:1701.03214). The validation set for early stopping has both kinds, too. The
adapted model is an average of the old and the new weights (Wortsman et al. 2022, arXiv:2109.01903). The share of the
new weights is chosen by validation scores on both kinds of text, and only if its gain on the domain is significant.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import BaseModel
from torch import Tensor

from seq2seq import console
from seq2seq.check.given_text import GivenText, corpora_of
from seq2seq.check.pair_checks import MIN_OTHER_LINES, LanguageChecker
from seq2seq.check.read_corpora import read_and_check
from seq2seq.check.split_text import Sentences, choose_held_out
from seq2seq.check.warnings import languages_in_words, train_warnings
from seq2seq.data.corpus import Counts, LinePair, as_lines, read_pairs
from seq2seq.data.preparation import cleaned
from seq2seq.devices import choose_device, choose_precision
from seq2seq.errors import CheckpointError, CorpusError, OptionError, UserError
from seq2seq.evaluation.scores import Score, ScoresByTest, Translate, evaluate_tests, score_pairs, to_dict
from seq2seq.evaluation.significance import Comparison, compare, expected_interval, signed, verdict
from seq2seq.files import regular_bytes, sha256_of
from seq2seq.inference.engines import native_obstacle
from seq2seq.inference.load_model import StoredModel, as_arrays, as_tensors, read_stored_model
from seq2seq.languages import language_name
from seq2seq.recipe import Corpus, Languages, Recipe, decoding_with, load_recipe
from seq2seq.recipe.directions import direction_into
from seq2seq.recipe.task import TRANSLATION
from seq2seq.signals import stopping_by_ctrl_c
from seq2seq.storage.atomic import new_directory, require_new
from seq2seq.storage.checkpoints import Card, load_bundle, recipe_with_text, resolve_model_path, save_best
from seq2seq.storage.directories import read_metadata
from seq2seq.storage.int8_score import Int8Score
from seq2seq.storage.run_directory import compare_with_stored_recipe
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.tokenizer import Tokenizers, reservoir_sample
from seq2seq.training.log_lines import print_int8
from seq2seq.training.run import train
from seq2seq.training.validation import scored_pairs
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator

TEXT, TRAINING, RECIPE_FILE = "text", "training", "recipe.yaml"
"""Contents of the directory of an adaptation, besides the model."""
INPUTS = "inputs.json"
"""File in the directory `text` with the checksums of everything that the text was made from."""
REPLAYED = 10
"""Maximum ratio of general to domain training pairs. Each epoch samples about as many general as domain pairs."""
MAX_REPEATS = 5
"""Maximum number of times that an epoch repeats the general pairs if they are fewer than the domain pairs. Without
repetition, a model of 10,000 general pairs lost quality on general text (recipes/finetuning)."""
MAX_VALIDATED = 500
"""Maximum number of domain pairs, and of general pairs, for validation, and of those that are split off for tests."""
PAIRS_PER_HELD_OUT = {"text": 10, "general": 4}
"""Minimum ratio of all pairs to the pairs of a validation or test set that is split off: a domain keeps 80 % of its
text for the training; of general text, up to half is for the measurement of the loss."""
MAX_COMPARED = 10_000
"""Maximum number of general pairs from which the languages of the text are learned."""
ENOUGH_GENERAL = PAIRS_PER_HELD_OUT["general"] * MAX_VALIDATED
"""Number of given general pairs from which the validation set has its maximum size."""
NO_OWN_TEXT = ("the model's own training or validation text is not known, not here, or cannot be read. Give general "
               f"text with --general: some {ENOUGH_GENERAL:,} pairs of ordinary sentences in the same languages, which "
               "the model must still translate well.")
EPOCHS, MIN_STEPS, MAX_STEPS = 20, 200, 5_000
SHARES = tuple(step / 10 for step in range(11))
"""Shares of the new weights in the averages to choose from."""

TextPair = tuple[str, str]


@dataclass(frozen=True)
class TradeOff:
    """Validation scores of an average of the old and the new weights. share: share of the new weights."""

    share: float
    domain: float
    general: float


@dataclass(frozen=True)
class Adaptation:
    """Result of `adapt`.

    metric: metric of all scores. table: validation scores of every share. chosen: row of `table` for the adapted model.
    validated: numbers of validation pairs of the domain and of general text. tests: comparison of the adapted model
    with the old one (`baseline`), by test set (`domain`, `general`). They influence no choice.
    """

    metric: str
    table: list[TradeOff]
    chosen: TradeOff
    validated: tuple[int, int]
    tests: dict[str, Comparison]


@stopping_by_ctrl_c()
def adapt(model: Path, domain: Sequence[Path], output: Path, *, general: Sequence[Path] = (), allow_loss: float = 0.5,
          seed: int = 1, settings: Sequence[str] = (), card: Card | None = None, source_language: str | None = None,
          target_language: str | None = None) -> Adaptation:
    """Adapt a model to the text of a domain, and write the adapted model as a run.

    Of a model of several directions, one is adapted. The adapted model translates in no other, because the loss in
    others is not measured.

    If an adaptation was interrupted, the same call resumes it.

    Args:
        model: a bundle or a run. domain: text of the domain; see `corpora_of`. output: directory of the adaptation.
        general: other text that the model has to translate as well as before; without it, the training, validation and
            test text of the model. Training and validation text must be on this machine.
        allow_loss: maximum decrease of the score on general validation text.
        seed: seed of the split of the text and of the training. settings: KEY=VALUE overrides of the training's recipe.
        card: see `save_bundle`.
        source_language, target_language: direction to adapt, if the model has several; None: the model's default.
    Raises:
        Stopped: Ctrl-C, also while the averages are scored; the training is kept then.
    """
    bundle = resolve_model_path(model)
    stored = read_stored_model(bundle)
    recipe, tokenizers = stored.recipe, stored.tokenizers
    del stored                                          # its weights are read again after the training
    if recipe.task is not TRANSLATION:
        raise UserError(f"{model} does not translate text. Only translation models can be adapted.")
    if recipe.data.context:
        raise UserError(f"{model}: a model with data.context cannot be adapted yet. Train it further with a recipe "
                        "that has training.start_from.")
    direction = _direction(recipe, str(model), source_language, target_language)
    recipe = recipe.model_copy(update={"languages": direction})
    given = {name: GivenText([corpus.resolve(Path()) for corpus in corpora_of(files, languages=recipe.languages.codes)],
                             recipe, "Give a table of two columns, source and target, without a header.")
             for name, files in (("text", domain), ("general", general)) if files}
    inputs = {"model": read_metadata(bundle, "bundle", required=())["sha256"], "seed": seed, "general": None,
              "languages": direction.pair, **{name: list(map(_fingerprint, text.corpora))
                                              for name, text in given.items()}}
    if not (output / TEXT / INPUTS).is_file():
        require_new(output)
        options = ["--output", str(output), f"--allow-loss={allow_loss:g}", f"--seed={seed}",
                   *([f"--source-language={source_language}"] if source_language else []),
                   *([f"--target-language={target_language}"] if target_language else []),
                   *(f"--set={setting}" for setting in settings)]
        _write(recipe, bundle, tokenizers, given, output, seed, inputs, settings,
               partial(_command, str(model), given, options))
    elif regular_bytes(output / TEXT / INPUTS) != json.dumps(inputs, sort_keys=True).encode():
        raise OptionError(f"{output} is an adaptation of another model, or with other text or another seed. Name a new "
                          "directory: --output DIR")
    # The model may have moved since.
    settings = [f"training.start_from={json.dumps(str(bundle), ensure_ascii=False)}", *settings]
    adapted_recipe = load_recipe(output / RECIPE_FILE, settings)
    metric = "bleu" if "bleu" in adapted_recipe.measures else "chrf"
    _print_sizes(output / TEXT, recipe.languages.target if metric == "bleu" else None, allow_loss)
    sets = {name: _read(output / TEXT, name) for name in ("domain.valid", "general.valid")}
    domain_pairs, general_pairs = map(len, sets.values())
    untested = load_recipe(output / RECIPE_FILE, (*settings, "data.test={}"))   # tested at the end
    compare_with_stored_recipe(untested, output / TRAINING, "Give --set as in the first call, or name a new directory: "
                                                            "--output DIR")
    console.print_message(f"training the new weights, in at most {adapted_recipe.training.max_steps:,} steps; its "
                          "scores are those of the new weights alone, on the validation pairs of both kinds")
    train(untested, output / TRAINING, advise=False, compares_text=False)

    trained = load_bundle(resolve_model_path(output / TRAINING))
    old, new = as_tensors(load_bundle(bundle).weights), as_tensors(trained.weights)
    device = choose_device(adapted_recipe.training.device)

    def translator(share: float, device: str = device, precision: str = "reference") -> Translator:
        weights = as_arrays(interpolated(old, new, share))
        # The metadata have the tags that the model knows, and how it aligns words.
        average = StoredModel(None, adapted_recipe, tokenizers, weights, trained.metadata)
        return Translator.of_model(average, device, precision)

    def scores(average: Translator, translated: list[list[str]]) -> list[Score]:
        """Return the scores on the validation text of the domain, and on general validation text. Append the
        translations of both to `translated`."""
        translate = _recorded(average, translated)
        return [score_pairs(average, pairs, [metric], translate)[metric] for pairs in sets.values()]

    console.print_message(f"scoring {len(SHARES)} averages of the old and the new weights on "
                          f"{domain_pairs:,} + {general_pairs:,} pairs")
    table, of_domain = [], dict[float, list[str]]()
    with console.progress("averages of the weights", len(SHARES), unit="averages") as advance:
        for share in SHARES:
            translated = list[list[str]]()
            table.append(TradeOff(share, *(score.value for score in scores(translator(share), translated))))
            of_domain[share] = translated[0]
            advance(1)

    def gain(row: TradeOff) -> Comparison:
        return compare(of_domain[row.share], of_domain[0], [[target for _, target in sets["domain.valid"]]],
                       recipe.languages.target, [metric])[metric]

    chosen = choose(table, allow_loss, lambda row: gain(row).significant)
    if chosen.share == 0:
        best = choose(table, allow_loss)
        reasons = [f"no average of the old and the new weights gains {metric} significantly on {given['text'].label} "
                   f"at a loss of at most {allow_loss} on general text:",
                   as_text(table, metric, (domain_pairs, general_pairs))]
        if best.share:
            reasons.append(f"the share {best.share} gains {signed(best.domain - table[0].domain)}: "
                           f"{verdict(gain(best))}.")
        reasons.append(f"No adapted model is written; keep using {model}, or give more text of the domain, and a new "
                       "directory with --output.")
        if max(row.domain for row in table) > best.domain:
            reasons.append("To allow a larger loss, give the same command with a larger --allow-loss; the training is "
                           "kept and will not be repeated.")
        raise UserError("\n".join(reasons))
    references = {name: [target for _, _, target in read_pairs(adapted_recipe, spec)]
                  for name, spec in adapted_recipe.data.test.items()}
    console.print_message("testing the old and the adapted model on " + " + ".join(
        f"{len(lines):,}" for lines in references.values()) + " pairs")
    (_, before), (after, adapted) = (_tested(translator(share), adapted_recipe) for share in (0, chosen.share))
    found = Adaptation(metric, table, chosen, (domain_pairs, general_pairs), {
        name: compare(adapted[name], before[name], [lines], recipe.languages.target, [metric])[metric]
        for name, lines in references.items()})
    # The validation scores of the training are not those of the average.
    metadata = {key: value for key, value in trained.metadata.items() if key not in ("validation", "int8")}
    if metric == "bleu" and native_obstacle(adapted_recipe.model, "int8") is None:
        console.print_message(f"scoring the adapted model in int8 on {domain_pairs:,} + {general_pairs:,} pairs")
        fast = scores(replace(translator(chosen.share, "cpu", "int8"), characters=None,
                              decoding=decoding_with(adapted_recipe.decoding, {"shortlist": 0})), [])
        int8 = Int8Score(mean(score.value for score in fast), mean((chosen.domain, chosen.general)),
                         choose_precision("reference", device), sum(map(len, sets.values())), fast[0].signature)
        print_int8(int8, "the adapted model")
        metadata |= int8.metadata()
    save_best(output, "adapted", interpolated(old, new, chosen.share), adapted_recipe, trained.tokenizer_files,
              {**metadata, "test": {name: to_dict(scores) for name, scores in after.items()},
               "adaptation": asdict(found)}, card)
    return found


def _direction(recipe: Recipe, model: str, source: str | None, target: str | None) -> Languages:
    """Return the direction that is adapted. source, target: languages of the command; None: those of the recipe."""
    found = direction_into(target or recipe.languages.target, recipe.directions, source, model)
    if len(recipe.directions) > 1:
        console.print_message(f"adapting the direction from {found.source} to {found.target}, the only one of the "
                              "adapted model; name another with --source-language and --target-language")
    return found


def choose(table: Sequence[TradeOff], allow_loss: float,
           is_significant: Callable[[TradeOff], bool] = lambda row: True) -> TradeOff:
    """Return the row with the best domain score among the rows whose general score is at most `allow_loss` below the
    general score of the first row (old weights), and whose gain on the domain is significant; the first row if there is
    none. Of several best rows, return the one with the smallest share."""
    gains = [row for row in table if row.general >= table[0].general - allow_loss and row.domain > table[0].domain]
    best_first = sorted(gains, key=lambda row: -row.domain)
    return next(filter(is_significant, best_first), table[0])


def as_text(table: Sequence[TradeOff], metric: str, validated: tuple[int, int]) -> str:
    """Format the table as text for a terminal. validated: see `Adaptation`."""
    domain_pairs, general_pairs = validated
    return "\n".join(["share of the new weights   domain  general  "
                      f"({metric} on {domain_pairs:,} and {general_pairs:,} validation pairs)",
                      *(f"{row.share:24.1f}   {row.domain:6.2f}   {row.general:6.2f}" for row in table)])


def interpolated(old: Mapping[str, Tensor], new: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return (1 - share) * old + share * new, by name."""
    return {name: old[name].lerp(new[name], share) if old[name].is_floating_point() else new[name] for name in new}


def _tested(translator: Translator, recipe: Recipe) -> tuple[ScoresByTest, dict[str, list[str]]]:
    """Return the scores on the test sets of a recipe, and the translations, by test set."""
    translated: list[list[str]] = []
    scores = evaluate_tests(translator, recipe, translate=_recorded(translator, translated))
    return scores, dict(zip(scores, translated, strict=True))


def _recorded(translator: Translator, translated: list[list[str]]) -> Translate:
    """Return the translator's function, which then appends the translations of each call to `translated`."""
    def translate(*args: Any, **options: Any) -> list[list[Translation]]:
        found = translator.translate(*args, **options)
        translated.append([best.text for best, *_ in found])
        return found

    return translate


def _print_sizes(directory: Path, language: str | None, allow_loss: float) -> None:
    """Print the number of pairs of each set, and what it tells about BLEU. language: of the target; None: no BLEU."""
    for kind in ("domain", "general"):
        sets = {name: [target for _, target in _read(directory, f"{kind}.{name}")]
                for name in ("train", "valid", "test")}
        intervals = {name: expected_interval(lines, language) for name, lines in sets.items() if language and lines}
        known = {name: f" (± {intervals[name]:.1f} BLEU)" if name in intervals else "" for name in sets}
        console.print_message(f"{kind} text: {len(sets['train']):,} pairs for training, {len(sets['valid']):,} for "
                              f"validation{known['valid']}, {len(sets['test']):,} for tests{known['test']}")
    number, interval = len(sets["valid"]), intervals.get("valid", 0)
    if number < MAX_VALIDATED and interval > allow_loss:
        best = interval * (number / MAX_VALIDATED) ** 0.5
        console.warn(f"with {number:,} general pairs for validation, BLEU is known to about ± {interval:.1f} (95 %), "
                     f"so a loss of {allow_loss:g} (--allow-loss) may not be seen. Some {ENOUGH_GENERAL:,} general "
                     f"pairs give {MAX_VALIDATED:,} for validation (± {best:.1f}). Give them with --general, and a new "
                     "directory with --output.")


def _read(directory: Path, name: str) -> list[TextPair]:
    sides = [(directory / f"{name}.{side}").read_bytes().decode() for side in ("source", "target")]
    return list(zip(*(side.split("\n")[:-1] for side in sides), strict=True))


def _fingerprint(corpus: Corpus) -> list[Any]:
    """Return data that identify a corpus, wherever it is: its recipe keys, and the sha256 of its files."""
    return [corpus.model_dump(mode="json", exclude={*corpus.path_keys}), *(sha256_of(path) for path in corpus.paths)]


def _write(recipe: Recipe, bundle: Path, tokenizers: Tokenizers, given: Mapping[str, GivenText], output: Path,
           seed: int, inputs: Mapping[str, Any], settings: Sequence[str],
           command: Callable[[Sequence[Corpus]], str]) -> None:
    """Write the text and the recipe of the training. The directory `output` appears only when it is complete. command:
    see `_require_languages`."""
    of_domain = _split(given["text"], seed, PAIRS_PER_HELD_OUT["text"])
    texts = dict(zip(("domain.train", "domain.valid", "domain.test"), of_domain, strict=True))
    limit = REPLAYED * len(texts["domain.train"])
    if "general" not in given:
        try:
            own = recipe_with_text(bundle)
        except CheckpointError as error:
            raise CorpusError(f"{NO_OWN_TEXT}\nDetails: {error}") from None
        train_pairs, valid, test = _text_of_model(own, recipe.languages, limit, seed)
    else:
        train_pairs, valid, test = _split(given["general"], seed, PAIRS_PER_HELD_OUT["general"])
        train_pairs = reservoir_sample(train_pairs, limit, seed)
    _require_languages(given, train_pairs, recipe, command)
    texts |= {"general.train": train_pairs, "general.valid": valid, "general.test": test}
    texts["general.valid"] = reservoir_sample(valid, MAX_VALIDATED, seed)
    apart = _without_common_sentences(texts)
    for name in ("domain.train", "general.train", "general.valid"):
        if not apart[name]:
            raise CorpusError(f"of {len(texts[name]):,} pairs for {name}, none is left without a sentence of other "
                              "held-out text. Give other general text with --general.")
    texts = apart
    texts["valid"] = texts["domain.valid"] + texts["general.valid"]
    with new_directory(output) as directory:
        (directory / TEXT).mkdir()
        (directory / TEXT / INPUTS).write_bytes(json.dumps(inputs, sort_keys=True).encode())
        for name, pairs in texts.items():
            for number, side in enumerate(("source", "target")):
                lines = "".join(f"{pair[number]}\n" for pair in pairs)
                (directory / TEXT / f"{name}.{side}").write_text(lines, encoding="utf-8", newline="\n")
        tokens = sum(len(ids) + 1 for ids in tokenizers.target.encode([target for _, target in texts["domain.train"]]))
        text = _recipe_text(recipe, bundle, {name: len(pairs) for name, pairs in texts.items()}, tokens, seed,
                            output.name)
        (directory / RECIPE_FILE).write_text(text, encoding="utf-8", newline="\n")
        written = load_recipe(directory / RECIPE_FILE, settings)                # raises if a setting is invalid
        for corpus in [corpus for text in given.values() for corpus in text.corpora]:
            reader, _ = read_and_check(corpus, written, tokenizers)
            for warning in train_warnings(reader.report, written.data.cleaning):
                console.warn(warning)


def _require_languages(given: Mapping[str, GivenText], general: Sequence[TextPair], recipe: Recipe,
                       command: Callable[[Sequence[Corpus]], str]) -> None:
    """Check that the given text is in the languages of the model, as `check` does.

    Args:
        general: pairs of general text. If they are the model's own, their languages are right.
        command: function that returns the command of the same call, with the files of some corpora exchanged.
    """
    general = general[:MAX_COMPARED]
    checker = LanguageChecker(general, recipe.languages)
    if not checker.can_check:
        console.print_message(f"languages are not checked: {len(general):,} general pairs are too few to learn them")
        return
    found = checker.report((number, *pair) for number, pair in enumerate(general, 1))
    known = {} if "general" in given else found.other_languages
    if "general" in given and found.exchanged:
        checker = LanguageChecker([(target, source) for source, target in general], recipe.languages)
    faults, exchanged = [], []
    for name in ("general", "text"):
        for corpus in given[name].corpora if name in given else ():
            report = checker.report(GivenText([corpus], recipe).pairs())
            if any(known.get(side) != code for side, code in report.other_languages.items()):
                faults.append(f"{corpus.label}: {languages_in_words(report)}.")
                exchanged += [corpus] * report.exchanged
            elif report.pairs <= MIN_OTHER_LINES:
                console.print_message(f"{corpus.label}: too little text to check its languages")
        if len(faults) > len(exchanged):                                        # the domain cannot be compared
            break
    if not faults:
        return
    remedy = "Give text in these languages, the source first."
    if len(exchanged) == len(faults):
        tables = [corpus.label for corpus in exchanged if corpus.form != "files"]
        remedy = (f"Exchange the columns of {', '.join(tables)}." if tables else
                  f"Give the source first:\n{command(exchanged)}")
    names = " to ".join(map(language_name, recipe.languages.codes))
    raise CorpusError("\n".join([*faults, f"The model translates from {names}. {remedy}"]))


def _command(model: str, given: Mapping[str, GivenText], options: Sequence[str], exchanged: Sequence[Corpus]) -> str:
    """Return the command of an adaptation, with the source and target files of some corpora exchanged."""
    words = ["seq2seq", "adapt", model]
    for name, text in given.items():
        for corpus in text.corpora:
            paths = [str(path) for path in corpus.paths]
            for path in reversed(paths) if corpus in exchanged else paths:
                words += [path] if name == "text" else ["--general", path]
    return shlex.join([*words, *options])


def _without_common_sentences(texts: Mapping[str, list[TextPair]]) -> dict[str, list[TextPair]]:
    """Drop training pairs with a sentence of a validation or test set, and general validation and test pairs with a
    sentence that is held out from the domain."""

    def without(name: str, *others: str) -> list[TextPair]:
        sentences = Sentences(pair for other in others for pair in texts[other])
        return [pair for pair in texts[name] if not sentences.share_one_with(*pair)]

    of_domain, of_general = ("domain.valid", "domain.test"), ("general.valid", "general.test")
    return {**texts, "general.train": without("general.train", *of_domain, *of_general),
            "domain.train": without("domain.train", *of_general),
            **{name: without(name, *of_domain) for name in of_general}}


def _split(text: GivenText, seed: int, per_held_out: int) -> tuple[list[TextPair], list[TextPair], list[TextPair]]:
    """Split a text into training, validation and test pairs. No sentence occurs in two of these sets. per_held_out: see
    PAIRS_PER_HELD_OUT.

    Pairs without text on both sides, such as units of a .tmx that lack a language, are left out with a warning.
    """
    counts = Counts()
    everything = list(text.pairs(counts))
    for repair in counts.repairs():
        console.print_message(f"{text.label}: {repair}")
    pairs = [pair for pair in everything if not any(map(is_blank, pair[1:]))]
    if lacking := [number for number, *texts in everything if any(map(is_blank, texts))]:
        console.warn(f"{text.label}: {len(lacking):,} of {len(everything):,} pairs are left out because they have no "
                     f"text in at least one of the two languages (first: {text.place(lacking[0])}).")
    held_out = choose_held_out(pairs, seed, lambda source, target: True, maximum=MAX_VALIDATED,
                               pairs_per_held_out=per_held_out)
    if not held_out.valid:
        raise CorpusError(f"{text.label}: {len(pairs):,} pairs are too few for a training, a validation and a test "
                          f"set. Give at least {per_held_out} different pairs with text on both sides; at least "
                          "two of them must share neither source nor target with another pair.")
    held = held_out.valid | held_out.test | held_out.copies

    def chosen(numbers: Iterable[int] | None) -> list[TextPair]:
        return [(_line(source), _line(target)) for number, source, target in pairs
                if (number not in held if numbers is None else number in numbers)]

    return chosen(None), chosen(held_out.valid), chosen(held_out.test)


def _text_of_model(recipe: Recipe, direction: Languages, limit: int, seed: int
                   ) -> tuple[list[TextPair], list[TextPair], list[TextPair]]:
    """Return at most `limit` random pairs of the model's training text in a direction, cleaned, and pairs of its
    validation text and of its test sets. Test sets that cannot be read are left out with a warning.

    The model's checkpoint was chosen by the scores of `training.valid_sentences` validation pairs (`scored_pairs`). On
    these, it is better than on other text. If there are enough other validation pairs, only those are returned.
    """
    try:
        seen: dict[bytes, bool] = {}
        found = (pair for spec in recipe.data.train if spec.translated_by is None and spec.languages == direction
                 for pair in as_lines(cleaned(spec, recipe, Counts(), seen)))
        train = reservoir_sample(_texts(found), limit, seed)
        valid = [list(as_lines(read_pairs(recipe, spec))) for spec in recipe.data.valid if spec.languages == direction]
    except CorpusError as error:
        raise CorpusError(f"{NO_OWN_TEXT}\nDetails: {error}") from None
    others: list[TextPair] = []
    for pairs in valid:
        scored = {number for number, _, _ in scored_pairs(pairs, recipe.training.valid_sentences)}
        others += _texts(pair for pair in pairs if pair[0] not in scored)
    everything = [pair for pairs in valid for pair in _texts(pairs)]
    if not (train and everything):                                              # such as an imported model
        raise CorpusError(NO_OWN_TEXT)
    test: list[TextPair] = []
    for name, spec in recipe.data.test.items():
        if spec.languages != direction:
            continue
        try:
            test += _texts(as_lines(read_pairs(recipe, spec)))
        except CorpusError as error:
            console.warn(f"the test set {name} of the model is not scored: {error}")
    return train, others if len(others) >= MAX_VALIDATED else everything, test


def _texts(pairs: Iterable[LinePair]) -> Iterable[TextPair]:
    return ((_line(source), _line(target)) for _, source, target in pairs
            if not any(map(is_blank, (source, target))))


def _line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _recipe_text(recipe: Recipe, bundle: Path, sizes: Mapping[str, int], tokens: int, seed: int, name: str) -> str:
    """Return the recipe of the training. sizes: number of pairs of each text, such as `domain.train`. tokens: number of
    target tokens in the training pairs from the domain."""
    section, domain, general = recipe.training, sizes["domain.train"], sizes["general.train"]
    again = "adaptation" in read_metadata(bundle, "bundle", required=())
    batch_tokens = min(section.batch_tokens, max(256, tokens // 20))
    max_steps = min(max(EPOCHS * tokens // batch_tokens, MIN_STEPS), MAX_STEPS)

    def corpus(name: str, more: str = "") -> str:
        return f"{{source: {name}.source, target: {name}.target{more}}}"

    def changed(section: BaseModel) -> str:
        """Return the keys that differ from their defaults."""
        return json.dumps(section.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)

    return f"""\
# Training of `seq2seq adapt`. Each epoch has the pairs of the domain, and about as many general pairs, repeated up to
# {MAX_REPEATS} times if they are fewer.
name: {json.dumps("".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "adapted")}
seed: {seed}
languages: {{source: {recipe.languages.source}, target: {recipe.languages.target}}}
data:
  root: {TEXT}
  train:
  - {corpus("domain.train")}
  - {corpus("general.train", f", weight: {min(MAX_REPEATS, domain / general):.4f}")}
  # Domain and general pairs, so that the score does not improve if general text loses more than the domain gains.
  valid: {corpus("valid")}
  test: {{{", ".join(f"{kind}: {corpus(f'{kind}.test')}" for kind in ("domain", "general") if sizes[f"{kind}.test"])}}}
  cleaning: {changed(recipe.data.cleaning)}
  augmentation: {changed(recipe.data.augmentation)}
metrics: {json.dumps([metric for metric in recipe.measures if metric in ("bleu", "chrf")] or ["chrf"])}
training:
  start_from: {json.dumps(str(bundle.absolute()), ensure_ascii=False)}
  batch_tokens: {batch_tokens}
  # {"That of the previous adaptation" if again else "A quarter of the learning rate in the recipe of the old model"}.
  learning_rate: {section.learning_rate / (1 if again else 4):.1e}
  warmup_steps: {max_steps // 10}
  schedule: linear
  max_steps: {max_steps}
  validate_every: {max(1, max_steps // 10)}
  early_stopping: 3
  ema_decay: 0.99
  label_smoothing: {section.label_smoothing}
  optimizer: {section.optimizer}
  precision: {section.precision}
decoding: {changed(recipe.decoding)}
"""
