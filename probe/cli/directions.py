"""probe directions: print the card of a direction file; principal angles between the directions of two files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import echo, echo_json, echo_table, json_option, out_option
from probe.cli._settings import resolve_directions

# The modules of directions bring torch: a help text must not wait for it. Commands import them inside.
if TYPE_CHECKING:
    from extraction.controls import ModuleAngles

# {key in the nulls of a card: its name in the text}.
MEASURES = {"accuracy": "sign accuracy", "mean_cos": "mean cosine"}
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def directions() -> None:
    """Show the card of a direction file; compare two files."""


@directions.command(short_help="Print the card of a direction file.")
@click.argument("file", type=FILE)
@out_option
@json_option
def show(file: Path, out: Path, as_json: bool) -> None:
    """Print the card that `probe extract` wrote beside FILE, after checking that it belongs to it.

    FILE is a path, or a name in OUT/directions.

    Example:  probe directions show v_hack
    """
    from probe.runs.directions import read_card

    file = resolve_directions(file, out)
    card = read_card(file)
    if as_json:
        echo_json(card)
    else:
        print_card(file, card)


@directions.command(short_help="Principal angles between two direction files.")
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@out_option
@json_option
def compare(first: Path, second: Path, out: Path, as_json: bool) -> None:
    """Principal angles between the directions of two files (or names) of one basis, by module and summarised.

    Example:  probe directions compare v_hack theirs.safetensors
    """
    from extraction.adapters.interface import check_fingerprint
    from extraction.controls import compare_modules
    from extraction.directions import load_directions

    first, second = resolve_directions(first, out), resolve_directions(second, out)
    left, right = load_directions(first), load_directions(second)
    check_fingerprint(second, expected=left.metadata["fingerprint"], found=right.metadata["fingerprint"])
    modules = compare_modules(left.vectors, right.vectors)
    if as_json:
        summary = {name: _summary(group) for name, group in _by_projection(modules).items()}
        echo_json({"summary": summary, "modules": {name: asdict(angles) for name, angles in modules.items()}})
        return
    rows = [(name, *_cells(_summary(group))) for name, group in _by_projection(modules).items()]
    echo_table(("modules", "both", "smallest angle", "largest angle", "overlap", "by chance", "axis cosine"), rows)
    echo(
        f"{len(modules)} of {len(left.vectors)} modules keep directions in both files; angles in degrees, medians over "
        "modules; axis cosine: of the axes along which cosines are measured, mean over modules"
    )


def _by_projection(modules: Mapping[str, "ModuleAngles"]) -> dict[str, list["ModuleAngles"]]:
    """Modules grouped by projection type (the last part of the name, such as q_proj); all of them first, as "all"."""
    groups = {"all": [*modules.values()]}
    for name, angles in modules.items():
        groups.setdefault(name.rpartition(".")[2], []).append(angles)
    return groups


def _summary(modules: Sequence["ModuleAngles"]) -> dict[str, float | int | None]:
    """Medians of the smallest and largest angle and means of the rest, over modules; null without modules."""
    if not modules:
        return {"num_modules": 0} | dict.fromkeys(("angle_min", "angle_max", "overlap", "chance", "axis_cos"))
    return {
        "num_modules": len(modules),
        "angle_min": median(module.angles[0] for module in modules),
        "angle_max": median(module.angles[-1] for module in modules),
        "overlap": fmean(module.overlap for module in modules),
        "chance": fmean(module.chance for module in modules),
        "axis_cos": fmean(module.axis_cos for module in modules),
    }


def _cells(summary: Mapping[str, float | int | None]) -> list[str]:
    """The values of `_summary` as text, in its order."""
    formats = ("d", ".1f", ".1f", ".3f", ".3f", "+.3f")
    cells = []
    for value, number_format in zip(summary.values(), formats, strict=True):
        cells.append("-" if value is None else format(value, number_format))
    return cells


def print_card(file: Path, card: Mapping[str, Any]) -> None:
    """The card as text; `probe extract` ends with it too."""
    settings, held_out = card["settings"], card["held_out"]
    echo(f"directions {file} (basis {card['basis']} of {card['fingerprint']['model_id']})")
    rows = [
        ("pairs", card["pairs"]),
        ("pairs used", card["num_pairs"]),
        ("modules", card["num_modules"]),
        ("directions kept", f"{card['num_directions']} of {card['num_modules'] * settings['k']}"),
        ("modules without any", card["num_empty_modules"]),
        ("method", settings["method"]),
        ("k, tau, bottom dropped", f"{settings['k']}, {settings['tau']:g}, {settings['drop_bottom_frac']:g}"),
        ("loss, dtype", f"{settings['loss_type']}, {settings['dtype']}"),
        ("noise floor (singular value)", f"{card['noise_floor']:.3g}"),
        ("median vote margin", card["median_vote_margin"]),
        ("directions with vote p < .05", f"{card['frac_votes_p05']:.0%}"),
        ("held-out pairs", held_out["num_pairs"]),
    ]
    if held_out["num_pairs"]:
        low, high = held_out["ci95"]
        rows += [
            ("held-out sign accuracy", f"{held_out['accuracy']:.3f} [{low:.3f}, {high:.3f}]"),
            ("held-out mean cosine", f"{held_out['mean_cos']:+.3f}"),
        ]
    else:
        rows.append(("held-out sign accuracy", "not known: no pair is held out"))
    for name, null in card["nulls"].items():
        for measure, test in null.items():
            text = f"{test['mean']:+.3f} sd {test['sd']:.3f}, p {test['p']:.2g}"
            rows.append((f"{MEASURES[measure]} under {name}", text))
    rows += [
        ("adapted weights sha256", card["fingerprint"]["weights_sha256"][:16]),
        ("file sha256", card["sha256"][:16]),
    ]
    echo_table(("", ""), rows)
