"""Exercise: how islands that trained apart become one model again: DiLoCo's outer step."""
