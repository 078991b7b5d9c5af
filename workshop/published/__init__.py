"""What others measured, and what we predict for it: one module a source, row by row.

A row of a table becomes one :class:`~workshop.published.record.MeasuredRun`: a `Run`, the stack it ran on,
what was measured, and what the source leaves open and had to be assumed. Time and memory are predicted from
the same record (`predicted`), compared in `report`, written in the columns of `canonical`, and fitted on in
`fit` and `calibrate`.
"""
