"""The pages of `make docs`: written from the stored notebooks, the docstrings, the import graph and the data.

Nothing is executed and no number is typed: `lessons` takes the notebooks as they are stored, `reference` the
docstrings as they stand in the files, `rooms` the import graph, `tables` what the package and the benchmarks
say. `build` writes these sources and lets Sphinx make pages of them; `checked` goes through the pages.
"""
