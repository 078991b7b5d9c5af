"""Ranks that stay on several nodes: one keyed connection a node, the rest as on one machine."""
