"""One file per view; each has `root` to show, `source` to test, `update(snapshot)`."""
