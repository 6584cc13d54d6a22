"""The base of every package: errors, files, tables and progress."""
