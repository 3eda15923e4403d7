"""TopicPatterns: lists of shell patterns against names, asked again and again."""

from __future__ import annotations

import re
from fnmatch import translate

_MOST_NAMES = 200_000
"""Answers that are kept; more topics than that are asked for one by one."""


class TopicPatterns:
    """Which topics two lists of patterns let through. Thread-safe.

    The lists are settings that may change at any time: what was found for others is forgotten.
    """

    def __init__(self) -> None:
        self._known = _Compiled("", "")

    def admit(self, topic: str, included: str, excluded: str) -> bool:
        """Tell whether a topic is included (an empty list includes all) and not excluded. The lists
        have shell patterns with commas between; upper and lower case differ."""
        if not included and not excluded:
            return True
        known = self._known
        if known.lists != (included, excluded):
            known = self._known = _Compiled(included, excluded)
        return known.admit(topic)


class _Compiled:
    def __init__(self, included: str, excluded: str) -> None:
        self.lists = (included, excluded)
        self._included = _compile(included)
        self._excluded = _compile(excluded)
        self._found: dict[str, bool] = {}

    def admit(self, topic: str) -> bool:
        found = self._found.get(topic)
        if found is None:
            found = (self._included is None or bool(self._included.match(topic))) and not (
                self._excluded is not None and self._excluded.match(topic)
            )
            if len(self._found) < _MOST_NAMES:
                self._found[topic] = found
        return found


def _compile(patterns: str) -> re.Pattern[str] | None:
    """One expression for a list of patterns; None for an empty one."""
    words = [word for word in (word.strip() for word in patterns.split(",")) if word]
    return re.compile("|".join(map(translate, words))) if words else None
