"""Residual networks with fewer passes over memory: normalisation, rectifier and residual sum fused."""
