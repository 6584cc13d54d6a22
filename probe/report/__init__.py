"""`probe report`: runs, or the runs of a spec, as one self-contained HTML file. `build.contents` sets its order."""
