"""Protocols on trained models: features, probes, label regimes, transfer, kNN, retrieval, attribution."""

from lpjepa.evaluation.attribution import Attribution, attribute, late_layer
from lpjepa.evaluation.features import Features, extract, stream
from lpjepa.evaluation.knn import knn_classify, nearest
from lpjepa.evaluation.posthoc import rectification
from lpjepa.evaluation.probes import ProbeJob, ProbeProtocol, ProbeResult, probe_protocol, train_probes
from lpjepa.evaluation.protocol import EvaluationSettings, evaluate_features
from lpjepa.evaluation.regimes import mean_std, plain_draw, stratified_draw
from lpjepa.evaluation.retrieval import Neighbours, crop, neighbours, retrieve
from lpjepa.evaluation.run import evaluate_run, run_features
from lpjepa.evaluation.transfer import (
    Table,
    same_labels,
    sparsity_deviation,
    summary_table,
    tables,
    transfer_table,
)

__all__ = [
    "Attribution",
    "EvaluationSettings",
    "Features",
    "Neighbours",
    "ProbeJob",
    "ProbeProtocol",
    "ProbeResult",
    "Table",
    "attribute",
    "crop",
    "evaluate_features",
    "evaluate_run",
    "extract",
    "knn_classify",
    "late_layer",
    "mean_std",
    "nearest",
    "neighbours",
    "plain_draw",
    "probe_protocol",
    "rectification",
    "retrieve",
    "run_features",
    "same_labels",
    "sparsity_deviation",
    "stratified_draw",
    "stream",
    "summary_table",
    "tables",
    "train_probes",
    "transfer_table",
]
