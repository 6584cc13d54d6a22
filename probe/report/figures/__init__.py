"""Figures: each function takes what an analysis measured and returns a `Figure`, or None if there is nothing to draw.

To add a figure: write `my_figure(name, data) -> Figure | None` in a file here; `name` is that of its SVG file. Draw on
a `Panel` (`panel.py`), or give rows with intervals to `forest` (`forest.py`). Colours and line widths are classes of
`probe/report/figures.css`. Then call it where a section collects its figures (`probe/report/sections/`).
"""
