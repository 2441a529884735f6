"""The `data` section of a recipe: corpora and their cleaning."""

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SerializationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from seq2seq.errors import RecipeError
from seq2seq.files import COMPRESSED_SUFFIXES, MAX_LINE_BYTES
from seq2seq.languages import suggestion_for
from seq2seq.recipe.base_section import RecipeValueError, Section, refuse_if

# A test name has no dots, because dots separate the parts of a key in `--set data.test.NAME.limit=5`.
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
OneLine = Annotated[str, Field(pattern=r"^\S([^\r\n]*\S)?$", max_length=200)]

Share = Annotated[float, Field(ge=0, le=1)]

LANGUAGE_FORMATS = (".tmx", ".xlf", ".xliff", ".po")
"""Formats whose sides are selected by language codes: translation memories, XLIFF, and catalogues of gettext."""
TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", *LANGUAGE_FORMATS)
COLUMN_FORMATS = (".tsv", ".csv")
"""Table formats whose columns are selected by number or, with `header: true`, by their names in the first line."""


def _text_or_column(value: Any) -> Any:
    """Return the value if it is text, a column number or None.

    Any other value raises a single ValueError. Without this function, pydantic would report one error per allowed type.
    """
    if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        if isinstance(value, int) and value < 1:
            raise ValueError(f"columns are numbered from 1, found {value}")
        return value
    raise ValueError("expected a path, the name of a column or the number of a column")


PathOrColumn = Annotated[str | int | None, BeforeValidator(_text_or_column)]


LanguageCode = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}([_-][A-Za-z0-9]{1,8})*$")]


HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""Name of a data set on the hub. A directory of this machine can have such a name, too."""
HUB_ADDRESS = "https://huggingface.co/datasets/"


class Languages(Section):
    """Language codes of source and target."""

    source: LanguageCode | None = None
    """Code of the language to translate from, such as `de`. A language model has no source language."""
    target: LanguageCode
    """Code of the language to translate into, such as `en`. The code also selects sacreBLEU's tokeniser."""

    @field_validator("source", "target")
    @classmethod
    def _reject_names_and_countries(cls, value: str | None) -> str | None:
        if value and (suggestion := suggestion_for(value)):
            raise ValueError(f"'{value}' is not a language code.{suggestion}")
        return value

    @property
    def codes(self) -> tuple[str, str]:
        """Language codes of source and target. For a language model, the source is ""."""
        return self.source or "", self.target

    @property
    def pair(self) -> tuple[str, str]:
        """Language codes of source and target."""
        if self.source is None:
            raise RecipeError("this model is a language model, which has no source text to translate or to attend to. "
                              "Use a translation model.")
        return self.source, self.target


