"""Sections of a report: each function takes a `Report` and returns a `Section`, which says why if it is empty.

To add a section: write such a function in a file here, from the blocks in `base.py`, and put its call at its place in
`probe/report/contents.py`, which decides the order.
"""
