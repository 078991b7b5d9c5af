"""One module a source: what a row of it says was run."""
