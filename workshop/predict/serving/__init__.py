"""Serving a model, predicted: what fits, what users wait for, how many tokens a second.

kv_bytes_per_token, kv_capacity    bytes of keys and values, tokens and requests that fit    capacity
predict_serving                    time to first token, between tokens, throughput           prediction
forward                            seconds of one pass by cause                              forward
tokens_per_round, speculation_speedup   what a draft model gains                             speculation
"""

from workshop.facts.serving import Serving
from workshop.predict.serving.capacity import KVCapacity, kv_bytes_per_token, kv_capacity
from workshop.predict.serving.engines import Engine, engines
from workshop.predict.serving.forward import Case, Forward, case, forward, wire_bytes_per_token
from workshop.predict.serving.prediction import (
    ServingPrediction,
    predict_serving,
    ridge_batch,
    throughput_by_batch,
)
from workshop.predict.serving.speculation import best_draft, speculation_speedup, tokens_per_round

__all__ = [
    "Case",
    "Engine",
    "Forward",
    "KVCapacity",
    "Serving",
    "ServingPrediction",
    "best_draft",
    "case",
    "engines",
    "forward",
    "kv_bytes_per_token",
    "kv_capacity",
    "predict_serving",
    "ridge_batch",
    "speculation_speedup",
    "throughput_by_batch",
    "tokens_per_round",
    "wire_bytes_per_token",
]
