"""Ranks that stay: one kernel per rank, variables kept from cell to cell, healed after trouble."""
