"""Tools of the repository: setting up, pairing and executing the lessons, the rules."""
