"""The commands of `lpjepa`, one module each: how arguments are read and results shown.

A module has `run(arguments) -> exit status`, whose docstring is its line in the list of commands.
"""
