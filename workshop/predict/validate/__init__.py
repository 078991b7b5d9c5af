"""Old names of `workshop.published`, which programs and lessons still use: `cases.predict_cases` and
`tables.read_table`. New code imports from `workshop.published`.
"""
