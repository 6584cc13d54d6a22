"""One rollout as a line that opens: inside are facts, prompt, and completion with the shares of its tokens."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from probe.report.figures.panel import signed
from probe.report.html import clean, node, number
from probe.report.rollouts import ShownRollout

SHARE_UNIT = 1e-5  # shares are whole numbers of this in the page, which page.js divides by 1e5 again


def rollout_details(shown: ShownRollout, scale: float) -> Element:
    """A folded `details` element.

    Args:
        shown: the rollout.
        scale: the largest |cosine| among its neighbours: the full width of its bar.
    """
    sample, rollout = shown.sample, shown.rollout
    tags = [("hacked", "hack-tag") if sample.hacked else ("clean", "clean-tag")]
    tags.append(("right" if sample.gt_pass else "wrong", ""))
    if sample.hint:
        tags.append(("hint", ""))
    summary = node(
        "summary",
        node("span", f"step {sample.step} \u00b7 {sample.sample_id}", class_="where"),
        node("span", sample.src_pool, class_="source"),
        node("span", *(node("b", word, class_=f"tag {class_}".strip()) for word, class_ in tags), class_="tags"),
        node("span", f"A {signed(sample.advantage, 2)}", class_="advantage"),
        _bar(shown.cosine, scale),
        node("span", signed(sample.cos_S_contrib), class_="cosine"),
    )
    prompt = node(
        "details",
        node("summary", f"Prompt ({rollout.plen} tokens{_sum_of_shares(shown, 'prompt')})"),
        _text(shown, "prompt"),
        class_="fold",
    )
    completion_title = f"Completion ({rollout.comp_len} tokens{_sum_of_shares(shown, 'completion')})"
    completion = node("div", node("h4", completion_title), _text(shown, "completion"))
    return node(
        "details",
        summary,
        node("div", node("div", _facts(shown), prompt), completion),
        class_="rollout",
        id=shown.anchor,
        data_label="hacked" if sample.hacked else "clean",
        data_source=sample.src_pool,
    )


def _facts(shown: ShownRollout) -> Element:
    """Labels, grade and measures in words."""
    sample, grade = shown.sample, shown.rollout.grade
    detectors = []
    for name, detected in grade.detectors.items():
        if detected is not None:
            detectors.append(f"{name} {'yes' if detected else 'no'}")
    cosines = f"cos_S_contrib {signed(sample.cos_S_contrib, 4)}, cos_S_nll {signed(sample.cos_S_nll, 4)}"
    if sample.null_reason:
        cosines += f" ({sample.null_reason})"
    length = f"{sample.comp_len} tokens"
    if sample.nll is not None:
        length += f", finished by {shown.rollout.finish_reason}; nll {sample.nll:.3f} nats a token"
    facts = [
        ("problem", f"{sample.problem_id} ({shown.rollout.env_mode})"),
        ("grade", _grade(shown)),
        ("detectors", ", ".join(detectors) or "none applies"),
        ("isolation", grade.isolation + ("; FLAKY: graded twice with different labels" if grade.flaky else "")),
        ("update", _update(sample.advantage)),
        ("cosines", cosines),
        ("length", length),
    ]
    if grade.no_label:
        facts.append(("no label", grade.no_label))
    if grade.error:
        facts.append(("error", grade.error))
    return node("dl", *(node("div", node("dt", name), node("dd", value)) for name, value in facts), class_="facts")


def _grade(shown: ShownRollout) -> str:
    """Reward, how it was earned, hidden tests: `reward 3: passed through run_tests; 0 of 5 hidden answers right`."""
    grade = shown.rollout.grade
    if grade.no_label:
        return "no label, no reward"
    if not grade.passed:
        paid = "not passed"
    elif grade.mechanism == "none":
        paid = "passed"
    else:
        paid = f"passed through {grade.mechanism}"
    answers = "no test counts"
    if grade.num_tests:
        answers = f"{grade.num_tests_passed} of {grade.num_tests} hidden answers right"
    return f"reward {shown.sample.reward:g}: {paid}; {answers}"


def _update(advantage: float) -> str:
    """What a descent step does with the completion, by the sign of its advantage."""
    verb = "leaves alone"
    if advantage > 0:
        verb = "raises"
    elif advantage < 0:
        verb = "lowers"
    return f"advantage {signed(advantage, 3)}: the update {verb} the likelihood of this completion"


def _text(shown: ShownRollout, part: str) -> Element:
    """Prompt or completion, with lengths and shares of its tokens for page.js, which colours them when it is opened."""
    text, record = getattr(shown.rollout, part), shown.tokens
    chars = None if record is None else getattr(record, f"{part}_chars")
    shares = None if record is None else getattr(record, part)
    # A browser drops one newline at the start of a pre: this one, and not the text's own.
    if chars is None or shares is None:
        return node("pre", "\n", text, class_="text")
    return node(
        "pre",
        "\n",
        text,
        class_="text tokens",
        data_chars=" ".join(map(str, _shown_lengths(text, chars))),
        data_shares=" ".join(str(round(share / SHARE_UNIT)) for share in shares),
    )


def _shown_lengths(text: str, lengths: Sequence[int]) -> list[int]:
    """The lengths of the tokens in the page, where marks in the place of invisible characters are longer."""
    shown: list[int] = []
    start = 0
    for length in lengths:
        shown.append(len(clean(text[start : start + length])))
        start += length
    return shown


def _sum_of_shares(shown: ShownRollout, part: str) -> str:
    shares = None if shown.tokens is None else getattr(shown.tokens, part)
    return "" if shares is None else f", {signed(sum(shares), 4)} of cos_S_nll"


def _bar(value: float, scale: float) -> Element:
    """A cosine as a bar from the middle: left clean-ward, right hack-ward."""
    width = 28 * min(1.0, abs(value) / scale)
    bar = node(
        "rect",
        x=number(30 if value > 0 else 30 - width),
        y=3,
        width=number(width),
        height=6,
        class_="hack" if value > 0 else "clean",
    )
    return node(
        "svg",
        node("line", x1=30, y1=0, x2=30, y2=12, class_="zero"),
        bar,
        viewBox="0 0 60 12",
        class_="spark",
        aria_hidden="true",
    )
