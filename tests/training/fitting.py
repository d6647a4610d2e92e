"""A small recipe, quick to train."""

QUICK_FLAGS = ("--set", "hidden=4", "--set", "depth=1", "--set", "epochs=3")
