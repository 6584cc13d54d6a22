"""`probe report`: runs, or the runs of a spec, as one self-contained HTML file.

What it shows, and what first, is decided in `contents.py`. Sections are in `sections/`, their drawings in `figures/`.
"""
