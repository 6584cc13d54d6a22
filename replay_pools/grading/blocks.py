"""Find the source code in a completion, by one of two rules. Every pool records its rule, since labels depend on it.

solution   The default. It takes the last fenced block of Python that defines `Solution`, and the blocks around it that
           define something else (imports, helpers, run_tests). Thinking is left out, and so are earlier definitions of
           `Solution` (drafts) and blocks that define nothing (examples of use, output). The fence of a block of Python
           says so in any spelling, or names no language.
joined     The rule of the published LeetCode benchmark, and the default for its problems: all blocks that its
           expression takes for code, joined by a blank line. Labels compare with published ones under this rule alone.

Under both, a block that is never closed runs to the end of the text; `solution` prefers one that is closed.
"""

import re
from collections.abc import Callable, Iterator
from textwrap import dedent

from replay_pools.rollout import CodeRule

# Word for word the benchmark's, with its oddities: of all names only `python` opens a block, and the closing fence of a
# block with any other name is read as an opening one.
_BENCHMARK_BLOCK = re.compile(r"```(?:python)?\n(.*?)(?:```|$)", re.DOTALL | re.IGNORECASE)
# The quantifiers are possessive (*+): a hostile line of n characters takes O(n), and with backtracking O(n^2).
_FENCE = re.compile(r"^(?P<before>[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)?)(?P<marks>`{3,}+|~{3,}+)(?P<info>[^\n]*+)$")
_LANGUAGE = re.compile(r"[{.\s]*+(?P<name>[^\s{},:]*+)")  # `python`, ` Python3 title="x"`, `{.python}`, `python:x.py`
_PYTHON = re.compile(r"(?:i?py(?:thon)?[\d.]*+|.*\.py)", re.IGNORECASE)
# Text before it, such as `<answer>` or `Code:`; its language has to be Python.
_FENCE_IN_TEXT = re.compile(r"(?P<before>)[^`>][^`]*+(?P<marks>`{3,}+)(?P<info> *+(?:i?py(?:thon)?[\d.]*+))$", re.I)
_THINKING = re.compile(r"\s*+<think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHT_ON_A_LINE = re.compile(r"^[ \t]*+</think(?:ing)?>", re.IGNORECASE | re.MULTILINE)
_SOLUTION = re.compile(r"^class[ \t]+Solution\b", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class|import|from|@)\b|^@", re.MULTILINE)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import\b[^\n]*\n?", re.MULTILINE)
_ANY_DEFINITION = re.compile(r"^[ \t>]*+(?:class|def)[ \t]+\w[^\n]*:", re.MULTILINE)


def extract_source(completion: str, rule: CodeRule) -> str | None:
    """Return the source by `rule`; None when there is no block of code (the label `fmt_ok` is then False)."""
    return _EXTRACT[rule](completion)


def default_rule(env: str | None) -> CodeRule:
    """Return the rule for the problems of an environment."""
    return "joined" if (env or "").partition(":")[0] == "leetcode" else "solution"


def misses_code(completion: str, rule: CodeRule) -> bool:
    """Return whether the completion defines a function or a class and the rule took no definition from it."""
    if not _ANY_DEFINITION.search(completion):
        return False
    return not _ANY_DEFINITION.search(extract_source(completion, rule) or "")


def _joined(completion: str) -> str | None:
    """Return all blocks, each stripped, without empty ones."""
    blocks = [block.strip() for block in _BENCHMARK_BLOCK.findall(completion)]
    return "\n\n".join(filter(None, blocks)) or None


def _solution(completion: str) -> str | None:
    blocks = [block for block in _blocks(_answer(completion)) if _is_python(block[0])]
    if not blocks:
        return None
    languages, texts, closed = zip(*blocks, strict=True)
    defining = [i for i, text in enumerate(texts) if _SOLUTION.search(text)]
    if not defining:
        named = [text for language, text in zip(languages, texts, strict=True) if language]
        return "\n\n".join(named or texts).strip() or None
    chosen = next((i for i in reversed(defining) if closed[i]), defining[-1])
    others = {i for i, text in enumerate(texts) if i not in defining and _DEFINITION.search(text)}
    source = "\n\n".join(texts[i] for i in sorted({chosen, *others}))
    # Python wants these before all other code, also before the blocks of imports and helpers.
    return "".join(f"{line.rstrip()}\n" for line in _FUTURE.findall(source)) + _FUTURE.sub("", source)


def _is_python(language: str) -> bool:
    """Return whether a fence names Python, or no language."""
    return not language or _PYTHON.fullmatch(language) is not None


def _answer(completion: str) -> str:
    """Return the text after the thinking, also when the prompt holds its head; "" when it does not end."""
    text, start = completion.replace("\ufeff", "").replace("\r\n", "\n"), 0
    while True:
        is_open = _THINKING.match(text, start)
        # An answer may mention the tag, so without a head it has to begin a line.
        end = (_THOUGHT if is_open else _THOUGHT_ON_A_LINE).search(text, start)
        if end is None:
            return "" if is_open else text[start:]
        start = end.end()


def _blocks(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (language of its fence, code, whether it is closed) of the fenced blocks.

    As Markdown has them, of backticks or tildes, also in lists and in other blocks.
    """
    opening: tuple[str, int, str] | None = None  # language, columns before the fence, marks of the block
    code: list[str] = []

    def block(*, is_closed: bool) -> Iterator[tuple[str, str, bool]]:
        if opening is not None:
            # Without the indentation of a list.
            margin = re.compile(rf"[ \t]{{0,{opening[1]}}}")
            yield opening[0], dedent("\n".join(margin.sub("", each, count=1) for each in code)).strip("\n"), is_closed

    for line in text.split("\n"):
        fence = _FENCE.match(line.rstrip()) or (_FENCE_IN_TEXT.match(line.rstrip()) if opening is None else None)
        # The info of a fence of backticks holds none, or the line is code within a sentence.
        if fence and fence["marks"][0] == "`" and "`" in fence["info"]:
            fence = None
        indent = len(fence["before"].expandtabs(4)) if fence else 0
        if fence and opening:
            # Shorter or deeper than the fence that opened the block of Python, it is text of a docstring.
            is_short = _is_python(opening[0]) and not fence["marks"].startswith(opening[2])
            if is_short or indent > opening[1] + 3:
                fence = None
        if fence is None:
            code.append(line)
        elif opening and not fence["info"].strip() and fence["marks"].startswith(opening[2]):
            yield from block(is_closed=True)
            opening = None
        else:  # also within a block: the one before was not closed, or is text around this one
            yield from block(is_closed=False)
            language = _LANGUAGE.match(fence["info"])
            opening, code = (language["name"] if language else "", indent, fence["marks"]), []
    yield from block(is_closed=False)


_EXTRACT: dict[CodeRule, Callable[[str], str | None]] = {"solution": _solution, "joined": _joined}
