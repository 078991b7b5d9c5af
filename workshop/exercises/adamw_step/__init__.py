"""Exercise: one step of AdamW."""
