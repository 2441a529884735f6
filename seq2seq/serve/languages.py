"""The languages of a server, and the directions between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from seq2seq.languages import canonical, language_name


def resolve(code: str, served: Iterable[str]) -> str | None:
    """Return the served language that matches a client's language code; None if no language matches.

    If the code has no region, a language with any region matches: `en-US` for `en`. If the region of the code is not
    served, the region is ignored: `de` for `de-AT`. Codes with different scripts never match.
    """
    languages = list(served)
    wanted = canonical(code)
    if wanted in languages:
        return wanted
    main = wanted.split("-")[0]
    same = [language for language in sorted(languages, key=len) if language.split("-")[0] == main]
    return next((one for one in same if "" in (_script(one), _script(wanted)) or _script(one) == _script(wanted)), None)


def _script(code: str) -> str:
    return next((part for part in code.split("-")[1:] if len(part) == 4), "")


@dataclass(frozen=True)
class Directions:
    """Translation directions of a server.

    direct: (source, target) of each direction that a model translates, as canonical codes.
    """

    direct: tuple[tuple[str, str], ...]

    @cached_property
    def languages(self) -> list[str]:
        """All languages that are the source or the target of a model, sorted by name."""
        return sorted({code for pair in self.direct for code in pair}, key=lambda code: (language_name(code), code))

    @cached_property
    def sources(self) -> list[str]:
        """All languages that are the source of a model, sorted by name."""
        return [code for code in self.languages if any(code == source for source, _ in self.direct)]

    def path(self, source: str, target: str) -> tuple[str, ...] | None:
        """Return the shortest path of languages from source to target; None if no chain of models connects them.

        The path has one language if source and target are the same, two for a direct model, more with pivot languages.
        """
        return self._paths_from(source).get(target)

    def targets(self, source: str) -> list[str]:
        """Return the languages that can be reached from `source`, including `source`, in the order of `languages`."""
        paths = self._paths_from(source)
        return [code for code in self.languages if code in paths]

    def _paths_from(self, source: str) -> dict[str, tuple[str, ...]]:
        paths: dict[str, tuple[str, ...]] = {source: (source,)}
        waiting: Sequence[str] = [source]
        while waiting:
            following = []
            for language in waiting:
                for begin, end in self.direct:
                    if begin == language and end not in paths:
                        paths[end] = (*paths[language], end)
                        following.append(end)
            waiting = following
        return paths
