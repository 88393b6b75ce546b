"""The commands of `lpjepa`, one module each: how arguments are read and results shown.

A module has `run(arguments) -> exit status`; `lpjepa.cli` lists and calls it.
"""
