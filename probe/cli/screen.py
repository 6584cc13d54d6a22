"""probe screen: rank the bench's remedies by the measurements of one replay, with or without a lookahead."""

from dataclasses import asdict
from pathlib import Path

import click

from probe.analysis.formatting import shown
from probe.cli._frame import Table, Text, say
from probe.cli._settings import verb
from probe.records.run import read_run, resolve_run


@verb()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--lookahead", type=click.IntRange(min=1), metavar="STEPS", help="Steps that every remedy takes first, such as 20."
)
@click.option(
    "--remedies", type=click.Path(path_type=Path), help="A spec whose conditions are ranked.  [default: the bench's]"
)
def screen(run: Path, lookahead: int | None, remedies: Path | None, out: Path) -> Text:
    """Rank remedies by the replay RUN (a directory, or a name in OUT/runs): the hack gain that each avoids, the honest
    gain that it keeps, the norm that projection removes, and its cost. Remedies that the measurement does not see are
    named with the reason. The first table is how often each pool is rewarded for a hack: what a training starts from.

    Without --lookahead the stored inner products are read, no model is loaded, and projections along v_hack alone are
    ranked, to first order. With --lookahead every remedy takes steps on the stored rollouts from the weights of RUN:
    some seconds each on the organism, once. A rank is no forecast of a training.

    Examples:

      probe screen out/runs/demo

      probe screen out/runs/demo --lookahead 20
    """
    from probe.analysis.analyze import Analysis  # imports scipy, so only on demand
    from probe.analysis.screen import PARTS, hidden_rewards
    from probe.analysis.screen import screen as screened
    from probe.experiments.spec_file import read_candidates
    from probe.settings.remedy import CANDIDATES

    directory = resolve_run(run, out)
    candidates = CANDIDATES if remedies is None else read_candidates(remedies)
    stored, ahead = read_run(directory), None
    if lookahead is not None:
        from probe.runs.lookahead import look_at_remedies  # torch

        ahead = look_at_remedies(stored, candidates, lookahead, out_dir=out, say=say)
    rows = screened(Analysis(stored), candidates, ahead)
    forecasts = hidden_rewards(stored.samples)
    of_pools = zip(forecasts[::2], forecasts[1::2], strict=True)
    cells = [(str(rate.arm), f"{rate}", variance.why or f"{variance}", str(rate.n)) for rate, variance in of_pools]
    yield Table(("pool", "rewarded hacks [95%]", "their variance within a prompt", "prompts"), cells)
    ranked = [row for row in rows if row.value is not None]
    forms = dict(zip(PARTS[:2], (".0%", ".0%"), strict=True)) | {"cost": ".1f"}
    cells = [(row.name, f"{row:.0%}", *(shown(row.parts[name], forms[name]) for name in forms)) for row in ranked]
    if cells:
        how = "first order [95%]" if lookahead is None else f"after {lookahead} steps"
        yield Table(("remedy", f"hack gain avoided, {how}", "honest gain kept", "norm removed", "cost"), cells)
    if any((row.value or 0.0) > 1 for row in ranked):
        yield "above 100%: hacks become less likely than before the steps"
    for why in dict.fromkeys(row.why for row in rows if row.why):
        yield f"not ranked: {', '.join(row.name for row in rows if row.why == why)}: {why}"
    plain = [
        {"remedy": row.name, "hack_gain_avoided": row.value, "interval": row.interval, "why": row.why, **row.parts}
        for row in rows
    ]
    return {"steps": lookahead, "remedies": plain, "pools": [asdict(row) for row in forecasts]}
