"""Server-side tables: what `kubectl get` prints. Pure; ages are relative to a `now` that is given.

Columns of custom kinds come from their CRD, those of the built-in kinds are in `printers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from nvcre_local.apiserver import jsonpath, printers
from nvcre_local.apiserver.ages import age
from nvcre_local.apiserver.printers import NAME, Printer
from nvcre_local.apiserver.resources import Column, Resource
from nvcre_local.apiserver.storage import Json
from nvcre_local.apiserver.views import metadata_only, shown


def table(resource: Resource, bodies: Iterable[Json], now: datetime, *, include: str, metadata: Json) -> Json:
    """A meta.k8s.io/v1 Table; `include` says what each row carries along: None, Metadata or Object."""
    printer = printers.BUILTIN.get(resource.lies_in) or _of_definition(resource.columns)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in printer.columns],
        "rows": [_row(resource, body, printer.cells(body, now), include) for body in bodies],
    }


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(resource: Resource, body: Json, cells: list[Any], include: str) -> Json:
    row: Json = {"cells": cells}
    match include:
        case "None":
            pass
        case "Object":
            row["object"] = shown(resource, body)
        case _:
            row["object"] = metadata_only(body)
    return row


def _of_definition(columns: tuple[Column, ...]) -> Printer:
    return Printer(
        (NAME, *columns),
        lambda body, now: [body["metadata"]["name"], *(_cell(column, body, now) for column in columns)],
    )


def _cell(column: Column, body: Json, now: datetime) -> Any:  # noqa: PLR0911 - a table of types
    found = jsonpath.find(body, column.path)
    value = found[0] if found else None
    match column.type, value:
        case _, None:
            return None
        case "date", str():
            return age(value, now)
        case (("integer" | "number"), bool()):
            return None
        case "integer", int() | float():
            return int(value)
        case "number", int() | float():
            return value
        case "boolean", bool():
            return value
        case "string", str():
            return value
        case "string", bool():
            return "true" if value else "false"
        case "string", _:
            return msgspec.json.encode(value).decode()
        case _:
            return None
