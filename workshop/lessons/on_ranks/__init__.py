"""What runs on the ranks when an exercise is checked: the only part of the lessons that imports torch.

Each module here is called by the ``check_program`` of one exercise, after the learner's cell, in the same
program. It calls the learner's function on known numbers and reports plain values under the name ``check``;
the notebook compares them and finds the words.
"""