class Corpus(Section):
    """Parallel text in one of three forms: two text files, a table, or a data set of the Hugging Face hub.

    `{source: train.de, target: train.en}`, `{file: pairs.tsv}`, or
    `{hub: wmt/wmt14, config: de-en, split: train, source: de, target: en}`.

    A language model reads monolingual text in the same forms: `{text: train.en}`, `{file: pairs.tsv, text: 2}`, or
    `{hub: wmt/wmt14, config: de-en, split: train, text: en}`.

    A model can generate one side of a training corpus by translation: `{target: mono.en, translated_by: runs/en_de}` is
    back-translation, `{source: train.de, translated_by: runs/teacher}` is knowledge distillation.
    """

    source: PathOrColumn = None
    """File of source sentences, one per line, optionally compressed (.gz or .zst). With `file` or `hub`: name or number
    of the source column; in a .tmx, .xlf, .xliff or .po, code of the source language."""
    target: PathOrColumn = None
    """File of target sentences; each line is the translation of the same line of `source`. With `file` or `hub`: name
    or number of the target column; in a .tmx, .xlf, .xliff or .po, code of the target language."""
    text: PathOrColumn = None
    """For a language model, instead of `source` and `target`: file of sentences, one per line. With `file` or `hub`:
    name or number of the column; in a .tmx, .xlf, .xliff or .po, code of the language."""
    file: str | None = None
    """File that contains both sides: .tsv, .csv (RFC 4180: commas between columns, and double quotes around text with
    commas), .jsonl, .parquet, .tmx (translation memory), .xlf or .xliff, or .po (catalogue of gettext). All except
    .parquet may be compressed (.gz or .zst). If `source` and `target` are not set, the sides are the first two columns
    of a .tsv or .csv without `header`, or the texts of a .tmx, .xlf, .xliff or .po in the recipe's languages. All other
    tables need both `source` and `target`. Translations that are fuzzy, or have still to be reviewed, are not read."""
    header: bool = False
    """True if the first line of a .tsv or .csv contains the column names. If false, columns are numbered from 1."""
    markup: bool = False
    """Keep inline markup such as `<b>` in the text of a .tmx. If false, markup that separates words, such as a line
    break, becomes a space, and all other markup is removed."""
    hub: str | None = None
    """Name of a data set on the Hugging Face hub. `source` and `target` are then the names of two columns, or two keys
    inside the column `translation`."""
    config: str | None = None
    """Configuration of the `hub` data set."""
    split: str | None = None
    """Split of the `hub` data set."""
    streaming: bool = False
    """Stream the `hub` data set instead of saving a copy on disk. This is meant for very large data sets."""
    translated_by: Annotated[tuple[str, ...], Field(strict=False, min_length=1), BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, str | list[str])] | None = None
    """Model that translates a training corpus with only `target` or only `source`, to generate the missing side: a run
    or a bundle, relative to the recipe file. A list of models with the same vocabulary translates as an ensemble.
    Translations with the faults `loop`, `copied`, `lost_number` and `lost_placeholder` are no training pairs."""
    sampling: bool | None = None
    """With `translated_by`: sample the translations instead of searching for the most probable ones. Not set:
    sources are generated by sampling, targets by search."""
    languages: Languages | None = None
    """Languages of this corpus, such as `{source: de, target: en}`. Not set: `languages` of the recipe. If the
    training corpora have several target languages, each source begins with a token of its target language, such as
    `>>en<<` (Johnson et al. 2017, arXiv:1611.04558)."""
    document: PathOrColumn = None
    """Table column that identifies the document of each pair. A document ends where the value changes, and at an empty
    line, which is an empty pair. Not set: a document ends only at an empty line."""
    tag: str | None = None
    """Text to add before each source sentence, so that the model can distinguish this corpus from others: `<BT>` for
    back-translated text (Caswell et al. 2019), `<law>` for a domain. It stands after the language token, if there is
    one. A line to translate may begin with it, too, or gets it by the option `--tag`; it never comes out. It needs a
    sign that is no letter or digit, because a sentence may begin with the word `law`."""
    name: str | None = None
    """Name of the corpus in reports. Not set: the name of its file or data set."""
    license: OneLine | None = None
    """Licence of the corpus, such as `CC-BY-SA-4.0`, for the model card. It does not change the training."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s<>@|]+$")] | None = None
    """Web page of the corpus (http or https), for the model card. It does not change the training."""
    weight: PositiveFloat = 1.0
    """Number of times that each pair occurs in an epoch. With 2, each pair occurs twice; with 0.5, each epoch contains
    a different random half of the pairs."""
    limit: PositiveInt | None = None
    """Read only this many pairs from the beginning of the corpus. Not set: all."""
    max_line_bytes: PositiveInt = MAX_LINE_BYTES
    """Maximum length in bytes of a line, or of a segment of a .tmx, .xlf or .xliff. A longer line is an error: it
    usually comes from a file without line ends, or from a small compressed file that expands until the memory is full.
    """

    _faulty: Mapping[int, str] = PrivateAttr(default={})

    @property
    def faulty(self) -> Mapping[int, str]:
        """Lines (counted from 1) that are no training pairs, each with the reason. Only a corpus that a model has
        translated has some: recipes cannot name them."""
        return self._faulty

    def with_faulty(self, faulty: Mapping[int, str]) -> "Corpus":
        """Return a copy with other lines that are no training pairs."""
        copy = self.model_copy()
        copy._faulty = faulty
        return copy

    @model_validator(mode="after")
    def _check_form(self) -> "Corpus":
        if self.text is not None and (self.source is not None or self.target is not None):
            raise ValueError("a corpus has either `source` and `target`, or `text`")
        if self.file is not None and self.hub is not None:
            raise ValueError("a corpus has either `file` or `hub`")
        if self.hub is None and (self.config is not None or self.split is not None or self.streaming):
            raise ValueError("only a corpus with `hub` can have `config`, `split` and `streaming`")
        if self.markup and self.table_format != ".tmx":
            raise ValueError("only a corpus with a .tmx `file` can have `markup: true`")
        if self.header and self.table_format not in COLUMN_FORMATS:
            raise ValueError("only a corpus with a .tsv or .csv `file` can have `header: true`")
        if self.document is not None and (self.form == "files" or self.table_format in LANGUAGE_FORMATS
                                          or self.text is not None):
            raise ValueError("only a table or a data set of the hub with two sides can have a column `document`")
        if self.sampling is not None and self.translated_by is None:
            raise ValueError("only a corpus with `translated_by` can have `sampling`")
        if self.tag is not None and (self.text is not None or not self.tag.strip() or not self.tag.isprintable()):
            raise ValueError("`tag` must be a single line that is not blank, and a corpus with `text` cannot have a "
                             "tag")
        if self.tag is not None and all(character.isspace() or unicodedata.category(character)[0] in "LMN"
                                        for character in self.tag):
            raise ValueError(f"`tag` is '{self.tag}', with which a sentence may begin. Give it a sign that is no "
                             f"letter or digit, such as <{self.tag.strip()}>")
        if self.translated_by is not None:
            files = [file for file in (self.source, self.target) if file is not None]
            if self.form != "files" or len(files) != 1 or not isinstance(files[0], str):
                raise ValueError("`translated_by` needs one file, either `source` or `target`, and generates the other "
                                 "side")
            return self
        named = all(isinstance(getattr(self, side), str) for side in self.sides)
        if self.is_only_named:                          # a recipe of a user is refused, see `loading._unnamed_texts`
            return self
        if self.form == "files":
            if not named:
                raise ValueError(self.needed_text)
            return self
        if self.form == "table" and self.table_format is None:
            raise RecipeValueError(
                "file",
                f"expected a name that ends in {', '.join(one for one in TABLE_FORMATS if one != '.parquet')} (.gz or "
                f".zst may follow), or in .parquet, found '{self.file}'",
            )
        if self.form == "hub" and self.split is None:
            raise ValueError("`hub` needs `split`, such as `split: train`")
        if (self.source is None) != (self.target is None):
            raise ValueError("set both columns, `source` and `target`, or neither of them")
        if self.uses_recipe_languages:
            return self
        numbered = self.has_numbered_columns
        if numbered and any(isinstance(column, str) for column in self.columns):
            raise ValueError(f"a {self.table_format} without `header: true` has numbered columns, such as `source: 1, "
                             "target: 2`")
        if not numbered and not named:
            raise ValueError("`source` and `target` must name the columns" if self.text is None
                             else "`text` must name the column")
        return self

    @property
    def is_only_named(self) -> bool:
        """True for a corpus without text, as in the recipe of a bundle; see `Recipe.for_bundle`."""
        return self.name is not None and all(
            key is None for key in (self.source, self.target, self.text, self.file, self.hub))

    @property
    def needed_text(self) -> str:
        """Message that the corpus lacks text."""
        needed = "`source` and `target` (two files)" if self.text is None else "a file of `text`"
        only_target = self.target is not None and self.source is None
        return (f"a corpus needs {needed}, or `file`, or `hub`"
                f"{'; for a language model, `text`' if only_target else ''}")

    def for_bundle(self) -> "Corpus":
        """Return the corpus without paths: what remains is its name, and what is known about its text."""
        is_on_hub = self.hub is not None and HUB_NAME.fullmatch(self.hub) and not Path(self.hub).exists()
        address = {"url": f"{HUB_ADDRESS}{self.hub}"} if is_on_hub and self.url is None else {}
        name = self.label if self.name is not None or is_on_hub else file_name(self.label)
        return Corpus.model_validate({"name": name, **address, **{
            key: value for key in ("languages", "tag", "license", "url")
            if (value := getattr(self, key)) is not None}})

    @property
    def sides(self) -> tuple[str, ...]:
        """Keys of the sides of the corpus: source and target, or text."""
        return ("source", "target") if self.text is None else ("text",)

    @property
    def uses_recipe_languages(self) -> bool:
        """True for a file of LANGUAGE_FORMATS without `source`, `target` and `text`: its languages are the recipe's."""
        return self.table_format in LANGUAGE_FORMATS and self.source is None and self.text is None

    @property
    def has_numbered_columns(self) -> bool:
        """True for a table whose columns are selected by number, not by name."""
        return self.table_format in COLUMN_FORMATS and not self.header

    @property
    def form(self) -> Literal["files", "table", "hub"]:
        """Form of the corpus: one text file per side, one table, or a data set of the Hugging Face hub."""
        return "hub" if self.hub is not None else "table" if self.file is not None else "files"

    @property
    def table_format(self) -> str | None:
        """Suffix of `file`, such as .tsv, without .gz or .zst; None if not in TABLE_FORMATS, or without `file`."""
        name = self.file or ""
        suffix = Path(name).suffix
        if suffix in COMPRESSED_SUFFIXES:
            suffix = Path(name).with_suffix("").suffix
            return suffix if suffix in TABLE_FORMATS and suffix != ".parquet" else None
        return suffix if suffix in TABLE_FORMATS else None

    @property
    def columns(self) -> tuple[str | int, ...]:
        """Columns of the sides, then `document` if it is set. For a corpus of form `files`, the files of the sides."""
        if self.text is not None:
            return (self.text,)
        if self.translated_by is not None:
            return tuple(side for side in (self.source, self.target) if side is not None)
        document = () if self.document is None else (self.document,)
        return (1 if self.source is None else self.source, 2 if self.target is None else self.target, *document)

    @property
    def samples(self) -> bool:
        """True if the translations of a corpus with `translated_by` are sampled, False if search finds them."""
        return self.source is None if self.sampling is None else self.sampling

    @property
    def label(self) -> str:
        """Name of the corpus in reports."""
        if self.name is not None:
            return self.name
        if self.form == "hub":
            return " ".join(str(part) for part in (self.hub, self.config, self.split) if part is not None)
        return str(self.file if self.form == "table" else self.columns[0])

    @property
    def paths(self) -> list[Path]:
        """Paths of the corpus files, as written in the recipe."""
        return [Path(str(getattr(self, key))) for key in self.path_keys]

    def resolve(self, directory: Path) -> "Corpus":
        """Return a copy with absolute paths of the corpus files. directory: base directory of relative paths."""
        return self.model_copy(update={
            key: os.path.abspath(directory / getattr(self, key)) for key in self.path_keys})

    @property
    def path_keys(self) -> tuple[str, ...]:
        """Keys whose values are paths of corpus files."""
        files = tuple(side for side in self.sides if getattr(self, side) is not None)
        return {"files": files, "table": ("file",), "hub": ()}[self.form]


