"""Measurements behind `lpjepa bench`: each checks equality first, then compares within one run."""
