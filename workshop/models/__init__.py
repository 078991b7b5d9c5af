"""Models small enough to read and real enough to train."""

VOCAB_SIZE = 256
"""Words of the text of `models.text`: its bytes. A model may know more: catalogue models have 8,192."""
