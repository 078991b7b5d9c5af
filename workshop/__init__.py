"""Workshop: training models that do not fit."""
