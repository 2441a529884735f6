"""The translation directions of a server, and paths of several directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from seq2seq.languages import language_name


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

    @cached_property
    def _direct_targets(self) -> dict[str, list[str]]:
        """Targets of the models by their source."""
        targets: dict[str, list[str]] = {}
        for source, target in self.direct:
            targets.setdefault(source, []).append(target)
        return targets

    def _paths_from(self, source: str) -> dict[str, tuple[str, ...]]:
        paths: dict[str, tuple[str, ...]] = {source: (source,)}
        waiting: Sequence[str] = [source]
        while waiting and len(paths) < len(self.languages):
            following = []
            for language in waiting:
                for end in self._direct_targets.get(language, ()):
                    if end not in paths:
                        paths[end] = (*paths[language], end)
                        following.append(end)
            waiting = following
        return paths
