"""Parts of a request as plain data and arrays, and back: what a run directory keeps of layers, columns, rows and the model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.data.dataset import LARGEST
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.fitted import FROZEN, Fitted, FrozenLayers, RandomFeatures
from mibp_cert.nets import LAYERS, Network, Training


def training_json(training: Training | Fitted) -> dict[str, Any]:
    """The training; parameters of frozen layers are the first ones of `θ₀`, and stand here by their hash."""
    kind = type(training).__name__
    if not isinstance(training, Fitted):
        return {"kind": kind, **asdict(training)}
    plain, features, weights = asdict(replace(training, features=None)), training.features, training.class_weight
    plain["features"] = features.to_json() if isinstance(features, FrozenLayers) else features and asdict(features)
    if isinstance(weights, Mapping):  # keys of JSON are text, and classes are found by theirs
        plain["class_weight"] = {str(name): weight for name, weight in weights.items()}
    return {"kind": kind, **plain}


def training_of(plain: Mapping[str, Any], network: Network, start: Array) -> Training | Fitted:
    """The training of a network from these parameters."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k != "kind"}
    if plain["kind"] != Fitted.__name__:
        return Training(**values)
    features = values.get("features")
    if features is not None and features["kind"] == FROZEN:
        body = Network(network.layers[:-1], network.shape)
        return Fitted(**values | {"features": FrozenLayers(body, start[: body.layout.size])})
    return Fitted(**values | {"features": features and RandomFeatures(**features)})


def layer_json(layer: Any) -> dict[str, Any]:
    return {"kind": type(layer).__name__, **asdict(layer)}


def layer_of(plain: Mapping[str, Any]) -> Any:
    known = {kind.__name__: kind for kind in LAYERS}
    if plain["kind"] not in known:
        raise UserError(
            f"The layer {plain['kind']} is not one of this package: hand it to certify_training(…, run_dir=…, resume=True)."
        )
    return known[plain["kind"]](**{k: v for k, v in plain.items() if k != "kind"})


def column_json(column: Column) -> dict[str, Any]:
    plain = {k: finite(v) for k, v in asdict(column).items()}
    plain["categories"] = None if column.categories is None else [scalar(c) for c in column.categories]
    return {**plain, "fill": scalar(column.fill)}


def column_of(plain: Mapping[str, Any]) -> Column:
    values = dict(plain)
    values["categories"] = None if plain["categories"] is None else tuple(plain["categories"])
    values["low"] = -np.inf if plain["low"] is None else plain["low"]
    values["high"] = np.inf if plain["high"] is None else plain["high"]
    found = Column(**values)
    whole, texts = (found.start, found.stop), (*(found.categories or ()), found.fill)
    if (
        not isinstance(found.name, str)
        or any(type(place) is not int for place in whole)
        or not all(map(_simple, texts))
    ):
        raise TypeError(f"{plain!r} is no column")
    if not (all(map(math.isfinite, (found.shift, found.scale))) and found.scale > 0 and found.low <= found.high):
        raise ValueError(f"the column {found.name!r} has a scale or a range that there is not")
    return found


def _simple(value: Any) -> bool:
    """What a cell or a label may be."""
    return value is None or isinstance(value, str | int | float)


def dataset_of(name: str, arrays: Mapping[str, Any], plain: Mapping[str, Any]) -> Dataset:
    found = {f.name: arrays.get(f"{name}_{f.name}") for f in fields(Dataset)}
    for array in found.values():
        if array is not None:
            array.setflags(write=False)
    columns, classes = tuple(map(column_of, plain["columns"])), tuple(plain["classes"])
    if not all(map(_simple, classes)):
        raise TypeError("classes are texts or numbers")
    _check_arrays(found, columns, classes)
    return Dataset(
        arrays[f"{name}_x"],
        arrays[f"{name}_y"].astype(np.intp),
        classes,
        columns,
        found["missing"],
        found["targets"],
        None if plain["target"] is None else column_of(plain["target"]),
        found["index"],
        found["weights"],
    )


def _check_arrays(found: Mapping[str, Any], columns: tuple[Column, ...], classes: tuple[Any, ...]) -> None:
    """Raise `ValueError` for rows that no data set holds: who wrote the file may be anybody."""
    n, features = found["x"].shape
    shapes = {"x": (n, features), "missing": (n, len(columns)), "targets": (n, 1), "index": (n,), "weights": (n,)}
    for key, array in found.items():
        if array is None or (key == "y" and not classes):
            continue
        kinds, shape = {"y": "i", "missing": "b", "index": "iuU"}.get(key, "f"), shapes.get(key, (n,))
        if (
            array.dtype.kind not in kinds
            or array.shape != shape
            or (kinds == "f" and not (np.abs(array) <= LARGEST).all())
        ):
            raise ValueError(f"{key} is no array of this shape and kind")
    if classes and len(found["y"]) and not (found["y"].min() >= 0 and found["y"].max() < len(classes)):
        raise ValueError("a label is none of the classes")
    if columns and [column.start for column in columns] + [features] != [0, *(column.stop for column in columns)]:
        raise ValueError("the columns are not those of the features")


def arrays_of(name: str, part: Dataset) -> dict[str, Any]:
    """The rows of one part of the data, as `dataset_of` reads them."""
    found: dict[str, Any] = {f"{name}_x": part.x, f"{name}_y": part.y.astype(np.int64)}
    optional = {key: getattr(part, key) for key in ("targets", "missing", "weights")}
    found |= {f"{name}_{key}": value for key, value in optional.items() if value is not None}
    if part.index is not None:
        names = part.index
        found[f"{name}_index"] = names if names.dtype.kind in "iuU" else np.array([str(n) for n in names])
    return found


def weights_sha256(arrays: Mapping[str, Any]) -> str | None:
    """Hash of the weights of the training rows; None if all count alike."""
    weights = arrays.get("train_weights")
    return None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
