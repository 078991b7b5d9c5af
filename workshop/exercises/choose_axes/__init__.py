"""Exercise: a layout by rule of thumb: tensor inside the node, then pipeline, the rest data."""
