"""EXPECT: closed formulas and event simulation over facts; numpy only, no torch."""
