"""`lpjepa pretrain`: from images to a sparse encoder."""

from __future__ import annotations


def run(arguments: list[str]) -> int:
    """Train; then the paper's table of what came out, and the report."""
    from lpjepa.training import layers, loop, processes
    from lpjepa.training.run import table

    if "-h" in arguments or "--help" in arguments:
        return _help()
    words = list(arguments)
    source = words.pop(0) if words and not words[0].startswith("--") else None
    trained = loop.pretrain(layers.load_config(source, layers.parse_flags(words)))
    if processes.is_first():
        from lpjepa.report import write_report

        print(f"\n{table([trained])}\n")
        print(f"run     {trained.folder}")
        print(f"report  {write_report([trained.folder])}")
    return 0


def _help() -> int:
    """Every key with its type, default and description, as tyro draws them from the dataclasses."""
    import tyro

    from lpjepa.training import Config, preset, preset_names

    print("usage: lpjepa pretrain [CONFIG.yaml | presets:NAME] [--GROUP.KEY VALUE ...]\n")
    print(f"presets: {', '.join(preset_names())}\n")
    tyro.cli(Config, prog="lpjepa pretrain", default=preset("digits"), args=["--help"])
    return 0
