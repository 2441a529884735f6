"""Endpoints, and the models of their parameters, by which requests are checked and the interface is described."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, PlainValidator, ValidationError, ValidationInfo, WithJsonSchema
from pydantic import model_validator as validator_of_model
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from seq2seq.recipe.base_section import Described
from seq2seq.serve.errors import ApiError, invalid

MAX_TEXTS = 1_000
"""Maximum number of texts of a request."""
SAMPLE_TEXTS = {"de": "ein Hund läuft", "en": "A dog runs.", "zh-Hans": "一只狗在跑。"}
"""Texts by language for examples of requests and answers."""
EXPECTED = {"string": "must be a text", "int": "is not a number", "finite": "is not a number",
            "bool": "is neither true nor false", "list": "must be a list of objects",
            "model": "must be a list of objects", "none": "is not supported",
            "is": "must be sent as multipart/form-data, with a file name"}
"""Faults of a parameter, by the beginning of the type of pydantic's error."""


def _texts(value: Any, info: ValidationInfo) -> str | list[str]:
    name, is_list = info.field_name, isinstance(value, list)
    if value == []:
        raise invalid(f"missing {name} parameter")
    if is_list and len(value) > MAX_TEXTS:
        raise ApiError(413, f"Invalid request: request has {len(value):,} texts, this server accepts at most "
                            f"{MAX_TEXTS:,}")
    if not all(isinstance(one, str) for one in (value if is_list else [value])):
        raise invalid(f"{'each element of ' if is_list else ''}{name} parameter must be a text")
    return value


def _names(value: Any, info: ValidationInfo) -> list[str]:
    several = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in several):
        raise invalid(f"{info.field_name} parameter must be a text or a list of texts")
    return [part.strip() for one in several for part in one.split(",") if part.strip()]


_SEVERAL = WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
Texts = Annotated[str | list[str], PlainValidator(_texts), _SEVERAL]
"""A text, or a list of texts."""
Names = Annotated[frozenset[str], BeforeValidator(_names), _SEVERAL]
"""Names, as a list, or as a text in which commas separate them."""
File = Annotated[UploadFile, WithJsonSchema({"type": "string", "format": "binary"})]
"""File of a form."""


class Parameters(Described):
    """Parameters of an endpoint. An empty value is like a missing one, and unknown parameters have no effect."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, protected_namespaces=())

    @validator_of_model(mode="before")
    @classmethod
    def _without_empty_values(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if value is not None and value != ""}

    @classmethod
    def lists(cls) -> frozenset[str]:
        """Return the parameters that a form or query string may repeat. The values of each become a list."""
        return frozenset(name for name, field in cls.model_fields.items() if _SEVERAL in field.metadata)

    @property
    def cost(self) -> int:
        """Number of requests as which this one counts: that of its texts."""
        values = [getattr(self, name) for name in self.lists()]
        return max([1, *(len(value) for value in values if isinstance(value, list))])


class KeyParameters(Parameters):
    """Parameters of every endpoint that is not for all."""

    api_key: str = ""
    """API key, if the server has keys."""
    auth_key: str = ""
    """Other name of api_key, as in DeepL's interface."""


P = TypeVar("P", bound=Parameters)


def validated(model: type[P], values: Mapping[str, Any]) -> P:
    """Return the parameters of a request. Raises ApiError if one is missing or has a wrong value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    *_, name = (part for part in fault["loc"] if isinstance(part, str))
    if fault["type"] in ("missing", "too_short"):
        raise invalid(f"missing {name} parameter")
    if fault["type"] == "literal_error":
        raise invalid(f"{name} {str(fault['input'])[:30]} is not supported, only {fault['ctx']['expected']}")
    raise invalid(f"{name} parameter {EXPECTED.get(fault['type'].partition('_')[0], 'is not valid')}")


@dataclass(frozen=True)
class Endpoint(Generic[P]):
    """Endpoint of the server.

    methods: HTTP methods, separated by spaces. answer: function of a request, the name of its client and its
    parameters, whose docstring describes the endpoint. example: answer, for the description. access: open for all, for
    clients (a key is checked), or also within the limits of each client.
    """

    methods: str
    path: str
    answer: Callable[[Request, str, P], Awaitable[Response]]
    parameters: type[P]
    example: Any = None
    access: Literal["open", "clients", "limited"] = "limited"

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.answer) or "").replace("\n", " ")
