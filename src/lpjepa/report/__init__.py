"""Figures and the HTML report of one or several runs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpjepa.report.html import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    # On demand: `lpjepa target` draws with this package and should not wait for models and data.
    if name == "write_report":
        from lpjepa.report.html import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
