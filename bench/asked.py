"""What typer can't check of a measure's options: refused in a sentence, before a server starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import typer


def numbers(text: str, option: str, least: float) -> list[float]:
    """Numbers with commas between them, each of at least `least`."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= each < math.inf for each in found):
        raise typer.BadParameter(
            f"{text!r} is no list of numbers from {least:g} on; right: {option} 200,2000."
        )
    return found


def words(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Some of the known words, with commas between them."""
    found = text.split(",")
    if unknown := [word for word in found if word not in known]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not known; {option} takes some of {', '.join(known)}."
        )
    return found
