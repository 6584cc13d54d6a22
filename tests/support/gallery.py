"""The gallery `spec/VERDICTS.md`: its blocks are what the program prints."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

GALLERY_FILE = Path(__file__).parents[2] / "spec" / "VERDICTS.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
PICTURE = re.compile(r"[.=o|>]{33}")
QUESTION = re.compile(r"^  [A-Z][^:\n]*\? {2,}\S.*\n(?: {6}.*\n)*", re.M)  # with the lines of its answer


def shorten(screen: str, questions: str) -> str:
    """Return a screen with the answers to some of its questions, such as "1 3"; `[...]` stands for the others."""
    if not questions:
        return screen
    places = iter(range(1, 9))
    shown = QUESTION.sub(lambda m: m[0] if str(next(places)) in questions.split() else "  [...]\n", screen)
    return re.sub(r"^  Brackets: .*\n", "", re.sub(r"(  \[\.\.\.\]\n)+", "  [...]\n", shown), flags=re.M)


def check_gallery(kind: str, names: Iterable[str], screen: Callable[[str], str], folder: Path) -> None:
    """The blocks under `<!-- KIND of NAME -->`, word by word; numbers up to the rounding of other machines.

    `<!-- KIND of NAME, questions 1 3 -->` has the answers to these questions alone.

    Args:
        folder: where the gallery as it should be is written.
    """
    exhibit = re.compile(rf"(<!-- {kind} of (\w[\w-]*)(?:, questions ([\d ]+))? -->\n```\n)(.*?)```", re.S)
    text = GALLERY_FILE.read_text()
    shown = {name: (block, shorten(screen(name), some)) for _, name, some, block in exhibit.findall(text)}
    assert shown.keys() == set(names)
    written = folder / GALLERY_FILE.name
    written.write_text(exhibit.sub(lambda m: f"{m[1]}{shown[m[2]][1]}```", text))
    for name, blocks in shown.items():
        old, new = (" ".join(NUMBER.sub("#", PICTURE.sub("", words)).split()) for words in blocks)
        assert old == new, f"{name}: the program prints other words; read {written} and put it into spec/"
        numbers = [[*map(float, NUMBER.findall(words))] for words in blocks]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.1, abs=0.01), f"{name}: other numbers; see {written}"
