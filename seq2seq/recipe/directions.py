"""Several directions in one model: each source begins with a token of its target language, such as `>>de<<`.

The method is from Johnson et al. 2017 (arXiv:1611.04558). The tokens have the same form as in the OPUS-MT models. They
belong to the vocabulary, which adds them (`Vocabulary.language_id`): a recipe only has languages.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from seq2seq.errors import OptionError
from seq2seq.languages import is_same_language, same_code, suggestion_for
from seq2seq.recipe.base_section import SectionsError, collecting, refuse_if
from seq2seq.recipe.data_section import Data, Languages
from seq2seq.recipe.task import TRANSLATION


def language_token(code: str) -> str:
    return f">>{code}<<"


def with_languages(data: Data, languages: Languages) -> Data:
    """Return the data with the languages of the recipe in every corpus that has none of its own."""
    return data.with_corpora(lambda corpus: corpus if corpus.languages else
                             corpus.model_copy(update={"languages": languages}))


def directions_of(data: Data, languages: Languages) -> tuple[Languages, ...]:
    """Return the distinct directions of the training corpora. If `languages` is one of them, it is first."""
    found = dict.fromkeys(corpus.languages or languages for corpus in data.train)
    return tuple(sorted(found, key=lambda direction: direction != languages))


def targets_of(directions: Iterable[Languages]) -> list[str]:
    return list(dict.fromkeys(each.target for each in directions))


def direction_into(target: str, directions: Sequence[Languages], source: str | None = None,
                   model: str = "this model") -> Languages:
    """Return the first of a model's directions into a language, or the one from `source`.

    The direction from `source` need not be one of `directions`, if these have both of its languages: a model that reads
    the language of the source translates between all of them. Codes may have another form than in `directions`: `deu`
    or `deu_Latn` for `de`. model: name of the model in error messages.
    """
    targets, sources = targets_of(directions), list(dict.fromkeys(each.source for each in directions if each.source))
    into = _named(target, targets)
    if into is None:
        raise OptionError(f"{model} translates into {' or '.join(targets)}, not into {target}."
                          f"{suggestion_for(target)}")
    if source is None:
        return next(each for each in directions if each.target == into)
    out_of = _named(source, sources)
    if out_of is None:
        raise OptionError(f"{model} translates from {' or '.join(sources)}, not from {source}."
                          f"{suggestion_for(source)}")
    if out_of == into:
        raise OptionError(f"the source and the target language are both {into}. Name two languages.")
    return next((each for each in directions if (each.source, each.target) == (out_of, into)),
                Languages(source=out_of, target=into))


def has_direction(directions: Sequence[Languages], source: str | None, target: str) -> bool:
    """Return True if `direction_into` finds the direction. source: None for a language model."""
    try:
        direction_into(target, directions, source or None)
    except OptionError:
        return False
    return True


def _named(code: str, codes: Sequence[str]) -> str | None:
    """Return the code that names a language in the form of `codes`; None if there is none, or if several match."""
    if code in codes:
        return code
    same = [one for one in codes if same_code(one, code)][:1] or [one for one in codes if is_same_language(one, code)]
    return same[0] if len(same) == 1 else None


def check_directions(recipe: Any, errors: list[SectionsError]) -> None:
    """Append an error for each corpus whose languages or tag do not fit the other keys, and for `languages`. recipe:
    the checked sections of a recipe."""
    targets = targets_of(directions_of(recipe.data, recipe.languages))
    several = len(targets) > 1
    for key, corpus in recipe.data.corpora_with_keys():
        languages = corpus.languages or recipe.languages
        begins_with = [target for target in targets if (corpus.tag or "").startswith(language_token(target))]
        with collecting(errors):
            refuse_if(languages != recipe.languages and (recipe.task is not TRANSLATION or languages.source is None),
                      ("data", *key, "languages"), "only corpora of a translation model can have `languages`; give "
                      "both source and target")
            refuse_if(several and languages.target not in targets, ("data", *key),
                      f"no training corpus has the target language {languages.target}")
            refuse_if(several and begins_with, ("data", *key, "tag"), "the language token is added to each source by "
                      "itself, according to the `languages` of the corpus. Leave it out of the tag")
    with collecting(errors):
        refuse_if(recipe.languages.target not in targets, "languages.target",
                  f"no training corpus has this target language; the corpora have {' and '.join(targets)}")