def file_name(path: str) -> str:
    """Return the last part of a path with slashes or backslashes: the directories of a machine are its user's."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def is_table(path: Path | str) -> bool:
    """Return True if the name of a file tells that it has both sides."""
    return Corpus.model_construct(file=str(path)).table_format is not None


class Cleaning(Section):
    """Filters that drop training pairs. The number of dropped pairs is reported for each reason. Pairs with an empty
    side are always dropped."""

    max_characters: PositiveInt = 5000
    """Drop pairs with a side longer than this number of characters. The limit protects the tokenizer from very long
    lines of web pages."""
    max_pieces: PositiveInt = 256
    """Drop pairs with a side longer than this number of subword pieces."""
    max_length_ratio: Annotated[float, Field(gt=1)] | None = None
    """Maximum ratio of the length of the longer side to the length of the shorter side, in characters. Pairs with a
    larger ratio are dropped, except those with a side of at most 10 characters. Not set: no pairs are dropped."""
    remove_identical: bool = False
    """Drop pairs whose two sides are the same text."""
    remove_duplicates: bool = False
    """Keep only the first of several equal pairs."""
    remove_damaged: bool = False
    """Drop pairs with U+FFFD, control characters, or text read in a wrong encoding (`Ã¤` for `ä`)."""
    min_number_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """Minimum share of the numbers in digits that have a counterpart on the other side. Pairs with a smaller share are
    dropped. The share is 1 - max(source_unmatched, target_unmatched) / max(source_numbers, target_numbers): `numbers`
    counts the numbers in digits of a side, `unmatched` counts those without a counterpart of the same value in digits
    of any script. This filter is the cheapest test for misaligned pairs in web text; 0.7 is a good value. Not set: no
    pairs are dropped. The filter is off by default, because it also drops good pairs in which one side has digits and
    the other side has number words or Chinese numerals."""
    max_length_deviation: PositiveFloat | None = None
    """Maximum deviation of the target's length from the length expected for its source, in standard deviations (Gale
    and Church 1993). Pairs with a larger deviation are dropped. The expected length is learned from the first 10,000
    pairs, which should be similar to the rest. A limit of 3 suits web text; 4 drops fewer good pairs. Not set: no pairs
    are dropped."""
    language: Literal["any", "sides", "lingua"] = "any"
    """Drop pairs with a side in the wrong language. `any` drops no pairs. `sides` learns the languages of both sides
    from the first 10,000 pairs and detects text in the language of the other side. `lingua` identifies 75 languages and
    takes about 10 ms per pair (`pip install lingua-language-detector`). If it lacks the language of a side, only the
    other side is checked."""


class Augmentation(Section):
    """Random changes of training pairs. Each key is one kind of change, and its value is the share of the pairs that
    get this change. These pairs are drawn anew in each epoch. A pair gets at most one change."""

    upper_case: Share = 0.0
    """Both sides in upper case."""
    title_case: Share = 0.0
    """Both sides with the first letter of each word in upper case."""
    typos: Share = 0.0
    """One or two typos per ten words in the source."""
    no_final_stop: Share = 0.0
    """Both sides without the final full stop, if both have one."""
    tags: Share = 0.0
    """Inline tags such as `<b>…</b>` around an aligned phrase on both sides."""
    placeholders: Share = 0.0
    """A placeholder such as `{name}` or `%s` on both sides. It replaces a name or number, or is added at one end."""
    noise: Share = 0.0
    """The same random symbols and emoji on both sides. They replace the text, or are added at one end."""
    terms: Share = 0.0
    """Source words replaced by aligned target words, enclosed in U+2985 and U+2986, to translate with terminology."""

    @model_validator(mode="after")
    def _check_sum(self) -> "Augmentation":
        if (total := sum(self.model_dump().values())) > 1 + 1e-9:
            raise ValueError(f"the shares of changed pairs may add up to 1, found {total:.3g}")
        return self

    def __bool__(self) -> bool:
        """Return True if pairs are changed."""
        return any(self.model_dump().values())


class Data(Section):
    """Parallel text for training, validation and test."""

    root: str = "."
    """Directory that the paths of corpora are relative to. It is itself relative to the recipe file."""
    train: Annotated[tuple[Corpus, ...], Field(strict=False, min_length=1)]
    """List of training corpora."""
    temperature: Annotated[float, Field(ge=1)] = 1.0
    """Sampling temperature of the training corpora. Each corpus is sampled in proportion to (pairs * weight) to the
    power of 1 / temperature (Arivazhagan et al. 2019). Values above 1 oversample small corpora. With 1, the proportion
    is pairs * weight."""
    valid: Annotated[tuple[Corpus, ...], Field(strict=False, min_length=1), BeforeValidator(
        lambda value: value if isinstance(value, list | tuple) else [value], Corpus | list[Corpus])]
    """Validation corpus. Its score selects the best checkpoint; of a list of corpora, such as one for each direction,
    the mean of their scores. `loss` and `perplexity` are means over the tokens of all corpora together."""
    test: dict[TestName, Corpus] = {}
    """Test corpora by name. The final model is evaluated on each of them."""
    context: Annotated[int, Field(ge=0, le=20)] = 0
    """Number of preceding sentences of the document that the model sees as the context of each source sentence (see
    `model.context`). A fifth of the training pairs have no context, so that isolated sentences are translated well."""
    cleaning: Cleaning = Cleaning()
    """Filters that drop training pairs. The number of dropped pairs is reported for each reason. Pairs with an empty
    side are always dropped."""
    augmentation: Augmentation = Augmentation()
    """Changes of training pairs, so that the model translates capitals, typos, tags and placeholders well. Validation
    and test text never change."""

    @field_validator("valid", "test")
    @classmethod
    def _reject_training_only_keys(cls, value: tuple[Corpus, ...] | dict[str, Corpus]
                                   ) -> tuple[Corpus, ...] | dict[str, Corpus]:
        for name, corpus in value.items() if isinstance(value, dict) else enumerate(value):
            refuse_if(corpus.weight != 1.0, (name, "weight"), "only training corpora can have a weight")
            refuse_if(corpus.translated_by is not None, (name, "translated_by"),
                      "only training corpora can be translated by a model")
        return value

    @field_serializer("valid")
    def _as_written(self, valid: tuple[Corpus, ...], info: SerializationInfo) -> Any:
        """Return a single corpus without a list around it, so that stored recipes look like handwritten recipes."""
        dumped = [corpus.model_dump(mode=info.mode, exclude_none=info.exclude_none,
                                    exclude_defaults=info.exclude_defaults) for corpus in valid]
        return dumped[0] if len(dumped) == 1 else dumped

    def with_corpora(self, change: Callable[[Corpus], Corpus]) -> "Data":
        """Return a copy with changed corpora."""
        return self.model_copy(update={
            "train": tuple(map(change, self.train)), "valid": tuple(map(change, self.valid)),
            "test": {name: change(corpus) for name, corpus in self.test.items()}})

    def corpora_with_keys(self) -> Iterator[tuple[tuple[str | int, ...], Corpus]]:
        """Yield (key relative to `data`, corpus) for all corpora: train, valid, test."""
        yield from ((("train", index), corpus) for index, corpus in enumerate(self.train))
        yield from ((("valid", index) if len(self.valid) > 1 else ("valid",), corpus)
                    for index, corpus in enumerate(self.valid))
        yield from ((("test", name), corpus) for name, corpus in self.test.items())

    def held_out(self) -> dict[str, Corpus]:
        """Return the validation and test corpora by key, such as valid, valid.1 and test.NAME."""
        return {".".join(map(str, key)): corpus for key, corpus in self.corpora_with_keys() if key[0] != "train"}

    def corpora(self) -> Iterator[Corpus]:
        """Yield all corpora: train, valid, test."""
        yield from (corpus for _, corpus in self.corpora_with_keys())
