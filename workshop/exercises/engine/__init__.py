"""What every exercise shares: reading its folder, judging an answer, telling the learner, keeping progress.

`folder` reads an exercise, `judge` runs an answer and its check, `feedback` finds the words, `progress` and
`guess` remember. A check is written with `check`. `group` and `sent_bytes` serve on the ranks alone, and
import torch.
"""
