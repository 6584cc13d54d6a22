"""`probe report`: runs, or the runs of a spec, as one self-contained HTML file; its order is `build.contents`."""
